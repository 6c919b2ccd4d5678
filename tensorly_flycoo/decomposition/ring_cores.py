"""Tensor trains and tensor rings of a sparse tensor, by one SVD per mode.

After each SVD the remainder of the tensor, ``diag(S) @ V``, has a column for each cell of the
remaining modes. At most nnz of these columns are nonzero, and only those are kept.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ..array_modules import Array
from ..ops.contraction import multiply_matricized
from ..start.unfolding import Unfolding
from ..tensor.coo_cache import as_flycoo
from ..tensor.tensor import FlycooTensor


def decompose_ring(x: Any, ranks: Sequence[int]) -> list[Array]:
    r"""Decompose a sparse tensor into a ring of cores, or a train if ``ranks[0] == 1``.

    .. math:: X[i_0, ..., i_{N-1}] \approx \mathrm{tr}(G_0[:, i_0, :] \cdots G_{N-1}[:, i_{N-1}, :])

    Parameters
    ----------
    x : FlycooTensor or sparse.COO
        With two modes or more.
    ranks : sequence of int
        ``ndim + 1`` ranks, the last equal to the first. A rank in between is lowered to the smaller
        side of the decomposed matrix.

    Returns
    -------
    list of array (ranks[n], I_n, ranks[n + 1])
        On the device and in the dtype of `x`. The largest element of each singular vector is
        positive.

    Raises
    ------
    ValueError
        If `x` has one mode, or if ``ranks[0]`` is not 1 and ``ranks[0] * ranks[1]`` exceeds the
        number of rows or columns of the first unfolding.

    Notes
    -----
    For each mode but the last, it builds a matrix of up to ``nnz * rank`` nonzeros, finds its
    leading vectors by `Unfolding.svd`, and multiplies it by them with one MTTKRP. TensorLy
    decomposes the same matrices with all their columns.

    References
    ----------
    Oseledets, SIAM J. Sci. Comput. 33(5), 2011. Zhao et al., arXiv:1606.05535.

    Examples
    --------
    >>> import numpy as np
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> cores = decompose_ring(x, [1, 2, 2, 1])
    >>> [core.shape for core in cores]
    [(1, 3, 2), (2, 3, 2), (2, 2, 1)]
    >>> np.round(np.einsum("aib,bjc,ckd->ijk", *cores)[0, 2, 1], 12)
    np.float64(2.0)
    """
    x = as_flycoo(x, check_coords=True)
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}, expected two modes or more")
    xp, first_rank = x._engine.xp, ranks[0]
    coords, values = x._sorted_nonzeros()
    # In this order, nonzeros with equal indices in the remaining modes are always neighbours.
    order = xp.lexsort(coords)
    coords, block = coords[:, order], values[order][:, None]
    cores = []
    for mode, size in enumerate(x.shape[:-1]):
        rank = ranks[1] * first_rank if mode == 0 else ranks[mode + 1]
        num_cells = _count_cells(x.shape[mode + 1 :], 1 if mode == 0 else first_rank, rank)
        rank = _limit_rank(rank, block.shape[1] * size, num_cells, mode == 0 and first_rank > 1)
        left, coords, remainder = _split_mode(x, coords, block, size, rank)
        if mode == 0:
            cores.append(left.reshape(size, first_rank, -1).transpose(1, 0, 2))
            coords, block = _open_ring(coords, remainder, first_rank, xp)
        else:
            cores.append(left.reshape(block.shape[1], size, rank))
            block = remainder
    last = xp.zeros((block.shape[1], x.shape[-1], first_rank), x.dtype)
    last[:, coords[0], coords[1]] = block.T
    return [*cores, last]


def print_shapes(kind: str, cores: Sequence[Array], first_mode: int = 0) -> None:
    """Print the shape of each core, as TensorLy does with ``verbose=True``."""
    for n, core in enumerate(cores, first_mode):
        print(f"{kind} factor {n % len(cores)} computed with shape {core.shape}")


def _count_cells(sizes: Sequence[int], first_rank: int, enough: int) -> int:
    """Count the columns of the next matrix to decompose, up to `enough`."""
    count = first_rank
    for size in sizes:
        count = min(count * size, enough)
    return count


def _limit_rank(rank: int, num_rows: int, num_columns: int, is_fixed: bool) -> int:
    if is_fixed and rank > min(num_rows, num_columns):
        raise ValueError(
            f"rank[0] * rank[1] is {rank}, expected at most the {num_rows} rows and the columns of "
            "the first unfolding; try another first `mode`"
        )
    return min(rank, num_rows, num_columns)


def _split_mode(
    x: FlycooTensor, coords: Array, block: Array, size: int, rank: int
) -> tuple[Array, Array, Array]:
    """Decompose the matrix with rows for (previous rank, this mode) and columns for later modes.

    `block` (C, previous rank) has the elements at `coords` (1 + number of later modes, C). Return
    the left vectors (previous rank * size, rank), the coordinates in the later modes without
    duplicates, and ``matrix.T @ left`` there.
    """
    xp = x._engine.xp
    is_new = xp.ones(coords.shape[1], bool)
    is_new[1:] = (coords[1:, 1:] != coords[1:, :-1]).any(axis=0)
    columns = xp.cumsum(is_new) - 1
    rows = coords[0][:, None] + size * xp.arange(block.shape[1])
    columns = xp.broadcast_to(columns[:, None], rows.shape)
    num_columns = int(is_new.sum())
    matrix = FlycooTensor(
        xp.stack([rows.reshape(-1), columns.reshape(-1)]), block.reshape(-1),
        (size * block.shape[1], max(num_columns, rank)), device=x.device,
    )  # fmt: skip
    left, _ = Unfolding(matrix, 0, is_exact=True).svd(rank)
    remainder = multiply_matricized(matrix, 1, [0], left)[:num_columns]
    return left, coords[1:, is_new], remainder


def _open_ring(
    coords: Array, remainder: Array, first_rank: int, xp: ModuleType
) -> tuple[Array, Array]:
    """Move the left rank of the first core into an additional last mode."""
    num_columns = coords.shape[1]
    ends = xp.repeat(xp.arange(first_rank), num_columns)
    coords = xp.concatenate([xp.tile(coords, (1, first_rank)), ends[None]])
    rank = remainder.shape[1] // first_rank
    block = remainder.reshape(num_columns, first_rank, rank).transpose(1, 0, 2)
    return coords, block.reshape(first_rank * num_columns, rank)
