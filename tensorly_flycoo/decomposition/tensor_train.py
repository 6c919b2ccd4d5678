"""Tensor trains and tensor rings, by one SVD per mode.

After each SVD the remainder of the tensor, ``diag(S) @ V``, has a column for each cell of the
remaining modes. At most nnz of these columns are nonzero, and only those are kept.
"""

import math
from collections.abc import Sequence
from typing import Any

from tensorly.tr_tensor import TRTensor, validate_tr_rank
from tensorly.tt_tensor import TTTensor, validate_tt_rank

from ..base.array_modules import Array
from ..base.checks import check_mode
from ..format.ordering import count_true
from ..loop.guarding import describe_as
from ..loop.initial_guess import check_svd
from ..loop.ranks import find_ranks
from ..loop.scaling import find_exponent, shift_values
from ..ops.contraction import multiply_matricized
from ..ops.views import Viewable, make_tensor, permute
from ..svd.unfolding import Unfolding
from ..tensor.tensor import FlycooTensor


def tensor_train(
    input_tensor: Viewable,
    rank: int | str | Sequence[int],
    svd: str = "truncated_svd",
    verbose: bool = False,
    random_state: Any = None,
) -> TTTensor:
    """Decompose a sparse tensor, or a view of one, into a tensor train.

    Results are TensorLy's, under any backend.

    Parameters
    ----------
    input_tensor : FlycooTensor, sparse.COO or a view
        With two modes or more.
    rank : int, "same" or sequence of int
        The ranks of the cores; see `tensorly.tt_tensor.validate_tt_rank`. A rank larger than a side
        of the decomposed matrix is lowered to it.
    svd : {"truncated_svd", "randomized_svd"}
        Both give the leading singular vectors to rounding error.
    verbose : bool
        Whether to print the shapes of the cores.
    random_state
        Ignored: nothing is random.

    Returns
    -------
    TTTensor
        Cores (R_n, I_n, R_n+1) in the dtype and on the device of `input_tensor`. The largest
        element of each singular vector is positive.

    Raises
    ------
    DensifyError
        If `svd` is any other method.
    TypeError
        If `rank` is no integer, such as a fraction, or has one that is none.
    ValueError
        If the tensor has one mode, or `rank` has a number below 1 or does not match.

    Notes
    -----
    Each mode but the last takes a matrix of up to ``nnz * rank`` nonzeros, its leading singular
    vectors, and one MTTKRP to multiply the matrix by these. TensorLy decomposes the same matrices
    with all their columns.

    References
    ----------
    Oseledets, "Tensor-train decomposition", SIAM Journal on Scientific Computing 33, 2011.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 3, 2))
    >>> [core.shape for core in tensor_train(x, [1, 2, 2, 1])]
    [(1, 3, 2), (2, 3, 2), (2, 2, 1)]
    """
    check_svd(svd, "tl.decomposition.tensor_train", input_tensor.shape)
    rank = find_ranks(input_tensor, rank)
    x = make_tensor(input_tensor)
    cores = decompose_ring(x, [int(r) for r in validate_tt_rank(x.shape, rank=rank)])
    if verbose:
        print_shapes("TT", cores)
    return TTTensor(cores)


@describe_as(tensor_train)
def tensor_ring(
    input_tensor: Viewable,
    rank: int | str | Sequence[int],
    mode: int = 0,
    svd: str = "truncated_svd",
    verbose: bool = False,
    random_state: Any = None,
) -> TRTensor:
    """Decompose a sparse tensor, or a view of one, into a tensor ring.

    Results are TensorLy's, under any backend.

    Parameters
    ----------
    rank : int, "same" or sequence of int
        The ranks of the cores; see `tensorly.tr_tensor.validate_tr_rank`.
    mode : int
        The mode to decompose first.

    Returns
    -------
    TRTensor
        Cores (R_n, I_n, R_n+1) in the dtype and on the device of `input_tensor`.

    Raises
    ------
    ValueError
        If the product of the first two ranks exceeds the rows or columns of the first unfolding.
        Other errors, and the cost, are as for `tensor_train`, a ring whose first rank is 1.

    References
    ----------
    Zhao, Zhou, Xie, Zhang and Cichocki, "Tensor Ring Decomposition", arXiv:1606.05535, 2016.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(6, 3, 2))
    >>> [core.shape for core in tensor_ring(x, [2, 2, 2, 2])]
    [(2, 6, 2), (2, 3, 2), (2, 2, 2)]
    """
    check_svd(svd, "tl.decomposition.tensor_ring", input_tensor.shape)
    ndim = len(input_tensor.shape)
    mode = check_mode(mode, ndim)
    rank = find_ranks(input_tensor, rank)
    ranks = [int(r) for r in validate_tr_rank(input_tensor.shape, rank=rank)]
    x = permute(input_tensor, [*range(mode, ndim), *range(mode)]) if mode else input_tensor
    # TensorLy rotates all ndim + 1 ranks, in which the first one occurs twice.
    ranks = (ranks[mode:] + ranks[:mode])[:ndim]
    cores = decompose_ring(make_tensor(x), [*ranks, ranks[0]])
    if verbose:
        print_shapes("TR", cores, mode)
    return TRTensor(cores[ndim - mode :] + cores[: ndim - mode])


