"""Parse the text of a .tns file, block by block, on all threads, and say what is wrong with it."""

import math
import re
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from ..checks import MAX_MODE_SIZE, check_shape
from ..engines.cpu.launch import launch
from . import tns_kernels
from .tns_header import read_header

#: Bytes that are read and parsed at a time.
BLOCK_NBYTES = 2**24

#: Parts of a block for each thread, so that a thread that is held up gets less.
_PARTS_PER_THREAD = 4

_TOKEN = re.compile(rb"[^ \t\r\n]+")

#: Modes that a file may have where nobody says that it has more: kernels are compiled for each
#: number of modes, for 20 s where there are 400, and NumPy's arrays end at 64 too.
MAX_FILE_NDIM = 64

#: Characters of a wrong line that are shown.
_SHOWN = 80


def iterate_blocks(file, block_nbytes=BLOCK_NBYTES):
    """Yield blocks of whole lines; each ends with a newline, also the last one."""
    pieces = []
    while data := file.read(block_nbytes):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, data[:cut]])
            pieces = []
        pieces.append(data[cut:])
    if any(pieces):
        yield b"".join([*pieces, b"\n"])


def prefetch(blocks):
    """Yield the blocks, each while the next one is being read and decompressed."""
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(next, blocks, None)
        while (block := ahead.result()) is not None:
            ahead = pool.submit(next, blocks, None)
            yield block


class TnsParser:
    """Parse the blocks of one file, one after the other.

    Parameters
    ----------
    path : path
        For the texts of errors.
    shape : tuple of int or None
        None takes that of the file's header, or if there is none all indices below 2**32.
    index_base : {0, 1}
        What the first index of a mode is called.
    """

    def __init__(self, path, shape, index_base):
        self._path = path
        self._shape = shape
        self._index_base = index_base
        self._sizes = None
        self._largest = None
        self._num_lines = 0
        self._powers = tns_kernels.make_powers()

    @property
    def shape(self):
        """That which is given, or is in the header, or else holds what has been read; or None."""
        if self._shape is not None or self._largest is None:
            return self._shape
        return tuple(int(index) + 1 for index in self._largest)

    def parse(self, block):
        """Return coords (nnz, ndim) and values (nnz,) of the next block of whole lines.

        Raises
        ------
        ValueError
            If a line is not a nonzero's; says which line, and what is wrong with it.
        """
        if self._sizes is None:
            block = self._start(block)
            if self._sizes is None:
                return np.empty((0, 0), np.int64), np.empty(0)
        edges = _cut_lines(block, _PARTS_PER_THREAD * numba.get_num_threads())
        num_parts, ndim = edges.size - 1, self._sizes.size
        text, num_lines = np.frombuffer(block, np.uint8), np.zeros(num_parts, np.int64)
        launch(tns_kernels.count_lines, num_parts, text, edges, num_lines)
        nnz, first_rows = num_lines.sum(), np.cumsum(num_lines) - num_lines
        coords, values = np.empty((nnz, ndim), np.int64), np.empty(nnz)
        unread, largest = np.empty(nnz, np.int64), np.zeros((num_parts, ndim), np.uint64)
        num_rows, wrong_lines = np.zeros(num_parts, np.int64), np.full(num_parts, -1)
        launch(
            tns_kernels.read_parts, num_parts, text, edges, first_rows,
            np.uint64(self._index_base), self._sizes, *self._powers,
            coords, values.view(np.uint64), unread, largest, num_rows, wrong_lines,
        )  # fmt: skip
        if wrong_lines.max(initial=-1) >= 0:
            self._refuse(block, min(wrong_lines[wrong_lines >= 0]))
        if num_rows.sum() < nnz:  # comments and empty lines leave gaps
            parts = zip(first_rows, first_rows + num_rows, strict=True)
            rows = np.concatenate([np.arange(*part) for part in parts])
            coords, values, unread = coords[rows], values[rows], unread[rows]
        self._read_slowly(block, values, unread)
        self._largest = np.maximum(self._largest, largest.max(axis=0, initial=0))
        self._num_lines += num_lines.sum()
        return coords, values

    def _start(self, block):
        """Take the header off the first block; find the number of modes, if it is there."""
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
        else:  # nothing but comments as yet
            end = len(block)
        self._largest = None if self._sizes is None else np.zeros(self._sizes.size, np.uint64)
        self._num_lines += block.count(b"\n", 0, end)
        return block[end:]

    def _read_slowly(self, block, values, unread):
        """Read the values that are still nan, from where they start in the block."""
        for row in np.flatnonzero(np.isnan(values)):
            token = _TOKEN.match(block, unread[row])[0]
            values[row] = _read_float(token)
            if not math.isfinite(values[row]):
                self._refuse(block, block.rfind(b"\n", 0, unread[row]) + 1)

    def _refuse(self, block, start):
        """Raise an error that says what is wrong with the line that starts there."""
        line = block[start : block.index(b"\n", start)].strip(b" \t\r")
        number = self._num_lines + block.count(b"\n", 0, start) + 1
        shown = line[:_SHOWN].decode(errors="backslashreplace")
        shown += "..." if len(line) > _SHOWN else ""
        raise ValueError(f"{self._path}, line {number}: {self._explain(line)}: {shown!r}")

    def _explain(self, line):
        ndim, base = self._sizes.size, self._index_base
        *indices, value = _TOKEN.findall(line)
        if len(indices) != ndim:
            return (
                f"{len(indices) + 1} fields, expected {ndim + 1}: "
                f"the indices of {ndim} modes and a value"
            )
        for mode, (index, size) in enumerate(zip(indices, self._sizes.tolist(), strict=True)):
            shown = repr(index[:_SHOWN].decode(errors="backslashreplace"))[1:-1]
            name = f"index {shown} of mode {mode}"
            if not index.isdigit():
                return f"{name} is not an integer from {base} up"
            if len(index) > tns_kernels.MAX_INDEX_DIGITS:
                return f"{name}, expected at most {tns_kernels.MAX_INDEX_DIGITS} digits"
            if int(index) < base:
                return f"{name}, but indices begin with 1; index_base=0 reads those from 0"
            if int(index) - base >= size:
                limit = f"the shape is {self._shape}" if self._shape else "modes end at 2**32"
                return f"{name}, expected {base} to {size - 1 + base}: {limit}"
        if math.isnan(number := _read_float(value)) and value.lower().lstrip(b"+-") != b"nan":
            return "the value is not a number"
        return f"the value is {number}, expected a finite number"


def _read_float(token):
    """Return the float64 nearest to a number, or nan if it is none."""
    try:
        return math.nan if b"_" in token else float(token)
    except ValueError:
        return math.nan


def _cut_lines(block, num_parts):
    """Return where parts of whole lines begin, and where the last one ends."""
    targets = (len(block) * part // num_parts for part in range(1, num_parts))
    cuts = {block.find(b"\n", target) + 1 for target in targets}
    return np.array(sorted({0, len(block)} | cuts), np.int64)
