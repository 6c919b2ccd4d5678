"""Tensor trains of matrices: each core has one mode for rows and one for columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorly.tt_matrix import TTMatrix

from ..checks import densify_error
from ..ops.views import permute, reshape
from ..tensor.tensor import FlycooTensor
from .tensor_train import tensor_train
from .tensorly_loop import dense_to_tensorly

if TYPE_CHECKING:
    from sparse import SparseArray


@dense_to_tensorly
def tensor_train_matrix(
    tensor: "FlycooTensor | SparseArray",
    rank: int | str | Sequence[int],
    svd: str = "truncated_svd",
    verbose: bool = False,
    random_state: Any = None,
) -> TTMatrix:
    """Decompose a sparse tensor (I_1, ..., I_d, J_1, ..., J_d) into a train of matrices (I_n, J_n).

    It gives TensorLy's results, under any backend.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
        With an even number of modes, four or more: first the row modes of the matrix that it
        represents, then the column modes.
    rank : int, "same" or sequence of int
        The ranks of the cores; see `tensorly.tt_tensor.validate_tt_rank`.
    svd : {"truncated_svd", "randomized_svd"}
        Both give the leading singular vectors to rounding error.
    verbose : bool
        Whether to print the shapes of the cores.
    random_state
        Ignored: nothing is random.

    Returns
    -------
    TTMatrix
        Cores (R_n, I_n, J_n, R_n+1) in the dtype and on the device of `tensor`.

    Raises
    ------
    DensifyError
        If `tensor` has two modes, so that its one core is the dense matrix, or `svd` is any other
        method.
    TypeError
        If `rank` is no integer, such as a fraction, or has one that is none.
    ValueError
        If `tensor` has an odd number of modes, or `rank` has a number below 1 or does not
        match.

    Notes
    -----
    See `ring_cores.decompose_ring`.

    References
    ----------
    Oseledets, "Approximation of 2^d x 2^d matrices using tensor decomposition", SIAM Journal on
    Matrix Analysis and Applications 31, 2010.

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((4, 5, 6, 7), 200, random_state=0)
    >>> [core.shape for core in tensor_train_matrix(x, [1, 3, 1])]
    [(1, 4, 6, 3), (3, 5, 7, 1)]
    """
    num_pairs, is_odd = divmod(tensor.ndim, 2)
    if is_odd:
        raise ValueError(f"tensor has shape {tensor.shape}, expected an even number of modes")
    if num_pairs == 1:
        instead = "its one core is the matrix itself: use four modes or more"
        raise densify_error("tl.decomposition.tensor_train_matrix", tensor.shape, instead)
    sizes = list(zip(tensor.shape[:num_pairs], tensor.shape[num_pairs:], strict=True))
    pairs = permute(tensor, [m for n in range(num_pairs) for m in (n, n + num_pairs)])
    train = tensor_train(reshape(pairs, [i * j for i, j in sizes]), rank, svd, verbose)
    cores = [
        core.reshape(core.shape[0], i, j, core.shape[-1])
        for core, (i, j) in zip(train.factors, sizes, strict=True)
    ]
    return TTMatrix(cores)
