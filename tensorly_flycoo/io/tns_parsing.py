"""Parse the text of a .tns file block by block, by pyarrow or NumPy, and explain its errors."""

import contextlib
import importlib.util
import io
import logging
import math
import re
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..base.checks import MAX_MODE_SIZE, check_shape
from .files import FilePath, Read, open_text

#: Bytes read and parsed at a time.
BLOCK_NBYTES = 2**24

_TOKEN = re.compile(rb"[^ \t\r\n]+")

#: What changes nothing: comments and empty lines, and blanks but for one between two fields.
_COMMENTS = re.compile(rb"^ *([#%].*)?\n", re.MULTILINE)
_MARGINS = re.compile(rb"^ +| +$", re.MULTILINE)
_BLANKS = bytes.maketrans(b"\t\r", b"  ")

#: All that a line needs: pyarrow and NumPy read other numbers too, such as 0x10.
_PLAIN = b"0123456789.+-eE \n"

#: The most modes a file may have unless the user gives the shape: NumPy's own limit.
MAX_FILE_NDIM = 64

#: The most digits of an index: such numbers fit in 64 bits.
_MAX_INDEX_DIGITS = 18

#: The first line of a MatrixMarket file, which TACO uses for tensors (.ttx) too.
_MARKET = re.compile(
    rb"%%matrixmarket\s+(matrix|tensor|vector)\s+coordinate\s+(real|double|integer)\s+general\s*\n",
    re.IGNORECASE,
)

_SHAPE_COMMENT = re.compile(rb"#\s*shape:(.*)")

#: Characters of a faulty line that an error shows.
_SHOWN = 80

_HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None

_logger = logging.getLogger(__name__)


def iterate_blocks(read: Read, block_nbytes: int = BLOCK_NBYTES) -> Iterator[bytes]:
    """Yield blocks of whole lines; every block, even the last, ends with a newline."""
    pieces: list[bytes] = []
    while data := read(block_nbytes):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, data[:cut]])
            pieces = []
        pieces.append(data[cut:])
    if any(pieces):
        yield b"".join([*pieces, b"\n"])


def read_header(block: bytes) -> tuple[tuple[int, ...] | None, int | None, int | None, int]:
    """Read the header in `block`, the file's first: `read_tns` lists those that there are.

    Return the shape, the numbers of modes and of nonzeros, each None if it is not stated, and where
    the header ends. FROSTT's own files have none: the first nonzero shows the number of modes.
    """
    is_market = block[:14].lower() == b"%%matrixmarket"
    if is_market and not _MARKET.match(block):
        raise ValueError(
            f"{_show(block.splitlines()[0])!r}, expected 'coordinate', 'real' or 'integer', "
            "'general'; FlycooTensor.from_scipy(scipy.io.mmread(path)) reads other matrices"
        )
    shape: tuple[int, ...] | None = None
    lines: list[tuple[list[bytes], int]] = []
    end = 0
    while end < len(block) and len(lines) < 3:
        start = end
        end = block.index(b"\n", end) + 1
        line = block[start:end].strip()
        comment = _SHAPE_COMMENT.match(line)
        if comment and not lines:
            shape = _read_sizes(comment[1].split())
        elif line and line[:1] not in b"#%" and line != b"sptensor":
            lines.append((line.split(), end))
    (first, first_end), (second, second_end), (third, third_end) = (lines + [([], 0)] * 3)[:3]
    if is_market:
        *sizes, nnz = _read_sizes(first)
        return tuple(sizes), len(sizes), nnz, first_end
    if shape is None and first and all(field.isdigit() for field in first):
        if [len(second)] == [int(field) for field in first] and all(s.isdigit() for s in second):
            shape = tuple(map(int, second))
            if len(third) != 1:
                return shape, len(second), None, second_end
            (nnz,) = _read_sizes(third)
            return shape, len(second), nnz, third_end
        if len(second) == len(first) + 1:
            return tuple(map(int, first)), len(first), None, first_end
    if shape is not None:
        return shape, len(shape), None, 0
    return None, max(1, len(first) - 1) if first else None, None, 0


