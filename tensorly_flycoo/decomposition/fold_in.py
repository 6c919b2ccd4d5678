"""Rows of a factor for new indices, such as new users, without running a decomposition again."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..array_modules import Array, array_module
from ..checks import check_mode
from ..linalg.hals import solve_nonnegative
from ..linalg.tall_skinny import solve
from ..ops.mttkrp import mttkrp
from ..tensor.coo_cache import as_flycoo
from ..tensor.labelled import check_same_labels
from .cp_model import multiply_grams

if TYPE_CHECKING:
    from sparse import SparseArray

    from ..tensor.labelled import LabelledTensor
    from ..tensor.tensor import FlycooTensor

#: Sweeps over the columns of non-negative rows, which stop at the accuracy of the dtype.
_MAX_SWEEPS = 1000


def fold_in(
    cp_tensor: Any,
    x_new: "FlycooTensor | LabelledTensor | SparseArray",
    mode: int,
    *,
    non_negative: bool = False,
) -> Array:
    r"""Compute the factor rows of new indices of one mode; all other factors stay as they are.

    .. math:: \min_F |X_{new} - [w; F_0, \ldots, F, \ldots, F_{N-1}]|

    Parameters
    ----------
    cp_tensor : CPTensor or (weights, factors)
        The model. Weights (R,), or None for ones; factors (I_n, R). The old rows of `mode` are not
        used.
    x_new : FlycooTensor, LabelledTensor or sparse.COO
        The data of the new indices: any size in `mode`, and the model's in all others. With the
        dtype and on the device of the factors.
    mode : int
    non_negative : bool
        Whether the rows are non-negative, as those of `non_negative_parafac_hals`.

    Returns
    -------
    array (I_new, R)
        Rows that go with the model's weights. An index without nonzeros has a row of zeros.

    Raises
    ------
    TypeError
        If `x_new` is not sparse, or the model has another dtype or is on another device.
    ValueError
        If `mode` is out of range, a shape does not match, or labels of `x_new` differ from those of
        a `LabelledCP` in another mode.

    Notes
    -----
    One MTTKRP, whatever the number of rows, and one system of R equations for all of them.
    `parafac` with all other modes in ``fixed_modes`` converges to these rows in one iteration. (It
    never fixes the last mode; here any mode may be the new one.) With `non_negative`, up to
    1000 sweeps of HALS follow, of ``4 * I_new * R**2`` operations each. Results have the same bits
    in every run on one machine.

    References
    ----------
    Gillis and Glineur, "Accelerated Multiplicative Updates and Hierarchical ALS Algorithms for
    Nonnegative Matrix Factorization", Neural Computation 24, 2012.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, fold_in
    >>> model = (None, [np.ones((5, 1)), np.array([[1.0], [2.0]]), np.array([[3.0], [0.0]])])
    >>> new_users = FlycooTensor([[0, 0], [0, 1], [0, 0]], [6.0, 12.0], shape=(2, 2, 2))
    >>> fold_in(model, new_users, mode=0)
    array([[2.],
           [0.]])
    """
    weights, factors = cp_tensor
    mode = check_mode(mode, len(factors))
    check_same_labels(x_new, cp_tensor, skip=mode)
    x = as_flycoo(x_new, check_coords=True)
    if x.ndim != len(factors):
        raise ValueError(f"x_new has {x.ndim} modes, expected {len(factors)}, as the model has")
    xp, old = array_module(factors[mode]), factors[mode]
    factors = list(factors)
    factors[mode] = xp.zeros((x.shape[mode], old.shape[1]), old.dtype)
    product = mttkrp(x, factors, mode, weights=weights)
    gram = multiply_grams(weights, factors, skip=mode)
    if not non_negative:
        return solve(gram.T, product.T).T
    rows, tolerance = factors[mode], float(np.finfo(x.dtype).eps) ** 1.5
    product, gram = xp.ascontiguousarray(product), xp.ascontiguousarray(gram)
    solve_nonnegative(product, gram, rows, _MAX_SWEEPS, tolerance)
    return rows
