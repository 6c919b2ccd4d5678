"""Rows of a factor that tensors and matrices share, for new labels such as new users."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_choice, check_real
from ..engines import select_engine
from ..engines.tall import solve_semidefinite
from ..loop.coupled_blocks import (
    Block,
    group_rows,
    join_labels,
    open_blocks,
    to_exact,
    weigh_divided,
)
from ..loop.cp_model import multiply_grams
from ..loop.hals import solve_nonnegative
from ..loop.scaling import find_exponent
from ..loop.whole_tensor import WholeTensor
from ..ops.cp_entries import find_kind
from ..tensor.labelled import take_labels
from ..tensor.tensor import FlycooTensor

#: Sweeps over the columns of non-negative rows, and the change of squares that ends them.
_MAX_SWEEPS = 10_000
_TOLERANCE = 1e-24


class NewRows(NamedTuple):
    """The rows (I_new, R) of new labels of a mode, and the labels; None if they have none."""

    rows: Array
    labels: np.ndarray | None


def fold_in_coupled(
    model: Any,
    blocks: Iterable[Any],
    mode: str,
    *,
    l2_reg: float = 0,
    non_negative: bool = False,
    missing: str = "zero",
) -> NewRows:
    r"""Compute the rows of new labels of one mode of a coupled model, from any of its blocks.

    .. math:: \min_F \sum_b \omega_b \, |X_{b,\mathrm{new}} - [w_b; \ldots, F, \ldots]|^2
        + \lambda \sum_b \omega_b \sum_r w_{b,r}^2 |f_r|^2

    All other factors and the weights stay as they are. Of a new user only the attributes may be
    known: then the block of attributes alone is given, and that of the events predicted.

    Parameters
    ----------
    model : CoupledCP
    blocks : sequence of (data, modes)
        New data of some blocks of the model, as for `coupled_parafac`, with any number of rows in
        `mode`. The names of their modes say which blocks; their axes may come in any order. If the
        model has two blocks of the same modes, data of all of them are given, in its order.
    mode : str
        The name of the mode of the new rows. They are joined by label, or else by position.
    l2_reg : float
        :math:`\lambda`, the ridge of `coupled_parafac`, of all blocks of the model with `mode`.
    non_negative : bool
        Whether the rows are non-negative, as of a mode in `nn_modes`.
    missing : {"zero", "unknown"}
        What a given block has in the cells of a label that it lacks, in any mode, and in rows of
        `mode` without nonzeros: zeros, or unknown values. Blocks that are not given are unknown.

    Returns
    -------
    NewRows
        The pair of the rows, an array (I_new, R) in the dtype and on the device of the model's
        factors, and their labels. They belong to other factors with columns of norm 1, and go with
        the weights of each block. A row that no block knows is zero.

    Raises
    ------
    TypeError
        If `model` is no CoupledCP, a block is no pair, is a table, holds complex numbers or is on
        another device than the others, or `l2_reg` is no number.
    ValueError
        If the model does not have `mode` or blocks of these modes; a block lacks `mode`; another
        mode has labels that the model has not, or without labels another size; only some blocks
        label `mode`, or the numbers of its rows differ without labels; data hold nan or infinity;
        `l2_reg` is below 0; or a model of an older file has no `block_weights`.

    Notes
    -----
    One MTTKRP of each block, and for each combination of blocks that know a row one system of R
    equations, all in float64. Proportional components share what they explain. With `non_negative`,
    up to 10,000 sweeps of HALS follow, of ``4 * I_new * R**2`` operations each. Results have the
    same bits in every run on one machine.

    References
    ----------
    Singh and Gordon, "Relational learning via collective matrix factorization", KDD 2008.

    Examples
    --------
    The tags of a new user say what she will buy:

    >>> import numpy as np
    >>> from tensorly_flycoo.decomposition import coupled_parafac
    >>> from tensorly_flycoo.results.fold_in_coupled import fold_in_coupled
    >>> users, items = ["ann", "bob"], ["tea", "milk"]
    >>> bought = np.array([[6.0, 8.0], [3.0, 4.0]]), {"user": users, "item": items}
    >>> tags = np.array([[2.0], [1.0]]), {"user": users, "tag": ["rich"]}
    >>> model = coupled_parafac([bought, tags], 1, random_state=0)
    >>> new = np.array([[4.0]]), {"user": ["cy"], "tag": ["rich"]}
    >>> rows, new_users = fold_in_coupled(model, [new], "user")
    >>> weights, (_, columns) = model.cp_tensors[0]
    >>> new_users, (rows * weights @ columns.T).round(6)
    (array(['cy'], dtype='<U2'), array([[12., 16.]]))
    """
    if find_kind(model) != "coupled":
        name = type(model).__name__
        raise TypeError(f"model is a {name}, expected a CoupledCP: fold_in takes other models")
    check_real(l2_reg, "l2_reg", 0)
    check_choice(missing, "missing", ("zero", "unknown"))
    if mode not in model.factors:
        raise ValueError(f"mode is {mode!r}, expected one of {[*model.factors]}")
    given, device = open_blocks(blocks)
    numbers = _find_numbers(model, given, mode)
    count, labels = _join_new(given, mode)
    xp = select_engine(device).xp
    old = model.factors[mode]
    weights, powers, omegas = _scale_weights(model, xp)
    for n, (block, number) in enumerate(zip(given, numbers, strict=True)):
        _find_places(n, block, model, mode, xp)
        x = to_exact(block.data)
        x = x if powers[number] == 1 else x * (1 / powers[number])
        block.data = WholeTensor(x) if isinstance(x, FlycooTensor) else x
    factors = [move(factor, xp).astype(np.float64) for factor in model.factors.values()]
    index = [*model.factors].index(mode)
    factors[index] = xp.zeros((count, model.rank))  # of which only the size matters
    is_known = np.ones((count, len(given)), bool)
    target = xp.zeros((count, model.rank))
    grams = []
    for n, (block, number) in enumerate(zip(given, numbers, strict=True)):
        others = {m: factors[m] for m in block.modes if m != index}
        if missing == "unknown":
            is_known[:, n] = _find_known(block, index, count)
            places = {m: block.find_places(m) for m in others}
            others |= {m: factors[m][rows] for m, rows in places.items() if rows is not None}
        scales = omegas[number] * weights[number]
        target += block.mttkrp(index, factors) * scales
        gram = multiply_grams(None, [*others.values()])
        grams.append(scales[:, None] * gram * weights[number])
    users = [b for b, names in enumerate(model.blocks) if mode in names]
    ridge = xp.diag(l2_reg * sum(omegas[b] * weights[b] ** 2 for b in users))
    rows = xp.zeros_like(target)
    for numbered, columns in group_rows(is_known, xp):
        gram = sum((grams[n] for n in columns), start=ridge)
        rows[numbered] = _solve(target[numbered], gram, non_negative)
    return NewRows(move(rows.astype(old.dtype), array_module(old)), labels)


def _scale_weights(model: Any, xp: Any) -> tuple[list[Array], list[float], list[float]]:
    """Return each block's weights (R,) divided by a power of two, it, and the block weights.

    Weights far from 1 are divided, and data with them, since their squares could overflow.
    """
    weights = [move(cp_tensor.weights, xp).astype(np.float64) for cp_tensor in model.cp_tensors]
    powers = [2.0 ** find_exponent(float(abs(own).max()), 1, own.dtype) for own in weights]
    divided = [own / power for own, power in zip(weights, powers, strict=True)]
    return divided, powers, weigh_divided(model.block_weights, powers)


def _find_numbers(model: Any, given: list[Block], mode: str) -> list[int]:
    """Return the numbers of the model's blocks that have the modes of those given."""
    known = [frozenset(names) for names in model.blocks]
    numbers = []
    for n, block in enumerate(given):
        modes = frozenset(block.names)
        alike = [number for number, names in enumerate(known) if names == modes]
        same = [other for other in given if frozenset(other.names) == modes]
        if not alike:
            raise ValueError(
                f"blocks[{n}] has the modes {block.names}, expected those of a block of the model: "
                f"{[*map(list, model.blocks)]}"
            )
        if mode not in modes:
            raise ValueError(f"blocks[{n}] has the modes {block.names}, expected also {mode!r}")
        if len(same) != len(alike):
            raise ValueError(
                f"blocks has {len(same)} of the modes {block.names}, expected {len(alike)}, as the "
                "model has, in its order"
            )
        numbers.append(alike[[other is block for other in same].index(True)])
    if len(model.block_weights) != len(known):
        raise ValueError(
            f"the model has {len(known)} blocks and the block_weights {model.block_weights}, as of "
            "a file of an older release: set model.block_weights to those that it was fitted with"
        )
    return numbers


