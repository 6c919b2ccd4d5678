"""Read and write tensors as text: FROSTT's .tns files, with one line per nonzero."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ..base.array_modules import move
from ..base.checks import check_choice
from ..base.watching import watched
from ..spread.slab_layout import SlabLayout
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.pieces import list_pieces
from ..tensor.tensor import FlycooTensor
from .files import replace_text
from .parts import BLOCK_NNZ, Reading
from .places import FilePath, list_files

#: Lines written at a time.
_NUM_LINES = 2**16


@watched
def read_tns(
    path: FilePath,
    *,
    shape: Iterable[int] | None = None,
    index_base: int = 1,
    progress: Callable[[int, int], object] | None = None,
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
    progress : callable, optional
        Called as ``progress(nbytes, total_nbytes)`` with the bytes read so far, and the size of the
        file or of all files, whenever 16 MiB of text have been read, and at the end.
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

    See Also
    --------
    write_tns : Write such a file.
    save_slabs : Read files that do not fit in memory.

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

    With a bar, for a file that takes minutes:

    >>> from tqdm import tqdm
    >>> with tqdm(unit="B", unit_scale=True) as bar:
    ...     def show(nbytes, total_nbytes):
    ...         bar.total = total_nbytes
    ...         bar.update(nbytes - bar.n)
    ...     x = read_tns(path, progress=show)
    """
    reading = Reading(shape, index_base=index_base)
    nonzeros = reading.read_tns(list_files(path), progress)
    if not nonzeros.shape:
        raise ValueError(f"{path} has no nonzeros and no header with a shape: give shape=")
    return FlycooTensor(*nonzeros, **options)


@watched
def write_tns(path: FilePath, x: LabelledData, *, index_base: int = 1) -> None:
    """Write a tensor to a .tns file; `read_tns` restores every bit.

    The first line is a comment with the shape. Each further line has the indices and the value of
    one nonzero, with as many digits as identify the value.

    Parameters
    ----------
    path : str or os.PathLike
        The file is compressed if its name ends in .gz or .zst. An existing file is replaced once
        the new one is complete, and kept if writing fails.
    x : FlycooTensor, LabelledTensor or sparse.COO
        Of a LabelledTensor the indices are written: the file has neither its labels nor which cells
        are unknown, both of which `save` keeps.
    index_base : {1, 0}
        The first index of each mode in the file.

    Raises
    ------
    OSError
        If the file cannot be written.
    TypeError
        If `x` is not a sparse tensor, or is on a cluster.
    ValueError
        If `x` is a COO whose fill_value is not 0, or whose values are not finite or are integers
        too large for float64; or if `index_base` is neither 1 nor 0.
    ImportError
        If the file is .zst and the module for it is missing.

    See Also
    --------
    save : Write a file that loads much faster, with labels.

    Notes
    -----
    Lines are sorted by their indices; those of a tensor in slabs come slab by slab, in any order.
    Memory holds ``8 * (ndim + 1)`` bytes per nonzero, of a tensor in slabs only those of one block
    of a slab. Writing takes about a microsecond per nonzero.

    Values are written as float64: those of a float32 tensor get more digits than it needs, and
    readers that only use float64 get the same numbers.

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
    check_choice(index_base, "index_base", (1, 0))
    x = as_flycoo(x, check_coords=True)
    template = "%d " * len(x.shape) + "%r\n"
    with replace_text(path) as file:
        file.write(f"# shape: {' '.join(map(str, x.shape))}\n".encode())
        for coords, values in _iterate_nonzeros(x):
            for start in range(0, values.size, _NUM_LINES):
                block = slice(start, start + _NUM_LINES)
                columns = (coords[:, block] + index_base).tolist()
                columns.append(values[block].astype(np.float64).tolist())
                lines = [template % line for line in zip(*columns, strict=True)]
                file.write("".join(lines).encode())


def _iterate_nonzeros(x: FlycooTensor) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the nonzeros on the host: all of them, sorted, or those of each slab in blocks."""
    if not isinstance(x._layout, SlabLayout):
        yield x.nonzeros()
        return
    for piece in list_pieces(x._layout, x._engine.xp):
        for coords, values in piece.iterate_nonzeros(BLOCK_NNZ):
            yield move(coords, np), move(values, np)
