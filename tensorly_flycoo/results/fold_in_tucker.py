r"""Rows of a factor of a Tucker model for new indices of its mode.

A cell :math:`(i, c)` of the model is :math:`f_i^T d_c`, where f is the row of its index in the mode
that is folded in, and the design :math:`d_c = G_{(n)} (u_{c_1} \otimes u_{c_2} \otimes \ldots)`
takes the rows of all other factors. So the rows are those of a least-squares problem.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..base.array_modules import Array, array_module
from ..base.checks import check_matrix
from ..engines.tall import multiply, transposed_product
from ..loop.masks import MissingEntries, take_observed
from ..loop.observed_rows import ListedCells
from ..loop.row_systems import solve_row_systems
from ..ops.cp_entries import choose_block_size
from ..ops.ttmc import multiply_nonempty_rows
from ..tensor.tensor import FlycooTensor


def fold_in_tucker(
    core: Array,
    factors: Sequence[Array],
    x: FlycooTensor,
    mode: int,
    *,
    missing: MissingEntries | None = None,
    observed: bool = False,
    non_negative: bool = False,
) -> Array:
    r"""Compute the factor rows of new indices of one mode; the core and other factors stay.

    .. math:: \min_F |X_{\mathrm{new}} - G \times_n F \times_{m \ne n} U_m|

    over the known cells. The factors need not be orthonormal.

    Parameters
    ----------
    core : array (R_0, ..., R_{N-1})
    factors : sequence of array (I_n, R_n)
        In the dtype and on the device of `x`; that of `mode` is not used.
    x : FlycooTensor
        The data of the new indices: any size in `mode`, and the model's in all others.
    mode : int
        From 0 to N - 1.
    missing : MissingEntries, optional
        Cells of `x` that are unknown, whatever it stores there: all listed, no blocks.
    observed : bool
        Whether all cells but the nonzeros are unknown.
    non_negative : bool
        Whether the rows are non-negative.

    Returns
    -------
    array (I_new, R_mode)
        In the dtype of `x`. Of several minimisers the one with the least elements, each times the
        length of its column of designs; zeros for an index without known cells.

    Raises
    ------
    TypeError
        If a factor is not an array on the device of `x`, or has another dtype.
    ValueError
        If the shapes of `x`, the core and the factors do not match.

    Notes
    -----
    With all cells known: one product of `x` with all other factors (`ops.ttmc`), and one system of
    R_mode equations, whose matrix takes the products of the core with the others' Gram matrices. An
    unknown cell (with `observed`, a known one) takes ``core.size`` operations, and each row that
    has some a system of its own (`solve_row_systems`). Results have the same bits in every run.

    Examples
    --------
    >>> core = np.array([[2.0]])
    >>> factors = [np.zeros((5, 1)), np.array([[1.0], [3.0]])]
    >>> x = FlycooTensor([[0, 0, 1], [0, 1, 1]], [4.0, 12.0, 6.0], shape=(2, 2))
    >>> fold_in_tucker(core, factors, x, mode=0, observed=True)
    array([[2.],
           [1.]])
    """
    fixed = {n: factor for n, factor in enumerate(factors) if n != mode}
    _check(core, fixed, x)
    known_data = take_observed(x, missing)
    exact = core.astype(np.float64, copy=False)
    gram = _multiply_grams(exact, fixed, mode)
    if observed:
        rows = solve_row_systems(
            x._engine.xp.zeros((x.shape[mode], core.shape[mode])),
            0 * gram,
            _list_known(known_data, exact, fixed, mode),
            lengths=np.sqrt(gram.diagonal()),
            non_negative=non_negative,
        )
    else:
        missing_cells = None
        if missing is not None:
            missing_cells = _list_missing(missing, exact, fixed, mode)
        rows = solve_row_systems(
            _multiply_data(known_data, exact, fixed, mode),
            gram,
            missing_cells,
            non_negative=non_negative,
        )
    return rows.astype(x.dtype, copy=False)


# `fixed` are the factors of all modes but the one that is folded in, by mode.


def _check(core: Array, fixed: Mapping[int, Array], x: FlycooTensor) -> None:
    """Refuse a core or factors that do not match `x`."""
    if core.ndim != x.ndim or len(fixed) != x.ndim - 1:
        raise ValueError(
            f"x has {x.ndim} modes, expected {core.ndim}, as the core has, "
            f"and as there are factors: {len(fixed) + 1}"
        )
    for n, factor in fixed.items():
        check_matrix(factor, f"factors[{n}]", x.shape[n], x.dtype, x._engine.array_type)
        if factor.shape[1] != core.shape[n]:
            raise ValueError(
                f"factors[{n}] has shape {factor.shape}, expected ({x.shape[n]}, {core.shape[n]}), "
                f"columns as the core, which is {core.shape}, has in mode {n}"
            )


def _multiply_data(x: FlycooTensor, core: Array, fixed: Mapping[int, Array], mode: int) -> Array:
    """Multiply the data by all other factors and the core: float64 (I_new, R_mode)."""
    products = x._engine.xp.zeros((x.shape[mode], core.shape[mode]))
    if x.nnz:
        rows, numbers = multiply_nonempty_rows(x, mode, fixed)
        products[numbers] = multiply(rows, _unfold(core, mode).T.astype(x.dtype, order="C"))
    return products


def _multiply_grams(core: Array, fixed: Mapping[int, Array], mode: int) -> Array:
    """Multiply the core by the factors' Gram matrices and itself: float64 (R_mode, R_mode)."""
    product = core
    for n, factor in fixed.items():
        exact = factor.astype(np.float64, copy=False)
        gram = transposed_product(exact, exact)
        product = np.moveaxis(np.tensordot(gram, product, axes=(1, n)), 0, n)
    return _unfold(core, mode) @ _unfold(product, mode).T


