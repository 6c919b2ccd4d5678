"""What the first lines of a .tns file may say before the nonzeros begin."""

import re

_SHAPE_COMMENT = re.compile(rb"#\s*shape:\s*(\d+(?:\s+\d+)*)\s*$")


def read_header(block):
    """Find the shape that a file begins with, if it does, and the number of modes.

    Files of FROSTT begin with the nonzeros. Others say, before these,

    - in a comment, ``# shape: 4 5 6``, as `write_tns` does; or
    - the number of modes in one line, the sizes in the next one, and perhaps the number of nonzeros
      in one more, after a line ``sptensor`` or without it; or
    - the sizes in one line, which has one field less than those of the nonzeros.

    Parameters
    ----------
    block : bytes
        The first lines of the file.

    Returns
    -------
    shape : tuple of int or None
    ndim : int or None
        None if there is no line but comments.
    end : int
        Where what remains begins, in bytes.
    """
    shape, lines = None, []
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


def _read_sizes(fields):
    return tuple(int(field) for field in fields)


def _iterate_lines(block):
    """Yield each line without blanks around it, and where it ends."""
    end = 0
    while end < len(block):
        start, end = end, block.index(b"\n", end) + 1
        yield block[start:end].strip(), end
