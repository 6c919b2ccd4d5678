"""Parse the header that a .tns file may have before its nonzeros."""

import re
from collections.abc import Iterator

_SHAPE_COMMENT = re.compile(rb"#\s*shape:\s*(\d+(?:\s+\d+)*)\s*$")


def read_header(block: bytes) -> tuple[tuple[int, ...] | None, int | None, int]:
    """Return the shape in a file's header, if any, and the number of modes.

    FROSTT's own files have no header. Other programs write one of these:

    - a comment, ``# shape: 4 5 6``, as `write_tns` does;
    - a line with the number of modes and a line with the sizes, optionally followed by a line with
      the number of nonzeros, and optionally preceded by a line ``sptensor``;
    - a line with the sizes, one field fewer than in the lines of nonzeros.

    Parameters
    ----------
    block : bytes
        The first lines of the file.

    Returns
    -------
    shape : tuple of int or None
    ndim : int or None
        None if all lines are comments.
    end : int
        The offset in bytes at which the rest of the file begins.

    Raises
    ------
    ValueError
        If the file is in the MatrixMarket format.
    """
    if block[:14].lower() == b"%%matrixmarket":
        raise ValueError("a MatrixMarket file: FlycooTensor.from_scipy(scipy.io.mmread(path))")
    shape: tuple[int, ...] | None = None
    lines: list[tuple[list[bytes], int]] = []
    for line, end in _iterate_lines(block):
        comment = _SHAPE_COMMENT.match(line)
        if comment and not lines:
            shape = _read_sizes(comment[1].split())
        elif line and line[:1] not in b"#%" and line != b"sptensor":
            lines.append((line.split(), end))
            if len(lines) == 3:
                break
    (first, first_end), (second, second_end), (third, third_end) = (lines + [([], 0)] * 3)[:3]
    if shape is None and first and all(field.isdigit() for field in first):
        if [len(second)] == [int(field) for field in first] and all(s.isdigit() for s in second):
            end = third_end if len(third) == 1 else second_end
            return _read_sizes(second), len(second), end
        if len(second) == len(first) + 1:
            return _read_sizes(first), len(first), first_end
    if shape is not None:
        return shape, len(shape), 0
    return None, max(1, len(first) - 1) if first else None, 0


def _read_sizes(fields: list[bytes]) -> tuple[int, ...]:
    return tuple(int(field) for field in fields)


def _iterate_lines(block: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield each line, stripped, and the offset of its end."""
    end = 0
    while end < len(block):
        start, end = end, block.index(b"\n", end) + 1
        yield block[start:end].strip(), end