def _join_new(given: list[Block], mode: str) -> tuple[int, np.ndarray | None]:
    """Return how many rows the mode has in all blocks, and their labels; note their places."""
    axes = [block.names.index(mode) for block in given]
    sizes = [block.data.shape[axis] for block, axis in zip(given, axes, strict=True)]
    labels = [block.labels[mode] for block in given if block.labels is not None]
    if not labels:
        for n, size in enumerate(sizes):
            if size != sizes[0]:
                raise ValueError(
                    f"blocks[{n}] has size {size} in mode {mode!r}, expected {sizes[0]}, as "
                    "blocks[0] has: if its rows have labels, give a dict of labels by mode in "
                    "place of the names"
                )
        return sizes[0], None
    if len(labels) < len(given):
        n = next(n for n, block in enumerate(given) if block.labels is None)
        raise ValueError(
            f"blocks[{n}] has no labels of mode {mode!r}, expected some, as another block has: "
            "give a dict of labels by mode in place of the names"
        )
    joined, places = join_labels(labels)
    for block, axis, rows in zip(given, axes, places, strict=True):
        block.places[axis] = rows
    return len(joined), joined


def _find_places(n: int, block: Block, model: Any, mode: str, xp: Any) -> None:
    """Note where a block's modes are in the model, and the rows of those that are not new."""
    block.modes = [[*model.factors].index(name) for name in block.names]
    for axis, name in enumerate(block.names):
        size = block.data.shape[axis]
        expected = len(model.factors[name])
        if name == mode:
            pass
        elif block.labels is not None and name in model.labels:
            joined, (_, rows) = join_labels([model.labels[name], block.labels[name]])
            if len(joined) > expected:
                unknown = take_labels(joined, [expected])[0]
                raise ValueError(
                    f"blocks[{n}] has the label {unknown!r} of mode {name!r}, which the "
                    "model has not, expected some of the model's: leave it out"
                )
            if not np.array_equal(rows, np.arange(expected)):
                block.places[axis] = rows
        elif size != expected:
            raise ValueError(
                f"blocks[{n}] has size {size} in mode {name!r}, expected {expected}, as the model "
                "has: rows without labels, in either, are joined by position"
            )
    block.places = {axis: xp.asarray(rows) for axis, rows in block.places.items()}


def _find_known(block: Block, mode: int, count: int) -> np.ndarray:
    """Return which rows of the new mode have a nonzero in a block."""
    axis = block.modes.index(mode)
    array = block.data
    if isinstance(array, WholeTensor):
        rows = array.tensor._sorted_nonzeros()[0][axis]
    else:
        rows = array_module(array).nonzero(array)[axis]
    if (places := block.find_places(mode)) is not None:
        rows = places[rows]
    is_known = np.zeros(count, bool)
    is_known[move(rows, np)] = True
    return is_known


def _solve(targets: Array, gram: Array, non_negative: bool) -> Array:
    """Return the rows (I, R) of least squares."""
    if not non_negative:
        return solve_semidefinite(gram, targets)
    xp = array_module(gram)
    rows = xp.zeros_like(targets, order="C")
    targets = xp.ascontiguousarray(targets)
    solve_nonnegative(targets, xp.ascontiguousarray(gram), rows, _MAX_SWEEPS, _TOLERANCE)
    return rows
