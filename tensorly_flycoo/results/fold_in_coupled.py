"""Rows of a factor that tensors and matrices share, for new labels such as new users."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_choice, check_real
from ..engines import select_engine
from ..engines.tall import solve_semidefinite
from ..loop.block_cells import CellsOfMode
from ..loop.coupled_blocks import (
    CoupledBlock,
    group_rows,
    join_labels,
    open_blocks,
    to_exact,
    weigh_divided,
)
from ..loop.cp_model import multiply_grams
from ..loop.hals import solve_nonnegative
from ..loop.row_systems import solve_row_systems
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
        `mode` without nonzeros: zeros, or unknown values. Blocks that are not given are unknown. Of
        a block with unknown cells (`LabelledTensor.unknown`), here or in the fit (`model.absent`),
        only the cells that it stores are known.

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
        `l2_reg` is below 0; a block is dense that had unknown cells in the fit; or a model of an
        older file has no `block_weights`.

    Notes
    -----
    One MTTKRP of each block, and for each combination of blocks that know a row one system of R
    equations, all in float64. With unknown cells each row has a system: a known cell takes ``R**2``
    operations, and a row an eigendecomposition of size R. Proportional components share what they
    explain. With `non_negative`, up to 10,000 sweeps of HALS follow, of ``4 * I_new * R**2``
    operations each. Results have the same bits in every run on one machine.

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

    # Take the data, and the model, in float64.
    new_blocks, device = open_blocks(blocks)
    numbers = _find_numbers(model, new_blocks, mode)
    num_rows, labels = _join_new(new_blocks, mode)
    xp = select_engine(device).xp
    weights, powers, block_weights = _scale_weights(model, xp)
    for n, (block, number) in enumerate(zip(new_blocks, numbers, strict=True)):
        _find_places(n, block, model, mode, xp)
        _divide_data(block, powers[number])
        _obey_unknown(n, block, model, number)
    factors = [move(factor, xp).astype(np.float64) for factor in model.factors.values()]
    index = [*model.factors].index(mode)
    factors[index] = xp.zeros((num_rows, model.rank))  # only its size matters

    # Each block that knows all cells adds to the right-hand sides of all rows, and to the matrices
    # of those that it knows.
    is_known = np.zeros((num_rows, len(new_blocks)), bool)
    targets = xp.zeros((num_rows, model.rank))
    grams = {}
    for n, (block, number) in enumerate(zip(new_blocks, numbers, strict=True)):
        if block.is_observed:
            continue
        is_known[:, n] = True
        fixed = {m: factors[m] for m in block.modes if m != index}
        if missing == "unknown":
            is_known[:, n] = _find_known(block, index, num_rows)
            fixed = {m: block.take_rows(factor, m) for m, factor in fixed.items()}
        scales = block_weights[number] * weights[number]
        targets += block.mttkrp(index, factors) * scales
        gram = multiply_grams(None, [*fixed.values()])
        grams[n] = scales[:, None] * gram * weights[number]

    # All others list the cells that they know.
    cells = None
    plan = None
    known = {n: block.list_known() for n, block in enumerate(new_blocks) if block.is_observed}
    if known:
        roots = {n: block_weights[numbers[n]] ** 0.5 for n in known}
        scales_of_blocks = {n: root * weights[numbers[n]] for n, root in roots.items()}
        of_mode = CellsOfMode(known, index, [len(factor) for factor in factors])
        cells = of_mode.list_cells(factors, scales_of_blocks, roots)
        plan = of_mode.plan

    # Rows that the same blocks know have one system, to which their cells add.
    users = [b for b, names in enumerate(model.blocks) if mode in names]
    squares = sum(block_weights[b] * weights[b] ** 2 for b in users)
    ridge = xp.diag(l2_reg * squares)
    rows = xp.zeros_like(targets)
    for alike, known_blocks in group_rows(is_known, xp):
        gram = sum((grams[n] for n in known_blocks), start=ridge)
        if plan is None:
            rows[alike] = _solve(targets[alike], gram, non_negative)
            continue
        solved = solve_row_systems(
            targets,
            gram,
            cells,
            lengths=np.sqrt(squares),
            non_negative=non_negative,
            plan=plan.restrict(alike),
        )
        rows[alike] = solved[alike]
    factor = model.factors[mode]
    return NewRows(move(rows.astype(factor.dtype), array_module(factor)), labels)


def _divide_data(block: CoupledBlock, power: float) -> None:
    """Make a block's data float64, and divide them by a power of two, as its weights were."""
    x = to_exact(block.data)
    if power != 1:
        x = x * (1 / power)
    if isinstance(x, FlycooTensor):
        x = WholeTensor(x)
    block.data = x


def _obey_unknown(n: int, block: CoupledBlock, model: Any, number: int) -> None:
    """Take cells that a block does not store as unknown, if they were to the model."""
    if model.absent[number] == "unknown":
        block.is_observed = True
    if block.is_observed and not isinstance(block.data, WholeTensor):
        raise ValueError(
            f"blocks[{n}] is a dense array, and the model was fitted to a block of the modes "
            f"{block.names} whose cells without a row are unknown: expected a sparse tensor of the "
            "known cells, such as FlycooTensor(coords, values, shape)"
        )


