"""Tensor rings, by one singular value decomposition a mode."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorly.tr_tensor import TRTensor, validate_tr_rank

from ..ops.lazy import ModeView
from ..ops.views import make_tensor, permute
from ..tensor.coo_cache import is_sparse
from ..tensor.tensor import FlycooTensor
from .ring_cores import decompose_ring, print_shapes
from .singular_vectors import check_svd
from .tensorly_loop import dense_to_tensorly

if TYPE_CHECKING:
    from sparse import SparseArray


@dense_to_tensorly
def tensor_ring(
    input_tensor: "FlycooTensor | SparseArray | ModeView",
    rank: int | float | str | Sequence[int],
    mode: int = 0,
    svd: str = "truncated_svd",
    verbose: bool = False,
    random_state: Any = None,
) -> TRTensor:
    """Decompose a sparse tensor, or a view of one, into a tensor ring.

    Gives what TensorLy gives, under any backend of TensorLy.

    Parameters
    ----------
    input_tensor : FlycooTensor, sparse.COO or a view
        Of two modes or more.
    rank : int, float, "same" or sequence of int
        Of each core; see `tensorly.tr_tensor.validate_tr_rank`.
    mode : int
        The mode that is decomposed first.
    svd : {"truncated_svd", "randomized_svd"}
        Both find the leading singular vectors to rounding.
    verbose : bool
        Whether to print the shapes of the cores.
    random_state
        Not used: nothing is random.

    Returns
    -------
    TRTensor
        Cores (R_n, I_n, R_n+1) in the dtype and on the device of `input_tensor`.

    Raises
    ------
    DensifyError
        With another `svd`.
    ValueError
        If the tensor has one mode, or `rank` does not fit; above all if the product of the first
        two ranks is more than the first unfolding has rows.

    Notes
    -----
    See `ring_cores.decompose_ring`.

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
    check_svd(svd, "tensor_ring", input_tensor.shape)
    ndim = len(input_tensor.shape)
    ranks = [int(r) for r in validate_tr_rank(input_tensor.shape, rank=rank)]
    x = permute(input_tensor, [*range(mode, ndim), *range(mode)]) if mode else input_tensor
    x = x if is_sparse(x) else make_tensor(x)
    # TensorLy turns all ndim + 1 of them, where the first rank occurs twice.
    ranks = (ranks[mode:] + ranks[:mode])[:ndim]
    cores = decompose_ring(x, [*ranks, ranks[0]])
    if verbose:
        print_shapes("TR", cores, mode)
    return TRTensor(cores[ndim - mode :] + cores[: ndim - mode])
