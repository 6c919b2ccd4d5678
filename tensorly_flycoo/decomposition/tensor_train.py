"""Tensor trains, by one SVD per mode."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorly.tt_tensor import TTTensor, validate_tt_rank

from ..ops.lazy import ModeView
from ..ops.views import make_tensor
from ..tensor.tensor import FlycooTensor
from .ranks import find_train_rank
from .ring_cores import decompose_ring, print_shapes
from .singular_vectors import check_svd
from .tensorly_loop import dense_to_tensorly

if TYPE_CHECKING:
    from sparse import SparseArray


@dense_to_tensorly
def tensor_train(
    input_tensor: "FlycooTensor | SparseArray | ModeView",
    rank: int | str | Sequence[int],
    svd: str = "truncated_svd",
    verbose: bool = False,
    random_state: Any = None,
) -> TTTensor:
    """Decompose a sparse tensor, or a view of one, into a tensor train.

    It gives TensorLy's results, under any backend.

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
        Cores (R_n, I_n, R_n+1) in the dtype and on the device of `input_tensor`.

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
    See `ring_cores.decompose_ring`.

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
    rank = find_train_rank(input_tensor, rank)
    x = make_tensor(input_tensor)
    ranks = [int(r) for r in validate_tt_rank(x.shape, rank=rank)]
    cores = decompose_ring(x, ranks)
    if verbose:
        print_shapes("TT", cores)
    return TTTensor(cores)