def _scale_weights(model: Any, xp: Any) -> tuple[list[Array], list[float], list[float]]:
    """Return each block's weights (R,) divided by a power of two, it, and the block weights.

    Weights far from 1 are divided, and data with them, since their squares could overflow.
    """
    divided = []
    powers = []
    for cp_tensor in model.cp_tensors:
        weights = move(cp_tensor.weights, xp).astype(np.float64)
        largest = float(abs(weights).max())
        power = 2.0 ** find_exponent(largest, 1, weights.dtype)
        divided.append(weights / power)
        powers.append(power)
    return divided, powers, weigh_divided(model.block_weights, powers)


def _find_numbers(model: Any, new_blocks: list[CoupledBlock], mode: str) -> list[int]:
    """Return the numbers of the model's blocks that have the modes of the new ones."""
    modes_of_model = [frozenset(names) for names in model.blocks]
    numbers = []
    for n, block in enumerate(new_blocks):
        modes = frozenset(block.names)
        alike_in_model = [b for b, names in enumerate(modes_of_model) if names == modes]
        alike = [new for new in new_blocks if frozenset(new.names) == modes]
        if not alike_in_model:
            raise ValueError(
                f"blocks[{n}] has the modes {block.names}, expected those of a block of the model: "
                f"{[*map(list, model.blocks)]}"
            )
        if mode not in modes:
            raise ValueError(f"blocks[{n}] has the modes {block.names}, expected also {mode!r}")
        if len(alike) != len(alike_in_model):
            raise ValueError(
                f"blocks has {len(alike)} of the modes {block.names}, expected "
                f"{len(alike_in_model)}, as the model has, in its order"
            )
        # Of several blocks with the same modes, the first one is the model's first, and so on.
        place = [new is block for new in alike].index(True)
        numbers.append(alike_in_model[place])
    if len(model.block_weights) != len(modes_of_model):
        raise ValueError(
            f"the model has {len(modes_of_model)} blocks and the block_weights "
            f"{model.block_weights}, as of a file of an older release: set model.block_weights to "
            "those that it was fitted with"
        )
    return numbers


def _join_new(blocks: list[CoupledBlock], mode: str) -> tuple[int, np.ndarray | None]:
    """Return how many rows the mode has in all blocks, and their labels; note their places."""
    axes = [block.names.index(mode) for block in blocks]
    sizes = [block.data.shape[axis] for block, axis in zip(blocks, axes, strict=True)]
    labels = [block.labels[mode] for block in blocks if block.labels is not None]
    if not labels:
        for n, size in enumerate(sizes):
            if size != sizes[0]:
                raise ValueError(
                    f"blocks[{n}] has size {size} in mode {mode!r}, expected {sizes[0]}, as "
                    "blocks[0] has: if its rows have labels, give a dict of labels by mode in "
                    "place of the names"
                )
        return sizes[0], None
    if len(labels) < len(blocks):
        n = next(n for n, block in enumerate(blocks) if block.labels is None)
        raise ValueError(
            f"blocks[{n}] has no labels of mode {mode!r}, expected some, as another block has: "
            "give a dict of labels by mode in place of the names"
        )
    all_labels, places = join_labels(labels)
    for block, axis, rows in zip(blocks, axes, places, strict=True):
        block.places[axis] = rows
    return len(all_labels), all_labels


def _find_places(n: int, block: CoupledBlock, model: Any, mode: str, xp: Any) -> None:
    """Note where a block's modes are in the model, and the rows of those that are not new."""
    block.modes = [[*model.factors].index(name) for name in block.names]
    for axis, name in enumerate(block.names):
        size = block.data.shape[axis]
        expected = len(model.factors[name])
        if name == mode:
            continue  # its rows are new, and were placed by `_join_new`
        if block.labels is not None and name in model.labels:
            all_labels, (_, rows) = join_labels([model.labels[name], block.labels[name]])
            if len(all_labels) > expected:
                unknown = take_labels(all_labels, [expected])[0]
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


def _find_known(block: CoupledBlock, mode: int, num_rows: int) -> np.ndarray:
    """Mark the rows of the new mode that have a nonzero in a block."""
    axis = block.modes.index(mode)
    if isinstance(block.data, WholeTensor):
        coords, _ = block.data.tensor._sorted_nonzeros()
        rows = coords[axis]
    else:
        rows = array_module(block.data).nonzero(block.data)[axis]
    places = block.find_places(mode)
    if places is not None:
        rows = places[rows]
    is_known = np.zeros(num_rows, bool)
    is_known[move(rows, np)] = True
    return is_known


def _solve(targets: Array, gram: Array, non_negative: bool) -> Array:
    """Return the rows (I, R) of least squares."""
    if not non_negative:
        return solve_semidefinite(gram, targets)
    xp = array_module(gram)
    rows = xp.zeros_like(targets, order="C")
    return solve_nonnegative(targets, gram, rows, _MAX_SWEEPS, _TOLERANCE)
