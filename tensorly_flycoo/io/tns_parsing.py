"""Parse the text of a .tns file block by block, by pyarrow or NumPy, and explain its errors."""

import contextlib
import importlib.util
import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ..base.checks import MAX_MODE_SIZE, check_shape
from .files import Read, open_text
from .places import FilePath

#: Bytes read and parsed at a time.
BLOCK_NBYTES = 2**24

_TOKEN = re.compile(rb"[^ \t\r\n]+")

#: Text that is skipped: comments and empty lines, and blanks at the ends of lines.
_COMMENTS = re.compile(rb"^ *([#%].*)?\n", re.MULTILINE)
_MARGINS = re.compile(rb"^ +| +$", re.MULTILINE)

#: Turns other blanks than newlines into spaces.
_BLANKS = bytes.maketrans(b"\t\r", b"  ")

#: All characters that a line needs: pyarrow and NumPy read other numbers too, such as 0x10.
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
    """Yield blocks of whole lines; every block, even the last, ends with a newline.

    Examples
    --------
    >>> list(iterate_blocks(io.BytesIO(b"1 2\\n3 4").read, 6))
    [b'1 2\\n', b'3 4\\n']
    """
    pieces: list[bytes] = []
    while data := read(block_nbytes):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, data[:cut]])
            pieces = []
        pieces.append(data[cut:])
    if any(pieces):
        yield b"".join([*pieces, b"\n"])


class TnsHeader(NamedTuple):
    """The facts of a header, each None if it is not stated."""

    shape: tuple[int, ...] | None = None
    ndim: int | None = None  # without a header, that of the first nonzero
    nnz: int | None = None
    end: int = 0  # where the nonzeros begin


class _Line(NamedTuple):
    """A line that is no comment."""

    fields: Sequence[bytes] = ()
    end: int = 0  # where the next line begins


def read_header(block: bytes) -> TnsHeader:
    """Read the header in `block`, the file's first: `read_tns` lists those that there are.

    FROSTT's own files have none: the first nonzero shows the number of modes.

    Examples
    --------
    >>> read_header(b"# shape: 4 5 6\\n1 1 2 3.5\\n")
    TnsHeader(shape=(4, 5, 6), ndim=3, nnz=None, end=0)
    >>> read_header(b"1 1 2 3.5\\n")
    TnsHeader(shape=None, ndim=3, nnz=None, end=0)
    """
    if block[:14].lower() == b"%%matrixmarket":
        return _read_market_header(block)
    shape, lines = _read_first_lines(block)
    if shape is not None:
        return TnsHeader(shape, len(shape))
    first, second, third = lines
    if not first.fields:  # only comments
        return TnsHeader()
    if all(map(bytes.isdigit, first.fields)):
        # The first line may be the number of modes, and the second their sizes.
        is_ndim = len(first.fields) == 1 and int(first.fields[0]) == len(second.fields)
        if is_ndim and all(map(bytes.isdigit, second.fields)):
            sizes = _read_sizes(second.fields)
            if len(third.fields) != 1:
                return TnsHeader(sizes, len(sizes), None, second.end)
            (nnz,) = _read_sizes(third.fields)
            return TnsHeader(sizes, len(sizes), nnz, third.end)
        # Or it is the sizes, and the second a nonzero, which has one field more.
        if len(second.fields) == len(first.fields) + 1:
            sizes = _read_sizes(first.fields)
            return TnsHeader(sizes, len(sizes), None, first.end)
    return TnsHeader(ndim=max(1, len(first.fields) - 1))


def _read_market_header(block: bytes) -> TnsHeader:
    """Read the header of a MatrixMarket file; refuse the kinds that are no list of nonzeros."""
    if not _MARKET.match(block):
        raise ValueError(
            f"{_show(block.splitlines()[0])!r}, expected 'coordinate', 'real' or 'integer', "
            "'general'; FlycooTensor.from_scipy(scipy.io.mmread(path)) reads other matrices"
        )
    _, (first, _, _) = _read_first_lines(block)
    *sizes, nnz = _read_sizes(first.fields)
    return TnsHeader(tuple(sizes), len(sizes), nnz, first.end)


def _read_first_lines(block: bytes) -> tuple[tuple[int, ...] | None, list[_Line]]:
    """Return the shape in a comment before any other line, and the first three other lines.

    Lines that the block does not have are empty.
    """
    shape: tuple[int, ...] | None = None
    lines: list[_Line] = []
    end = 0
    while end < len(block) and len(lines) < 3:
        start = end
        end = block.index(b"\n", start) + 1
        line = block[start:end].strip()
        comment = _SHAPE_COMMENT.match(line)
        if comment and not lines:
            shape = _read_sizes(comment[1].split())
        elif line and line[:1] not in b"#%" and line != b"sptensor":
            lines.append(_Line(line.split(), end))
    return shape, lines + [_Line()] * (3 - len(lines))


