"""Parse the text of a .tns file block by block, on all threads, and explain its errors."""

import math
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import numba
import numpy as np

from ..base.checks import MAX_MODE_SIZE, check_shape
from ..engines.cpu.threads import launch
from . import tns_kernels
from .files import FilePath, Readable, open_text

#: Bytes read and parsed at a time.
BLOCK_NBYTES = 2**24

#: Parts of a block per thread: several, so that a delayed thread can take fewer.
_PARTS_PER_THREAD = 4

_TOKEN = re.compile(rb"[^ \t\r\n]+")

#: The most modes a file may have unless the user gives the shape. Kernels are compiled for each
#: number of modes (20 s for 400 modes), and 64 is NumPy's own limit too.
MAX_FILE_NDIM = 64

_SHAPE_COMMENT = re.compile(rb"#\s*shape:\s*(\d+(?:\s+\d+)*)\s*$")

#: Characters of a faulty line that an error shows.
_SHOWN = 80


def iterate_blocks(file: Readable, block_nbytes: int = BLOCK_NBYTES) -> Iterator[bytes]:
    """Yield blocks of whole lines; every block, even the last, ends with a newline."""
    pieces: list[bytes] = []
    while data := file.read(block_nbytes):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, data[:cut]])
            pieces = []
        pieces.append(data[cut:])
    if any(pieces):
        yield b"".join([*pieces, b"\n"])


def read_header(block: bytes) -> tuple[tuple[int, ...] | None, int | None, int]:
    """Return the shape in a file's header, the number of modes, and where the header ends.

    The shape is None without a header, the number too if all lines of `block`, the file's first,
    are comments. The end is an offset in bytes.

    `read_tns` lists the headers; FROSTT's own files have none.
    """
    if block[:14].lower() == b"%%matrixmarket":
        raise ValueError("a MatrixMarket file: FlycooTensor.from_scipy(scipy.io.mmread(path))")
    shape: tuple[int, ...] | None = None
    lines: list[tuple[list[bytes], int]] = []
    end = 0
    while end < len(block) and len(lines) < 3:
        start, end = end, block.index(b"\n", end) + 1
        line = block[start:end].strip()
        comment = _SHAPE_COMMENT.match(line)
        if comment and not lines:
            shape = tuple(map(int, comment[1].split()))
        elif line and line[:1] not in b"#%" and line != b"sptensor":
            lines.append((line.split(), end))
    (first, first_end), (second, second_end), (third, third_end) = (lines + [([], 0)] * 3)[:3]
    if shape is None and first and all(field.isdigit() for field in first):
        if [len(second)] == [int(field) for field in first] and all(s.isdigit() for s in second):
            end = third_end if len(third) == 1 else second_end
            return tuple(map(int, second)), len(second), end
        if len(second) == len(first) + 1:
            return tuple(map(int, first)), len(first), first_end
    if shape is not None:
        return shape, len(shape), 0
    return None, max(1, len(first) - 1) if first else None, 0


