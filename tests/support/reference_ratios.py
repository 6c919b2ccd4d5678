"""An executable specification of the MTTKRP of ratios, as `reference.py` is of FLYCOO's MTTKRP.

Not in the paper: it is the step of a Poisson CP decomposition by multiplicative updates [1]_.

References
----------
.. [1] Chi and Kolda, "On Tensors, Sparsity, and Nonnegative Factorizations", SIAM Journal on Matrix
   Analysis and Applications 33, 2012.
"""

import numpy as np
from reference import (
    Array,
    Shape,
    Values,
    elementwise_computation,
    mttkrp,
    oracle_bound,
    rounding_bound,
)


def evaluate(coords: Array, factors: list[Array], mode: int) -> Array:
    """Compute the values of a CP model at `coords`, as the product of one mode with the others.

    Examples
    --------
    >>> evaluate(np.array([[0], [1]]), [np.array([[2.0]]), np.array([[3.0], [4.0]])], 0)
    array([8.])
    """
    others = elementwise_computation(coords, np.ones(coords.shape[1]), factors, mode)
    return (others * factors[mode][coords[mode]]).sum(axis=1)


def mttkrp_of_ratios(
    coords: Array,
    values: Values,
    shape: Shape,
    factors: list[Array],
    mode: int,
    smallest: float,
) -> tuple[Array, float]:
    """Compute the MTTKRP of the values divided by the model's, and the sum of values * log(model).

    Parameters
    ----------
    coords, values, shape, mode
        As for `reference.mttkrp`, but coordinates are distinct.
    factors : list of (I_n, R) arrays
        Non-negative; all are read.
    smallest : float
        The model divides as this number where it is smaller.

    Returns
    -------
    (I_mode, R) float64 array, and float

    Examples
    --------
    >>> factors = [np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])]
    >>> product, log_sum = mttkrp_of_ratios(np.array([[1], [0]]), [12.0], (2, 2), factors, 0, 0.0)
    >>> product.ravel(), round(log_sum, 6)
    (array([0., 6.]), 21.501114)
    """
    model = evaluate(coords, factors, mode)
    values = np.asarray(values, dtype=np.float64)
    ratios = values / np.maximum(model, smallest)
    with np.errstate(divide="ignore"):
        log_sum = float((values * np.log(model)).sum())
    return mttkrp(coords, ratios, shape, factors, mode), log_sum


def ratios_error_bound(
    coords: Array,
    values: Values,
    shape: Shape,
    factors: list[Array],
    mode: int,
    smallest: float,
    dtype: np.dtype | type | str,
    *,
    additions: Array | None = None,
) -> tuple[Array, float]:
    """Bound the difference of `mttkrp_of_ratios` and a result in `dtype`, without underflow.

    All terms are non-negative, so the model's value goes through R + ndim roundings at most, and
    its ratio through one more; then comes MTTKRP (see `reference.mttkrp_error_bound`). The
    logarithm has the absolute error of the model's value, besides its own.

    Examples
    --------
    >>> factors = [np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])]
    >>> arguments = (np.array([[1], [0]]), [12.0], (2, 2), factors, 0, 0.0, "float32")
    >>> bound, log_bound = ratios_error_bound(*arguments)
    >>> bool(bound[1] < 1e-5), bool(log_bound < 1e-4)
    (True, True)
    """
    product, _ = mttkrp_of_ratios(coords, values, shape, factors, mode, smallest)
    row_nnz = np.bincount(coords[mode], minlength=shape[mode])
    additions = row_nnz if additions is None else additions
    of_model = factors[0].shape[1] + len(shape) + 1
    bound = rounding_bound((additions + len(shape) + of_model)[:, np.newaxis], product, dtype)
    bound += oracle_bound(row_nnz[:, np.newaxis], len(shape) + of_model, product)
    values = np.abs(np.asarray(values, dtype=np.float64))
    logs = np.abs(np.log(evaluate(coords, factors, mode)))
    log_bound = rounding_bound(of_model, values.sum(), dtype)
    log_bound += rounding_bound(2 * len(values), (values * logs).sum(), np.float64)
    return bound, float(log_bound)


def mttkrp_of_products(
    coords: Array,
    values: Values,
    shape: Shape,
    factors: list[Array],
    mode: int,
    dtype: np.dtype | type | str,
    *,
    additions: Array | None = None,
) -> tuple[Array, Array]:
    """Compute the MTTKRP of the values times the model's, and bound its rounding errors in `dtype`.

    Each model value is a sum of R products of ndim numbers; see `ratios_error_bound`, whose bound
    here is relative to the same sums of magnitudes.

    Examples
    --------
    >>> factors = [np.array([[1.0], [-2.0]]), np.array([[3.0], [4.0]])]
    >>> arguments = (np.array([[1], [0]]), [12.0], (2, 2), factors, 0, "float32")
    >>> product, bound = mttkrp_of_products(*arguments)
    >>> product.ravel(), bool(bound[1] < 1e-3)
    (array([   0., -216.]), True)
    """
    values = np.asarray(values, dtype=np.float64)
    product, magnitude = (
        mttkrp(coords, made(values) * evaluate(coords, of, mode), shape, of, mode)
        for made, of in ((np.asarray, factors), (np.abs, [np.abs(factor) for factor in factors]))
    )
    row_nnz = np.bincount(coords[mode], minlength=shape[mode])
    additions = row_nnz if additions is None else additions
    of_terms = 2 * len(shape) + factors[0].shape[1] + 1
    bound = rounding_bound((additions + of_terms)[:, np.newaxis], magnitude, dtype)
    return product, bound + oracle_bound(row_nnz[:, np.newaxis], of_terms, magnitude)
