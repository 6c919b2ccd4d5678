"""Read tensors from text: FROSTT's .tns files, with one line per nonzero."""

from collections.abc import Iterable
from typing import Any

from ..tensor.tensor import FlycooTensor
from .parts import Reading
from .places import FilePath, list_files


def read_tns(
    path: FilePath,
    *,
    shape: Iterable[int] | None = None,
    index_base: int = 1,
    **options: Any,
) -> FlycooTensor:
    """Read a tensor from a .tns file; each line holds the indices of one nonzero and its value.

    pyarrow, if it is installed, parses lines in parallel, otherwise NumPy. Comments (lines that
    begin with "#" or "%") and empty lines are skipped. A header may give the shape. Files whose
    names end in .gz or .zst are decompressed.

    Parameters
    ----------
    path : str or os.PathLike
        Also a folder or a pattern, whose files are one tensor, or a URL that fsspec opens.
    shape : sequence of int, optional
        By default the shape in the file's header, or without one the smallest that holds all
        indices. A header is ``# shape: 4 5 6``; or a line with the number of modes and a line with
        the sizes, optionally preceded by "sptensor" and followed by the number of nonzeros; or only
        a line with the sizes; or MatrixMarket's first line (.mtx, or TACO's .ttx with "tensor" for
        "matrix"), and a line with the sizes and the number of nonzeros.
    index_base : {1, 0}
        The first index of each mode in the file.
    **options
        ``dtype`` (by default float64), ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    FlycooTensor
        Values at repeated coordinates are added up, and zeros dropped. ``to_coo()`` returns a
        `sparse.COO`.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If a line has the wrong number of fields, an index that is not an integer, is outside the
        shape or is 0 in a file whose indices begin with 1, or a value that is not a finite number;
        the message gives the line's number. If a compressed file is damaged, truncated, or expands
        to more than 256 times its size (and 16 MiB). If the file has neither a nonzero nor a shape,
        other nonzeros than its header counts, or more than 64 modes and `shape` is not given; or
        is a MatrixMarket file but of the kind "coordinate real general" or "integer".
    ImportError
        If the file is .zst and the module for it is missing.
    MemoryError
        If there is too little memory.

    Notes
    -----
    Each value is the float64 nearest to the number in the file. Reading takes up to twice
    ``8 * (ndim + 1)`` bytes per nonzero, before the tensor is built. The result does not depend on
    the number of threads.

    Without `shape`, a file may contain any index below 2**32, and so demand far more memory than
    its size: each index without a nonzero takes 4 bytes in the tensor, and up to 13 while it is
    built (see `estimate_memory`). For files that you do not trust, give `shape`: an index outside
    it is an error.

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
    <FlycooTensor: shape=(4, 5, 6), dtype=float64, nnz=2, layout='replicated', device='cpu'>
    """
    nonzeros = Reading(shape, index_base=index_base).read_tns(list_files(path))
    if not nonzeros.shape:
        raise ValueError(f"{path} has no nonzeros and no header with a shape: give shape=")
    return FlycooTensor(*nonzeros, **options)