class TnsParser:
    """Parses one file; without a shape, given or in its header, it allows any index below 2**32."""

    def __init__(self, path: FilePath, shape: tuple[int, ...] | None, index_base: int) -> None:
        self._path = path
        self._shape = shape
        self._index_base = index_base
        # Size (2**32 if unknown) and largest index so far of each mode; empty until a header or a
        # nonzero shows the number of modes.
        self._sizes = self._largest = np.empty(0, np.uint64)
        self._num_lines = 0
        self._powers = tns_kernels.make_powers()

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The given shape, or the header's, or the smallest that holds all indices, or None."""
        if self._shape is not None or self._sizes.size == 0:
            return self._shape
        return tuple(int(index) + 1 for index in self._largest)

    def iterate(
        self, progress: Callable[[int, int], object] | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield coords (nnz, ndim) and values (nnz,) of blocks; the next is read meanwhile."""
        nbytes = os.path.getsize(self._path)
        with open_text(self._path) as (file, tell), ThreadPoolExecutor(1) as pool:
            blocks = iterate_blocks(file)
            ahead = pool.submit(next, blocks, None)
            while (block := ahead.result()) is not None:
                ahead = pool.submit(next, blocks, None)
                yield self.parse(block)
                if progress is not None:
                    progress(tell(), nbytes)

    def parse(self, block: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return coords (nnz, ndim) and values (nnz,) of the next block of whole lines."""
        if self._sizes.size == 0:
            block = self._start(block)
            if self._sizes.size == 0:
                return np.empty((0, 0), np.int64), np.empty(0)
        wanted = _PARTS_PER_THREAD * numba.get_num_threads()
        targets = (len(block) * part // wanted for part in range(1, wanted))
        cuts = {block.find(b"\n", target) + 1 for target in targets}  # parts are whole lines
        edges = np.array(sorted({0, len(block)} | cuts), np.int64)
        num_parts, ndim = edges.size - 1, self._sizes.size
        text, num_lines = np.frombuffer(block, np.uint8), np.zeros(num_parts, np.int64)
        launch(tns_kernels.count_lines, num_parts, text, edges, num_lines, work_ns=text.size)
        nnz, first_rows = num_lines.sum(), np.cumsum(num_lines) - num_lines
        coords, values = np.empty((nnz, ndim), np.int64), np.empty(nnz)
        unread, largest = np.empty(nnz, np.int64), np.zeros((num_parts, ndim), np.uint64)
        num_rows, wrong_lines = np.zeros(num_parts, np.int64), np.full(num_parts, -1)
        launch(
            tns_kernels.read_parts, num_parts, text, edges, first_rows,
            np.uint64(self._index_base), self._sizes, *self._powers,
            coords, values.view(np.uint64), unread, largest, num_rows, wrong_lines,
            work_ns=5 * text.size,
        )  # fmt: skip
        if wrong_lines.max(initial=-1) >= 0:
            self._refuse(block, min(wrong_lines[wrong_lines >= 0]))
        if num_rows.sum() < nnz:  # comments and empty lines leave gaps
            parts = zip(first_rows, first_rows + num_rows, strict=True)
            rows = np.concatenate([np.arange(*part) for part in parts])
            coords, values, unread = coords[rows], values[rows], unread[rows]
        self._read_slowly(block, values, unread)
        self._largest = np.maximum(self._largest, largest.max(axis=0, initial=0))
        self._num_lines += int(num_lines.sum())
        return coords, values

    def _start(self, block: bytes) -> bytes:
        """Strip the header off the first block, and set the number of modes if it is known."""
        try:
            header_shape, ndim, end = read_header(block)
            if self._shape is None and (ndim or 0) > MAX_FILE_NDIM:
                raise ValueError(f"{ndim} modes, expected at most {MAX_FILE_NDIM}: give the shape")
            if self._shape is None and header_shape is not None:
                self._shape = check_shape(header_shape)
        except ValueError as error:
            raise ValueError(f"{self._path}, header: {error}") from None
        if self._shape is not None:
            self._sizes = np.array(self._shape, np.uint64)
        elif ndim is not None:
            self._sizes = np.full(ndim, MAX_MODE_SIZE, np.uint64)
        else:  # only comments so far
            end = len(block)
        self._largest = np.zeros(self._sizes.size, np.uint64)
        self._num_lines += block.count(b"\n", 0, end)
        return block[end:]

    def _read_slowly(self, block: bytes, values: np.ndarray, unread: np.ndarray) -> None:
        """Read the values that are still nan; `unread` has their offsets in the block."""
        for row in np.flatnonzero(np.isnan(values)):
            token = next(_TOKEN.finditer(block, unread[row]))[0]
            values[row] = _read_float(token)
            if not math.isfinite(values[row]):
                self._refuse(block, block.rfind(b"\n", 0, unread[row]) + 1)

    def _refuse(self, block: bytes, start: int) -> NoReturn:
        """Raise an error that explains what is wrong with the line at offset `start`."""
        line = block[start : block.index(b"\n", start)].strip(b" \t\r")
        number = self._num_lines + block.count(b"\n", 0, start) + 1
        shown = line[:_SHOWN].decode(errors="backslashreplace")
        shown += "..." if len(line) > _SHOWN else ""
        raise ValueError(f"{self._path}, line {number}: {self._explain(line)}: {shown!r}")

    def _explain(self, line: bytes) -> str:
        ndim, base = self._sizes.size, self._index_base
        *indices, value = _TOKEN.findall(line)
        if len(indices) != ndim:
            return f"{len(indices) + 1} fields, expected {ndim + 1}: {ndim} indices and a value"
        for mode, (index, size) in enumerate(zip(indices, self._sizes.tolist(), strict=True)):
            shown = repr(index[:_SHOWN].decode(errors="backslashreplace"))[1:-1]
            name = f"index {shown} of mode {mode}"
            if not index.isdigit():
                return f"{name} is not an integer from {base} up"
            if len(index) > tns_kernels.MAX_INDEX_DIGITS:
                return f"{name}, expected at most {tns_kernels.MAX_INDEX_DIGITS} digits"
            if int(index) < base:
                return f"{name}, expected at least 1; index_base=0 reads indices that begin with 0"
            if int(index) - base >= size:
                limit = f"the shape is {self._shape}" if self._shape else "modes end at 2**32"
                return f"{name}, expected {base} to {size - 1 + base}: {limit}"
        if math.isnan(number := _read_float(value)) and value.lower().lstrip(b"+-") != b"nan":
            return "the value is not a number"
        return f"the value is {number}, expected a finite number"


def _read_float(token: bytes) -> float:
    """Return the float64 nearest to a number, or nan if the token is not a number."""
    try:
        return math.nan if b"_" in token else float(token)
    except ValueError:
        return math.nan