def _unfold(core: Array, mode: int) -> Array:
    """Return a core as a matrix with a row for each index of a mode, other modes in order.

    >>> _unfold(np.arange(8).reshape(2, 2, 2), 1).tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    return np.moveaxis(core, mode, 0).reshape(core.shape[mode], -1)


def _list_known(x: FlycooTensor, core: Array, fixed: Mapping[int, Array], mode: int) -> ListedCells:
    """List the nonzeros, where only they are known."""
    coords, values = x._sorted_nonzeros()
    designs = _make_designs(core, fixed, mode, coords)
    ones = array_module(values).ones(values.size)
    return ListedCells(coords[mode], designs, weights=ones, targets=values.astype(np.float64))


def _list_missing(
    missing: MissingEntries, core: Array, fixed: Mapping[int, Array], mode: int
) -> ListedCells:
    """List missing cells with weight -1: they cancel in the Gram matrix, which counts all cells."""
    xp = array_module(missing.coords)
    designs = _make_designs(core, fixed, mode, missing.coords)
    zeros = xp.zeros(missing.count)
    return ListedCells(missing.coords[mode], designs, weights=zeros - 1, targets=zeros)


def _make_designs(
    core: Array, fixed: Mapping[int, Array], mode: int, coords: Array
) -> Callable[[Array], Array]:
    """Make a function from the numbers of cells, of `coords` (ndim, count), to their designs.

    The design of a cell (R_mode,) is the core times the rows of all other factors there: its
    product with the new row is the model's value.
    """
    rank = core.shape[mode]
    last = np.moveaxis(core, mode, -1)  # its axes: the other modes in order, and `mode`
    block_size = choose_block_size(core, core.size)

    def evaluate(places: Array) -> Array:
        """Contract the core with a row of each factor, cell by cell: (n, R_mode)."""
        product = last[None]
        for n, factor in fixed.items():
            rows = factor[coords[n][places]].astype(np.float64, copy=False)
            unfolded = product.reshape(len(product), rows.shape[1], -1)
            product = (rows[:, None, :] @ unfolded)[:, 0]
        return product

    def make(places: Array) -> Array:
        """Evaluate some cells at a time: the first contraction is as large as cores."""
        flat = places.reshape(-1)
        designs = array_module(core).empty((flat.size, rank))
        for start in range(0, flat.size, block_size):
            designs[start : start + block_size] = evaluate(flat[start : start + block_size])
        return designs.reshape(*places.shape, rank)

    return make
