"""Read and write tensors as text: .tns files, one line per nonzero, as FROSTT has them."""

import os

import numpy as np

from ..checks import check_fill_value, check_finite, check_shape, check_values
from ..tensor.tensor import FlycooTensor
from .files import open_text, replace_text

#: Nonzeros that are written at a time.
_WRITE_BLOCK = 2**16


def read_tns(path, *, shape=None, index_base=1, progress=None, **options):
    """Read a tensor from a .tns file: in each line the indices of one nonzero and its value.

    Lines are read in parallel. Comments (from "#" or "%" at the start of a line), empty lines and a
    header with the shape may be there. Files whose names end in .gz or .zst are decompressed.

    Parameters
    ----------
    path : str or path
    shape : sequence of int, optional
        By default that which the file's header says, or else the largest index of each mode.
        A header is ``# shape: 4 5 6``; or a line with the number of modes and one with the sizes,
        perhaps after "sptensor" and before the number of nonzeros; or only the line with the sizes.
    index_base : {1, 0}
        What the first index of a mode is called in the file.
    progress : callable, optional
        Called as ``progress(nbytes, total_nbytes)`` with the bytes of the file that have been read
        so far, and those there are.
    **options
        ``dtype`` (by default float64), ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    FlycooTensor
        Repeated coordinates are summed, zeros are dropped. ``to_coo()`` makes a `sparse.COO`.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If a line is not as expected (the number of fields, an index that is not an integer, is
        outside the shape or 0 where indices begin with 1, a value that is no finite number): says
        which line. If a compressed file is damaged or truncated, or expands to more than 256
        times its size (and 16 MiB). If there is neither a nonzero nor a shape, or a file
        says by itself that it has more than 64 modes.
    ImportError
        If the file is .zst, and there is no module for that.
    MemoryError
        If there is too little memory.

    Notes
    -----
    Values are the float64 nearest to the number in the file. While a file is being read,
    ``8 * (ndim + 1)`` bytes per nonzero are there at most twice, before the tensor is built. The
    result does not depend on the number of threads.

    Where no shape is given, a file may name any index below 2**32, and so ask for more memory than
    it has bytes: each index without a nonzero takes 4 bytes in the tensor, and up to 13 while it is
    built (`estimate_memory`). Give `shape` for files that you do not trust: an index outside of it
    is an error.

    References
    ----------
    Smith et al., FROSTT: The Formidable Repository of Open Sparse Tensors and Tools, 2017,
    http://frostt.io/tensors/file-formats.html

    Examples
    --------
    >>> import os, tempfile
    >>> from tensorly_flycoo import read_tns
    >>> path = os.path.join(tempfile.mkdtemp(), "small.tns")
    >>> with open(path, "w") as file:
    ...     _ = file.write("# a comment\\n1 1 2 3.5\\n4 5 6 -1e-2\\n")
    >>> read_tns(path)
    <FlycooTensor: shape=(4, 5, 6), dtype=float64, nnz=2, layout='remap', device='cpu'>
    """
    if index_base not in (0, 1):
        raise ValueError(f"index_base is {index_base!r}, expected 1 or 0")
    shape = None if shape is None else check_shape(shape)
    return FlycooTensor(*read_nonzeros(path, shape, int(index_base), progress), **options)


def read_nonzeros(path, shape, index_base, progress):
    """Return coords (ndim, nnz), values (nnz,) and shape of a .tns file; see `read_tns`."""
    from .tns_parsing import TnsParser, iterate_blocks, prefetch

    parser, parsed, total_nbytes = TnsParser(path, shape, index_base), [], os.path.getsize(path)
    with open_text(path) as (file, tell):
        for block in prefetch(iterate_blocks(file)):
            parsed.append(parser.parse(block))
            if progress is not None:
                progress(tell(), total_nbytes)
    shape = parser.shape
    if shape is None:
        raise ValueError(f"{path} holds no nonzero and no shape; give the shape")
    coords = [np.empty((0, len(shape)), np.int64)] + [c for c, _ in parsed if c.size]
    values = [np.empty(0)] + [values for _, values in parsed]
    return np.concatenate(coords).T, np.concatenate(values), shape


def write_tns(path, x, *, index_base=1):
    """Write a tensor to a .tns file, which `read_tns` reads back as it was, to the last bit.

    The first line is a comment with the shape; then there is one line per nonzero, with its indices
    and its value, in as many digits as say exactly which number it is.

    Parameters
    ----------
    path : str or path
        Where its name ends in .gz or .zst, the file is compressed. A file that is there is replaced
        when the new one is complete, and stays as it was if that fails.
    x : FlycooTensor or sparse.COO
    index_base : {1, 0}
        What the first index of a mode is called.

    Raises
    ------
    OSError
        If the file cannot be written.
    TypeError
        If `x` is something else.
    ValueError
        If `x` is a COO whose fill_value is not 0, or with values that are not finite or, as
        integers, too large for float64.
    ImportError
        If the file is to be .zst, and there is no module for that.

    Notes
    -----
    Values are written as float64; those of a float32 tensor have more digits than they need as
    float32, so that readers that know only float64 get the same numbers. On a GPU the nonzeros are
    copied to host memory.

    Examples
    --------
    >>> import os, tempfile
    >>> from tensorly_flycoo import FlycooTensor, write_tns
    >>> path = os.path.join(tempfile.mkdtemp(), "small.tns")
    >>> write_tns(path, FlycooTensor([[0, 2], [1, 0]], [0.1, 3.0], (3, 2)))
    >>> print(open(path).read())
    # shape: 3 2
    1 2 0.1
    3 1 3.0
    <BLANKLINE>
    """
    if index_base not in (0, 1):
        raise ValueError(f"index_base is {index_base!r}, expected 1 or 0")
    coords, values, shape = _take_nonzeros(x)
    template = "%d " * len(shape) + "%r\n"
    with replace_text(path) as file:
        file.write(f"# shape: {' '.join(map(str, shape))}\n".encode())
        for start in range(0, values.size, _WRITE_BLOCK):
            block = slice(start, start + _WRITE_BLOCK)
            columns = [(row[block] + index_base).tolist() for row in coords]
            lines = zip(*columns, values[block].astype(np.float64).tolist(), strict=True)
            file.write("".join([template % line for line in lines]).encode())


def _take_nonzeros(x):
    if isinstance(x, FlycooTensor):
        return *x.nonzeros(), x.shape
    if not (hasattr(x, "coords") and hasattr(x, "data") and hasattr(x, "fill_value")):
        raise TypeError(f"x is a {type(x).__name__}, expected a FlycooTensor or a sparse.COO")
    check_fill_value(x.fill_value)
    values = check_values(x.data, x.coords.shape[1])
    check_finite(values)
    return x.coords, values, x.shape
