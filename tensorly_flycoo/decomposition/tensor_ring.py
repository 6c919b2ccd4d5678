"""Tensor rings, by one SVD per mode."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorly.tr_tensor import TRTensor, validate_tr_rank

from ..ops.lazy import ModeView
from ..ops.views import make_tensor, permute
from ..tensor.tensor import FlycooTensor
from .ranks import find_train_rank
from .ring_cores import decompose_ring, print_shapes
from .singular_vectors import check_svd
from .tensorly_loop import dense_to_tensorly

if TYPE_CHECKING:
    from sparse import SparseArray


@dense_to_tensorly
def tensor_ring(
    input_tensor: "FlycooTensor | SparseArray | ModeView",
    rank: int | str | Sequence[int],
    mode: int = 0,
    svd: str = "truncated_svd",
    verbose: bool = False,
    random_state: Any = None,
) -> TRTensor:
    """Decompose a sparse tensor, or a view of one, into a tensor ring.

    It gives TensorLy's results, under any backend.

    Parameters
    ----------
    input_tensor : FlycooTensor, sparse.COO or a view
        With two modes or more.
    rank : int, "same" or sequence of int
        The ranks of the cores; see `tensorly.tr_tensor.validate_tr_rank`.
    mode : int
        The mode to decompose first.
    svd : {"truncated_svd", "randomized_svd"}
        Both give the leading singular vectors to rounding error.
    verbose : bool
        Whether to print the shapes of the cores.
    random_state
        Ignored: nothing is random.

    Returns
    -------
    TRTensor
        Cores (R_n, I_n, R_n+1) in the dtype and on the device of `input_tensor`.

    Raises
    ------
    DensifyError
        If `svd` is any other method.
    TypeError
        If `rank` is no integer, such as a fraction, or has one that is none.
    ValueError
        If the tensor has one mode, or `rank` has a number below 1 or does not match: in particular,
        the product of the first two ranks must not exceed the rows of the first unfolding.

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
    check_svd(svd, "tl.decomposition.tensor_ring", input_tensor.shape)
    ndim = len(input_tensor.shape)
    rank = find_train_rank(input_tensor, rank)
    ranks = [int(r) for r in validate_tr_rank(input_tensor.shape, rank=rank)]
    x = permute(input_tensor, [*range(mode, ndim), *range(mode)]) if mode else input_tensor
    # TensorLy rotates all ndim + 1 ranks, in which the first one occurs twice.
    ranks = (ranks[mode:] + ranks[:mode])[:ndim]
    cores = decompose_ring(make_tensor(x), [*ranks, ranks[0]])
    if verbose:
        print_shapes("TR", cores, mode)
    return TRTensor(cores[ndim - mode :] + cores[: ndim - mode])