def _read_sizes(fields: list[bytes]) -> tuple[int, ...]:
    """Return sizes of modes, the number of nonzeros, or both, which a header must have here."""
    if not fields or not all(map(bytes.isdigit, fields)):
        shown = _show(b" ".join(fields))
        raise ValueError(f"{shown!r}, expected integers: sizes of modes, or a number of nonzeros")
    return tuple(map(int, fields))


def _show(text: bytes) -> str:
    """Return the beginning of a part of a file for an error."""
    shown = text[:_SHOWN].decode(errors="backslashreplace")
    return shown + "..." if len(text) > _SHOWN else shown


class TnsParser:
    """Parses one file; without a shape, given or in its header, it allows any index below 2**32."""

    def __init__(self, path: FilePath, shape: tuple[int, ...] | None, index_base: int) -> None:
        self._path = path
        self._shape = shape
        self._index_base = int(index_base)
        # Size (2**32 if unknown) and largest index so far of each mode; empty until a header or a
        # nonzero shows the number of modes.
        self._sizes = self._largest = np.empty(0, np.int64)
        self._num_lines = self._nnz = 0
        self._announced: int | None = None  # the number of nonzeros, by the header

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The given shape, or the header's, or the smallest that holds all indices, or None."""
        if self._shape is not None or self._sizes.size == 0:
            return self._shape
        return tuple(int(index) + 1 for index in self._largest)

    def iterate(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield coords (nnz, ndim) and values (nnz,) of blocks; the next is read meanwhile."""
        with open_text(self._path) as (read, nbytes), ThreadPoolExecutor(1) as pool:
            if nbytes > BLOCK_NBYTES and not _HAS_PYARROW:
                text = "%s is read several times as fast if pyarrow is installed"
                _logger.warning(text, self._path)
            blocks = iterate_blocks(read)
            ahead = pool.submit(next, blocks, None)
            while (block := ahead.result()) is not None:
                ahead = pool.submit(next, blocks, None)
                yield self.parse(block)
        if self._announced not in (None, self._nnz):
            raise ValueError(
                f"{self._path}, header: {self._announced} nonzeros, expected {self._nnz}, as many "
                "as there are lines of them: the file is not whole, or two were joined"
            )

    def parse(self, block: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return coords (nnz, ndim) and values (nnz,) of the next block of whole lines."""
        if self._sizes.size == 0:
            block = self._start(block)
            if self._sizes.size == 0:
                return np.empty((0, 0), np.int64), np.empty(0)
        read = _read_table(block, self._sizes.size)
        if read is None or not self._is_right(*read):
            read = self._read_lines(block)
        coords, values = read
        coords -= self._index_base
        self._largest = np.maximum(self._largest, coords.max(axis=0, initial=0))
        self._num_lines += block.count(b"\n")
        self._nnz += values.size
        return coords, values

    def _is_right(self, coords: np.ndarray, values: np.ndarray) -> bool:
        largest = self._sizes - 1 + self._index_base
        base = self._index_base
        return bool(
            (coords.min(axis=0, initial=base) >= base).all()
            and (coords.max(axis=0, initial=base) <= largest).all()
            and np.isfinite(values).all()
        )

    def _start(self, block: bytes) -> bytes:
        """Strip the header off the first block, and set the number of modes if it is known."""
        try:
            header_shape, ndim, self._announced, end = read_header(block)
            if self._shape is None and (ndim or 0) > MAX_FILE_NDIM:
                raise ValueError(f"{ndim} modes, expected at most {MAX_FILE_NDIM}: give the shape")
            if self._shape is None and header_shape is not None:
                self._shape = check_shape(header_shape)
        except ValueError as error:
            raise ValueError(f"{self._path}, header: {error}") from None
        if self._shape is not None:
            self._sizes = np.array(self._shape, np.int64)
        elif ndim is not None:
            self._sizes = np.full(ndim, MAX_MODE_SIZE, np.int64)
        else:  # only comments so far
            end = len(block)
        self._largest = np.zeros(self._sizes.size, np.int64)
        self._num_lines += block.count(b"\n", 0, end)
        return block[end:]

    def _read_lines(self, block: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Read a block line by line; a ValueError explains what is wrong with the first bad one."""
        rows = []
        values = []
        for number, line in enumerate(block.split(b"\n"), self._num_lines + 1):
            fields = _TOKEN.findall(line)
            if not fields or fields[0][:1] in b"#%":
                continue
            if reason := self._explain(fields):
                shown = _show(line.strip(b" \t\r"))
                raise ValueError(f"{self._path}, line {number}: {reason}: {shown!r}")
            rows.append(fields[:-1])
            values.append(float(fields[-1]))
        coords = np.array([list(map(int, row)) for row in rows], np.int64)
        return coords.reshape(-1, self._sizes.size), np.array(values)

    def _explain(self, fields: list[bytes]) -> str:
        """Say what is wrong with the fields of a line, if anything is."""
        ndim = self._sizes.size
        base = self._index_base
        *indices, value = fields
        if len(indices) != ndim:
            return f"{len(fields)} fields, expected {ndim + 1}: {ndim} indices and a value"
        for mode, (index, size) in enumerate(zip(indices, self._sizes.tolist(), strict=True)):
            is_number = index.isdigit() and len(index) <= _MAX_INDEX_DIGITS
            if is_number and base <= int(index) < size + base:
                continue
            name = f"index {repr(index[:_SHOWN].decode(errors='backslashreplace'))[1:-1]}"
            name += f" of mode {mode}"
            if not index.isdigit():
                return f"{name} is not an integer from {base} up"
            if len(index) > _MAX_INDEX_DIGITS:
                return f"{name}, expected at most {_MAX_INDEX_DIGITS} digits"
            if int(index) < base:
                return f"{name}, expected at least 1; index_base=0 reads indices that begin with 0"
            limit = f"the shape is {self._shape}" if self._shape else "modes end at 2**32"
            return f"{name}, expected {base} to {size - 1 + base}: {limit}"
        try:
            number = math.nan if b"_" in value else float(value)
        except ValueError:
            number = math.nan
        if math.isnan(number) and value.lower().lstrip(b"+-") != b"nan":
            return "the value is not a number"
        return "" if math.isfinite(number) else f"the value is {number}, expected a finite number"


def _read_table(block: bytes, ndim: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the indices (nnz, ndim) and values (nnz,) of whole lines, or None if some are odd."""
    read = _read_by_pyarrow if _HAS_PYARROW else _read_by_numpy
    for tidy in (bytes, _tidy):
        text = tidy(block)
        if not text.translate(None, _PLAIN):
            with contextlib.suppress(ValueError, Warning):
                return read(text, ndim)
    return None


def _tidy(block: bytes) -> bytes:
    text = _MARGINS.sub(b"", _COMMENTS.sub(b"", block.translate(_BLANKS)))
    return re.sub(b"  +", b" ", text) if b"  " in text else text


def _read_by_pyarrow(text: bytes, ndim: int) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow
    from pyarrow import csv

    names = [str(mode) for mode in range(ndim + 1)]
    types = [(name, pyarrow.int64()) for name in names[:-1]] + [(names[-1], pyarrow.float64())]
    table = csv.read_csv(
        pyarrow.BufferReader(text),
        csv.ReadOptions(column_names=names),
        csv.ParseOptions(delimiter=" ", quote_char=False),
        csv.ConvertOptions(column_types=pyarrow.schema(types), null_values=[]),
    )
    *indices, values = (column.to_numpy() for column in table.columns)
    return np.stack(indices, axis=1), values


def _read_by_numpy(text: bytes, ndim: int) -> tuple[np.ndarray, np.ndarray]:
    fields = [("indices", np.int64, (ndim,)), ("value", np.float64)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of indices such as 1.0
        table = np.loadtxt(io.BytesIO(text), fields, comments=None, ndmin=1)
    return np.array(table["indices"]), np.array(table["value"])
