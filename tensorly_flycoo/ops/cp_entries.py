"""Entries of a CP model, without forming its tensor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorly.parafac2_tensor import Parafac2Tensor
from tensorly.tucker_tensor import TuckerTensor

from ..base.array_modules import Array, array_module, is_cupy, move, share
from ..base.checks import check_coords, check_inside
from ..base.watching import watched
from ..spread.row_shards import gather

#: Numbers in an array with a row for each entry: few enough for a core's caches on a CPU, enough to
#: fill a GPU.
_CPU_BLOCK_NUMBERS = 2**16
_GPU_BLOCK_NUMBERS = 2**24


def choose_block_size(array: Array, row_length: int) -> int:
    """Choose how many rows of `row_length` numbers to compute together on the array's device."""
    max_numbers = _CPU_BLOCK_NUMBERS
    if is_cupy(array):
        max_numbers = _GPU_BLOCK_NUMBERS
    return max(1, max_numbers // row_length)


@watched
def cp_to_entries(cp_tensor: Any, coords: Array) -> Array:
    r"""Compute given entries of a CP model, without forming its tensor.

    .. math:: y_k = \sum_r w_r \prod_n F_n[c_{n,k}, r]

    Use it to predict ratings in a recommender, or to check a fit of `observed_parafac`. For the
    rows of a table use `LabelledCP.predict`.

    Parameters
    ----------
    cp_tensor : CPTensor or (weights, factors)
        Weights (R,) or None, and factors (I_n, R), one per mode: NumPy's or CuPy's.
    coords : integer array (ndim, count)
        The entries, in any order; repeats allowed.

    Returns
    -------
    array (count,)
        With the dtype of the first factor, on the device of the factors.

    Raises
    ------
    TypeError
        If `coords` are not integers.
    ValueError
        If `coords` do not have a row for each factor, or an index is out of range.

    Notes
    -----
    ``count * R * ndim`` operations, in blocks of entries. Results have the same bits in every run.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import cp_to_entries
    >>> factors = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 1.0], [5.0, 0.0]])]
    >>> cp_to_entries((None, factors), [[0, 1], [0, 1]])
    array([ 3., 15.])
    """
    if hasattr(coords, "columns") or hasattr(coords, "labels"):
        raise TypeError("coords has labels, expected integers: pass a table to LabelledCP.predict")
    weights, factors = take_model(cp_tensor)
    shape = tuple(factor.shape[0] for factor in factors)
    coords = move(check_coords(coords, shape), array_module(factors[0]))
    check_inside(coords, shape)
    return evaluate_model(coords, weights, factors)


def take_model(cp_tensor: Any) -> tuple[Array | None, list[Array]]:
    """Return a CP model's weights and factors as arrays of NumPy or CuPy, shared or gathered.

    The model is TensorLy's, a pair, or a ktensor of pyttb; a ValueError refuses other kinds.
    """
    kind = find_kind(cp_tensor)
    if kind != "CP":
        raise ValueError(f"cp_tensor is a {type(cp_tensor).__name__}, a {kind} model, expected CP")
    if hasattr(cp_tensor, "factor_matrices"):
        cp_tensor = cp_tensor.weights, cp_tensor.factor_matrices
    weights, factors = cp_tensor
    factors = [share(gather(factor)) for factor in factors]
    weights = share(weights)
    if weights is not None:  # TensorLy makes them on the host if its backend is NumPy's
        weights = move(weights, array_module(factors[0]))
    return weights, factors


def find_kind(model: Any) -> str:
    """Return the kind of a model: "CP", "Tucker", "PARAFAC2" or "coupled"."""
    if isinstance(model, Parafac2Tensor):
        return "PARAFAC2"
    if hasattr(model, "cp_tensors"):  # our CoupledCP
        return "coupled"
    if isinstance(model, TuckerTensor):
        return "Tucker"
    if isinstance(model, tuple | list) and len(model) == 2:
        num_axes = getattr(model[0], "ndim", 1)  # None stands for weights
        if num_axes != 1:  # a core
            return "Tucker"
    return "CP"


def evaluate_model(coords: Array, weights: Array | None, factors: Sequence[Array]) -> Array:
    """Compute `cp_to_entries` without checking `coords`."""
    first = factors[0]
    values = array_module(first).empty(coords.shape[1], first.dtype)
    block_size = choose_block_size(first, first.shape[1])
    for start in range(0, coords.shape[1], block_size):
        block = slice(start, start + block_size)
        first_ids, *other_ids = coords[:, block]
        rows = first[first_ids]  # a copy, which becomes the product of all factors' rows
        for factor, row_ids in zip(factors[1:], other_ids, strict=True):
            rows *= factor[row_ids]
        if weights is None:
            values[block] = np.sum(rows, axis=1)
        else:
            values[block] = rows @ weights
    return values