def _read_sizes(fields: Sequence[bytes]) -> tuple[int, ...]:
    """Return sizes of modes, the number of nonzeros, or both, which a header must have here."""
    if not fields or not all(map(bytes.isdigit, fields)):
        shown = _show(b" ".join(fields))
        raise ValueError(f"{shown!r}, expected integers: sizes of modes, or a number of nonzeros")
    return tuple(map(int, fields))


def _show(text: bytes) -> str:
    """Return the beginning of a part of a file for an error."""
    shown = text[:_SHOWN].decode(errors="backslashreplace")
    if len(text) > _SHOWN:
        shown += "..."
    return shown


class TnsParser:
    """Parses one file, block by block.

    Without a shape, given or in its header, it allows any index below 2**32.
    """

    def __init__(self, path: FilePath, shape: tuple[int, ...] | None, index_base: int) -> None:
        self._path = path
        self._shape = shape
        self._index_base = int(index_base)
        # Size (2**32 if unknown) and largest index so far of each mode; empty until a header or a
        # nonzero shows the number of modes.
        self._sizes = self._largest = np.empty(0, np.int64)
        self._num_lines = 0  # that have been parsed
        self._nnz = 0
        self._announced_nnz: int | None = None  # by the header

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The given shape, or the header's, or the smallest that holds all indices, or None."""
        if self._shape is not None or self._sizes.size == 0:
            return self._shape
        return tuple(int(index) + 1 for index in self._largest)

    def iterate(
        self, show_position: Callable[[int], object] | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield coords (nnz, ndim) and values (nnz,) of blocks; the next is read meanwhile.

        `show_position` is called with the number of bytes of the file that have been read.
        """
        with open_text(self._path) as file, ThreadPoolExecutor(1) as pool:
            if file.nbytes > BLOCK_NBYTES and not _HAS_PYARROW:
                text = "%s is read several times as fast if pyarrow is installed"
                _logger.warning(text, self._path)
            blocks = iterate_blocks(file.read)
            next_block = pool.submit(next, blocks, None)
            while (block := next_block.result()) is not None:
                if show_position is not None:
                    show_position(file.tell())
                next_block = pool.submit(next, blocks, None)
                yield self.parse(block)
        if self._announced_nnz not in (None, self._nnz):
            raise ValueError(
                f"{self._path}, header: {self._announced_nnz} nonzeros, expected {self._nnz}, as "
                "many as there are lines of them: the file is not whole, or two were joined"
            )

    def parse(self, block: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return coords (nnz, ndim) and values (nnz,) of the next block of whole lines."""
        if self._sizes.size == 0:
            block = self._strip_header(block)
        if self._sizes.size == 0:  # only comments so far
            return np.empty((0, 0), np.int64), np.empty(0)
        nonzeros = _read_table(block, self._sizes.size)
        if nonzeros is None or not self._are_valid(*nonzeros):
            nonzeros = self._read_lines(block)  # slower, but it can say what is wrong
        coords, values = nonzeros
        coords -= self._index_base
        self._largest = np.maximum(self._largest, coords.max(axis=0, initial=0))
        self._num_lines += block.count(b"\n")
        self._nnz += values.size
        return coords, values

    def _are_valid(self, coords: np.ndarray, values: np.ndarray) -> bool:
        """Whether all indices, as the file has them, are inside the shape, and values finite."""
        least = self._index_base
        largest = self._sizes - 1 + self._index_base
        if (coords.min(axis=0, initial=least) < least).any():
            return False
        if (coords.max(axis=0, initial=least) > largest).any():
            return False
        return bool(np.isfinite(values).all())

    def _strip_header(self, block: bytes) -> bytes:
        """Read the header, or the first nonzero, for the number of modes; return what follows."""
        header = self._read_header(block)
        self._announced_nnz = header.nnz
        end = header.end
        if self._shape is None:
            self._shape = header.shape
        if self._shape is not None:
            self._sizes = np.array(self._shape, np.int64)
        elif header.ndim is not None:
            self._sizes = np.full(header.ndim, MAX_MODE_SIZE, np.int64)
        else:  # only comments so far
            end = len(block)
        self._largest = np.zeros(self._sizes.size, np.int64)
        self._num_lines += block.count(b"\n", 0, end)
        return block[end:]

    def _read_header(self, block: bytes) -> TnsHeader:
        """Read the header; refuse a shape that no tensor has, unless the user has given one."""
        try:
            header = read_header(block)
            if self._shape is None and (header.ndim or 0) > MAX_FILE_NDIM:
                limit = f"at most {MAX_FILE_NDIM}: give the shape"
                raise ValueError(f"{header.ndim} modes, expected {limit}")
            if self._shape is None and header.shape is not None:
                return header._replace(shape=check_shape(header.shape))
        except ValueError as error:
            raise ValueError(f"{self._path}, header: {error}") from None
        return header

    def _read_lines(self, block: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Read a block line by line; a ValueError explains what is wrong with the first bad one."""
        rows = []
        values = []
        for number, line in enumerate(block.split(b"\n"), self._num_lines + 1):
            fields = _TOKEN.findall(line)
            if not fields or fields[0][:1] in b"#%":
                continue
            reason = self._explain(fields)
            if reason:
                shown = _show(line.strip(b" \t\r"))
                raise ValueError(f"{self._path}, line {number}: {reason}: {shown!r}")
            rows.append(fields[:-1])
            values.append(float(fields[-1]))
        coords = np.array([list(map(int, row)) for row in rows], np.int64)
        return coords.reshape(-1, self._sizes.size), np.array(values)

    def _explain(self, fields: list[bytes]) -> str:
        """Say what is wrong with the fields of a line, or "" if they are right."""
        ndim = self._sizes.size
        *indices, value = fields
        if len(indices) != ndim:
            return f"{len(fields)} fields, expected {ndim + 1}: {ndim} indices and a value"
        for mode, index in enumerate(indices):
            reason = self._explain_index(mode, index)
            if reason:
                return reason
        return _explain_value(value)

    def _explain_index(self, mode: int, index: bytes) -> str:
        """Say what is wrong with an index, or "" if it is right."""
        least = self._index_base
        largest = int(self._sizes[mode]) - 1 + self._index_base
        shown = repr(index[:_SHOWN].decode(errors="backslashreplace"))[1:-1]
        name = f"index {shown} of mode {mode}"
        if not index.isdigit():
            return f"{name} is not an integer from {least} up"
        if len(index) > _MAX_INDEX_DIGITS:
            return f"{name}, expected at most {_MAX_INDEX_DIGITS} digits"
        if int(index) < least:
            return f"{name}, expected at least 1; index_base=0 reads indices that begin with 0"
        if int(index) > largest:
            limit = "modes end at 2**32"
            if self._shape:
                limit = f"the shape is {self._shape}"
            return f"{name}, expected {least} to {largest}: {limit}"
        return ""


def _explain_value(value: bytes) -> str:
    """Say what is wrong with a value, or "" if it is right.

    Examples
    --------
    >>> _explain_value(b"0x10")
    'the value is not a number'
    >>> _explain_value(b"1e5")
    ''
    """
    try:
        number = float(value)
    except ValueError:
        return "the value is not a number"
    if b"_" in value:  # which Python allows between digits
        return "the value is not a number"
    if not math.isfinite(number):
        return f"the value is {number}, expected a finite number"
    return ""


def _read_table(block: bytes, ndim: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the indices (nnz, ndim) and values (nnz,) of whole lines, or None if some are odd."""
    read = _read_by_pyarrow if _HAS_PYARROW else _read_by_numpy
    for prepare in (bytes, _tidy):  # most files are tidy as they are
        text = prepare(block)
        if not text.translate(None, _PLAIN):
            with contextlib.suppress(ValueError, Warning):
                return read(text, ndim)
    return None


def _tidy(block: bytes) -> bytes:
    """Remove comments, empty lines, and blanks but for one between two fields."""
    text = block.translate(_BLANKS)
    text = _COMMENTS.sub(b"", text)
    text = _MARGINS.sub(b"", text)
    if b"  " in text:  # else save a pass
        text = re.sub(b"  +", b" ", text)
    return text


def _read_by_pyarrow(text: bytes, ndim: int) -> tuple[np.ndarray, np.ndarray]:
    """Parse tidy lines on all threads."""
    import pyarrow
    from pyarrow import csv

    names = [str(mode) for mode in range(ndim)]
    types = [(name, pyarrow.int64()) for name in names]
    types.append(("value", pyarrow.float64()))
    table = csv.read_csv(
        pyarrow.BufferReader(text),
        csv.ReadOptions(column_names=[*names, "value"]),
        csv.ParseOptions(delimiter=" ", quote_char=False),
        csv.ConvertOptions(column_types=pyarrow.schema(types), null_values=[]),
    )
    *indices, values = (column.to_numpy() for column in table.columns)
    return np.stack(indices, axis=1), values


def _read_by_numpy(text: bytes, ndim: int) -> tuple[np.ndarray, np.ndarray]:
    """Parse tidy lines without pyarrow, several times as slowly."""
    fields = [("indices", np.int64, (ndim,)), ("value", np.float64)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of indices such as 1.0
        table = np.loadtxt(io.BytesIO(text), fields, comments=None, ndmin=1)
    return np.array(table["indices"]), np.array(table["value"])