def decompose_ring(x: FlycooTensor, ranks: Sequence[int]) -> list[Array]:
    r"""Decompose a sparse tensor into a ring of cores, or a train if ``ranks[0] == 1``.

    .. math:: X[i_0, ..., i_{N-1}] \approx \mathrm{tr}(G_0[:, i_0, :] \cdots G_{N-1}[:, i_{N-1}, :])

    `ranks` are ``ndim + 1``, the last equal to the first; one in between is lowered to the smaller
    side of the decomposed matrix. The cores are (ranks[n], I_n, ranks[n + 1]).
    """
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}, expected two modes or more")
    xp, first_rank = x._engine.xp, ranks[0]
    exponent = find_exponent(x._layout.norm, x.nnz, x.dtype)
    x = shift_values(x, -exponent) if exponent else x
    coords, values = x._sorted_nonzeros()
    # In this order, nonzeros with equal indices in the remaining modes are always neighbours.
    order = xp.lexsort(coords)
    coords, block = coords[:, order], values[order][:, None]
    cores = []
    for mode, size in enumerate(x.shape[:-1]):
        rank = ranks[1] * first_rank if mode == 0 else ranks[mode + 1]
        num_rows, num_columns = block.shape[1] * size, math.prod(x.shape[mode + 1 :])
        if mode == 0 and rank > min(num_rows, num_columns) and first_rank > 1:
            raise ValueError(
                f"rank[0] * rank[1] is {rank}, expected at most the {num_rows} rows and the "
                "columns of the first unfolding; try another first `mode`"
            )
        rank = min(rank, num_rows, num_columns * (1 if mode == 0 else first_rank))
        left, coords, remainder = _split_mode(x, coords, block, size, rank)
        if mode > 0:
            cores.append(left.reshape(block.shape[1], size, rank))
            block = remainder
            continue
        cores.append(left.reshape(size, first_rank, -1).transpose(1, 0, 2))
        # The left rank of the first core becomes an additional last mode.
        ends = xp.repeat(xp.arange(first_rank), len(remainder))
        coords = xp.concatenate([xp.tile(coords, (1, first_rank)), ends[None]])
        block = remainder.reshape(-1, first_rank, rank // first_rank).transpose(1, 0, 2)
        block = block.reshape(-1, rank // first_rank)
    last = xp.zeros((block.shape[1], x.shape[-1], first_rank), x.dtype)
    last[:, coords[0], coords[1]] = block.T
    return [*cores, last * x.dtype.type(2.0**exponent)]


def print_shapes(kind: str, cores: Sequence[Array], first_mode: int = 0) -> None:
    """Print the shape of each core, as TensorLy does with ``verbose=True``."""
    for n, core in enumerate(cores, first_mode):
        print(f"{kind} factor {n % len(cores)} computed with shape {core.shape}")


def _split_mode(
    x: FlycooTensor, coords: Array, block: Array, size: int, rank: int
) -> tuple[Array, Array, Array]:
    """Decompose the matrix with rows for (previous rank, this mode) and columns for later modes.

    `block` (C, previous rank) has its elements at `coords`. Return the left vectors, the distinct
    coordinates in the later modes, and ``matrix.T @ left`` there.
    """
    xp = x._engine.xp
    is_new = xp.ones(coords.shape[1], bool)
    is_new[1:] = (coords[1:, 1:] != coords[1:, :-1]).any(axis=0)
    columns = xp.cumsum(is_new) - 1
    rows = coords[0][:, None] + size * xp.arange(block.shape[1])
    columns = xp.broadcast_to(columns[:, None], rows.shape)
    num_columns = count_true(is_new)
    matrix = FlycooTensor(
        xp.stack([rows.reshape(-1), columns.reshape(-1)]), block.reshape(-1),
        (size * block.shape[1], max(num_columns, rank)), device=x.device,
    )  # fmt: skip
    left, _ = Unfolding(matrix, 0, is_exact=True).svd(rank)
    return left, coords[1:, is_new], multiply_matricized(matrix, 1, [0], left)[:num_columns]
