"""Coupled CP decomposition: tensors and matrices that share modes, and so factors."""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import tensorly as tl
from tensorly._factorized_tensor import FactorizedTensor

from ..base.array_modules import Array, array_module, move
from ..base.checks import (
    check_choice,
    check_factors,
    check_least,
    check_rank,
    check_real,
    check_weights,
)
from ..base.fit_record import FitRecord, recording
from ..base.reporting import log_compilation
from ..engines import select_engine
from ..engines.out_of_memory import attempt, check_room
from ..engines.tall import column_norms, find_signs, solve_semidefinite, sum_columns
from ..io.entries import find_places
from ..loop.acceleration import Momentum
from ..loop.block_cells import CellsOfMode
from ..loop.coupled_blocks import CoupledBlock, CoupledBlocks, group_rows, read_blocks
from ..loop.cp_model import multiply_all, multiply_grams
from ..loop.guarding import check_iteration, check_options, describe_as
from ..loop.hals import improve
from ..loop.momentum import NESTEROV
from ..loop.observed_rows import fit_rows
from ..loop.run import Callback, Run, RunModel, Sweep
from ..loop.stopping import AnyOf, Converged, GivesUp
from ..results.coupled_cp import CoupledCP, LabelledCoupledCP, make_cp_tensors
from ..tensor.entrance import mirror
from .non_negative_parafac_hals import find_constrained
from .parafac import parafac

#: By how much sums in float64 may be off, relative to the terms that cancel in them.
_ROUNDING = 64 * np.finfo(np.float64).eps

#: Relative to the largest component, one that is only the rounding of what cancelled.
_NOTHING = 16 * np.finfo(np.float64).eps

#: Of a mode: for each block that has it and knows all cells of a row, by number, the Gram matrix
#: (R, R) of the rows it knows.
ModeGrams: TypeAlias = dict[int, Array]

#: Of each such block, the inner products (R,) of its data with the components, without weights.
InnerProducts: TypeAlias = dict[int, Array]


@mirror
@describe_as(parafac)
def coupled_parafac(
    blocks: Iterable[Any],
    rank: int,
    n_iter_max: int = 100,
    init: Any = "random",
    tol: float = 1e-8,
    random_state: Any = None,
    block_weights: Iterable[float] | None = None,
    nn_modes: str | Iterable[str] | None = None,
    callback: Callback | None = None,
    missing: str = "zero",
    l2_reg: float = 0,
    linesearch: bool | str = False,
) -> Any:  # a LabelledCoupledCP if all modes have labels
    r"""Decompose tensors and matrices that share modes, by alternating least squares.

    .. math:: \min \sum_b \omega_b \,
        (|X_b - [w_b; F_n : n \in \mathrm{modes}(b)]|^2 + \lambda \, |w_b|^2)

    Each mode has one factor, with columns of norm 1, and each block weights of its own. No sparse
    block is made dense, and no Khatri-Rao product is formed. Any backend of TensorLy will do.

    Parameters
    ----------
    blocks : sequence of (data, modes)
        The data: a FlycooTensor, sparse.COO, sparse matrix of SciPy or CuPy, or a dense array, with
        two modes or more. The modes: a name for each axis, such as ``("user", "item", "day")``, or
        a dict of the labels of its rows, such as ``{"user": users, "tag": tags}``. A LabelledTensor
        is a block by itself; in a pair its modes get other names. If it says that cells without a
        row are unknown (`LabelledTensor.unknown`), as of ratings, they have no part in its term.
    rank : int
        R, the number of components.
    init : {"random", dict of str to array (I, R), CoupledCP}
        "random" draws factors uniform in [0, 1), in the order in which `blocks` names the modes.
        Arrays have the dtype and are on the device of the result. Columns are divided by their
        norms; the weights are those of the CoupledCP, or else the best ones.
    block_weights : sequence of float, optional
        :math:`\omega_b`, by default 1. With ``1 / norm**2`` relative errors count alike.
    nn_modes : "all", iterable of str, or None
        The modes whose factors are non-negative, by HALS. If they are all modes of a block, its
        weights are non-negative too.
    callback : callable, optional
        Called with the CoupledCP and its error before the first and after each iteration; returns
        True to stop. For example a `Progress`, without a checkpoint.
    missing : {"zero", "unknown"}
        What a block that lacks the label of a row has there: zeros, or unknown values, which do
        not change the row, and which the block's model predicts. In a block with unknown cells they
        are unknown anyway.
    l2_reg : float
        :math:`\lambda`, a ridge on the squared norms of the components in each block, rows that it
        lacks included. It has no unit: a lone component shrinks to 1 / (1 + l2_reg) of its norm.
        With ``missing="unknown"`` it keeps predictions from running away; try 0.001 to 0.1. Blocks
        with unknown cells need one; its norms are still those of whole components.
    linesearch : False or "nesterov"
        "nesterov": Nesterov's momentum of the factors as in `parafac`; those of `nn_modes` that
        would be negative become zero.

    Returns
    -------
    CoupledCP, or LabelledCoupledCP if all modes have labels
        With the errors :math:`\sqrt{\sum \omega_b |X_b - M_b|^2 / \sum \omega_b |X_b|^2}` for the
        models :math:`M_b`, which are sums in float64 of the model as it is returned. Float32 if
        all blocks are, else float64. Of a block with unknown cells, errors are those of known ones,
        and the record of its model says that the others are unknown.

    Raises
    ------
    TypeError
        If a block is no pair, is a table, holds complex numbers or is on another device than the
        others; if `rank` is no integer, `l2_reg` no number, or `init` has an array of wrong dtype.
    ValueError
        If a block does not have a name for each of two or more axes, shares no mode with another
        block, or has no nonzeros, nan or infinity; if the sizes of a shared mode differ without
        labels, only some blocks label it, or a block shares none of its labels; if a block has a
        mask of unknown cells, or unknown cells and `l2_reg` is 0; if `rank` is below 1, `l2_reg`
        below 0, `linesearch` unknown, `block_weights` are not positive, or `init` or
        `nn_modes` do not fit.

    Notes
    -----
    Rows of a shared mode are joined by label if it has labels: its factor has a row for each label
    of any block, and a label that a block lacks is what `missing` says. Otherwise they are joined
    by position. A block whose rows move is built anew, as is one in float32: products and systems
    are in float64, of factors that are rounded to the dtype of the result. Data in host memory, but
    for a FlycooTensor, go to the GPU if another block is there, or else to the device that
    `set_device` chose.

    An iteration updates the modes of a single block first, then those that blocks share, each by
    the exact minimiser: one MTTKRP for each mode of each block, and one system of R equations for
    each mode. An iteration that raises what is minimised, by more than the rounding of float64, is
    taken back and ends the run: the next one would be the same. With one matrix that shares the
    first mode of a tensor of three modes the factors are those of TensorLy's
    `coupled_matrix_tensor_3d_factorization` from the same start.

    In a block with unknown cells each row has a system of its own: in each mode the known cells
    take ``count * R**2`` operations. The workspace has their coordinates and values, and for each
    mode a permutation of them.

    An error e is off by about 2e-15 (1 + s**2) / e at most, in float32 too, where the norms of the
    components add up to s times that of the data: s is large if components cancel. Blocks times a
    number have the same errors, and models times that number: to the bit for a power of two, else
    but for rounding.

    References
    ----------
    Acar, Kolda and Dunlavy, "All-at-once Optimization for Coupled Matrix and Tensor
    Factorizations", arXiv 1105.3422, 2011. Singh and Gordon, "Relational learning via collective
    matrix factorization", KDD 2008.

    Examples
    --------
    >>> import scipy.sparse
    >>> from tensorly_flycoo.decomposition import coupled_parafac
    >>> from tensorly_flycoo.testing import random_tensor
    >>> events = random_tensor((30, 20, 10), 500, random_state=0)
    >>> tags = scipy.sparse.random_array((30, 8), density=0.3, rng=0)
    >>> model = coupled_parafac(
    ...     [(events, ("user", "item", "day")), (tags, ("user", "tag"))], rank=3, random_state=0
    ... )
    >>> model
    <CoupledCP of rank 3: user (30), item (20), day (10), tag (8); 2 blocks>
    >>> model.factors["user"] is model.cp_tensors[1].factors[0]
    True
    """
    check_options({"n_iter_max": n_iter_max, "tol": tol}, 0)
    check_real(l2_reg, "l2_reg", 0)
    check_choice(linesearch, "linesearch", (False, NESTEROV))
    data = read_blocks(blocks, block_weights, missing)
    _check_ridge(data, l2_reg)
    num_components = check_rank(rank)
    constrained = find_constrained(nn_modes, data.sizes)

    def run() -> CoupledCP:
        _check_memory(data, num_components)
        model = _start(data, num_components, init, random_state, constrained)
        sweep = CoupledSweep(data, model, constrained, l2_reg)
        momentum = None
        if linesearch == NESTEROV:
            momentum = Momentum(sweep, range(len(model.factors)), sweep.project)
        result: CoupledCP = Run(
            sweep=sweep,
            accelerate=momentum,
            tensor=None,
            n_iter_max=n_iter_max,
            stop=AnyOf(GivesUp(sweep.is_stuck), Converged(tol)),
            callback=callback,
            finish=sweep.make_result,
        ).iterate()
        return result

    def describe() -> FitRecord:
        return FitRecord(
            method="coupled_parafac",
            absent=missing,
            l2_reg=float(l2_reg),
            non_negative=tuple(sorted(constrained)),
            dtype=str(data.dtype),
        )

    with recording("coupled_parafac", describe), log_compilation():
        return attempt("coupled_parafac", run)


def _check_ridge(data: CoupledBlocks, l2_reg: float) -> None:
    """Refuse unknown cells without a ridge: a row with few known cells has many best values."""
    for n, block in enumerate(data.blocks):
        if block.is_observed and l2_reg == 0:
            raise ValueError(
                f"l2_reg is 0, expected a number above 0, as blocks[{n}] has unknown cells: rows "
                "with few known ones need a ridge; try 0.001 to 0.1"
            )


def _check_memory(data: CoupledBlocks, rank: int) -> None:
    """Raise a MemoryError before anything is allocated if factors or an iteration do not fit."""
    num_rows = sum(data.sizes.values())
    check_room(select_engine(data.device), num_rows * rank * data.dtype.itemsize)
    for block in data.blocks:
        check_iteration(getattr(block.data, "tensor", block.data), rank)


def _start(
    data: CoupledBlocks, rank: int, init: Any, random_state: Any, constrained: set[int]
) -> RunModel:
    """Return the model of the start; its weights (B, R) are None if they are not known."""
    if isinstance(init, str) and init == "random":
        engine = select_engine(data.device)
        random = tl.check_random_state(random_state)
        factors = [
            engine.draw_uniform(random, (size, rank), data.dtype) for size in data.sizes.values()
        ]
        return RunModel(None, factors)
    factors = _take_factors(data, rank, init)
    names = list(data.sizes)
    for n in constrained:
        name = f"the factor of mode {names[n]!r} of init"
        check_least(factors[n], name, reason=", as nn_modes has this mode")
    weights = None
    if isinstance(init, CoupledCP):
        weights = _take_weights(data, rank, init)
    return RunModel(weights, factors)


def _take_factors(data: CoupledBlocks, rank: int, init: Any) -> list[Array]:
    """Return copies of a guess's factors in the order of the modes, after checking them."""
    names = list(data.sizes)
    guess = init.factors if isinstance(init, CoupledCP) else init
    is_dict = isinstance(guess, Mapping) and not isinstance(guess, FactorizedTensor)
    if not is_dict or {*guess} != {*names}:
        got = list(guess) if is_dict else repr(guess)
        raise ValueError(f"init is {got}, expected 'random', a CoupledCP, or a factor for {names}")
    if isinstance(init, CoupledCP):
        guess = {name: _match_rows(name, factor, init, data) for name, factor in guess.items()}
    for name, size in data.sizes.items():
        if len(guess[name]) != size:
            raise ValueError(
                f"the factor of mode {name!r} of init has shape {guess[name].shape}, expected "
                f"{(size, rank)}"
            )
    factors = check_factors(
        [guess[name] for name in names],
        list(data.sizes.values()),
        data.dtype,
        select_engine(data.device).array_type,
    )
    if factors[0].shape[1] != rank:
        raise ValueError(f"factors of init have {factors[0].shape[1]} columns, expected {rank}")
    return factors


def _take_weights(data: CoupledBlocks, rank: int, init: CoupledCP) -> Array:
    """Return the weights (B, R) of a model, after checking that it has the same blocks."""
    weights = [cp_tensor.weights for cp_tensor in init.cp_tensors]
    if len(weights) != len(data.blocks):
        raise ValueError(f"init has models of {len(weights)} blocks, expected {len(data.blocks)}")
    modes = [tuple(block.names) for block in data.blocks]
    modes_of_init = [tuple(names) for names in init.blocks]
    if modes_of_init and modes_of_init != modes:
        raise ValueError(f"init has the blocks {init.blocks}, expected {modes}, in this sequence")
    engine = select_engine(data.device)
    for of_block in weights:
        check_weights(of_block, rank, data.dtype, engine.array_type)
    # Values were divided by powers of two.
    divided = []
    for of_block, block in zip(weights, data.blocks, strict=True):
        divided.append(of_block / data.dtype.type(block.power))
    return engine.xp.stack(divided)


def _match_rows(name: Any, factor: Array, init: CoupledCP, data: CoupledBlocks) -> Array:
    """Return a factor of a guess in the sequence of the data's labels; refuse other labels."""
    guess_labels = init.labels.get(name)
    data_labels = data.labels.get(name)
    if guess_labels is None or data_labels is None or np.array_equal(guess_labels, data_labels):
        return factor
    places = find_places(data_labels, guess_labels)
    if guess_labels.size != data_labels.size or (places < 0).any():
        raise ValueError(
            f"init has {guess_labels.size} labels of mode {name!r}, such as {guess_labels[0]}, "
            f"expected the {data_labels.size} of blocks, such as {data_labels[0]}: start at "
            "random, or from their rows"
        )
    return factor[array_module(factor).asarray(places)]


class Fit(NamedTuple):
    """How well a model fits."""

    objective: float  # what is minimised
    rounding: float  # how far rounding moves it
    error: float
    block_errors: list[float]


@final
class CoupledSweep(Sweep):
    """A sweep of alternating least squares on factors (I, R) of norm 1 and weights (B, R).

    All sums, Gram matrices and systems are in float64, of the factors and weights as they are kept.
    """

    solver = "coupled_parafac"

    def __init__(
        self,
        data: CoupledBlocks,
        model: RunModel,
        constrained: set[int],  # the non-negative modes
        l2_reg: float,
    ) -> None:
        self.model = model
        self._data = data
        self._blocks = data.blocks
        self._constrained = constrained
        self._l2_reg = l2_reg
        self._is_stuck = False
        modes = range(len(data.sizes))
        self._uses = [self._list_uses(mode) for mode in modes]
        # Modes of a single block first; and of each block the mode that is updated last.
        self._order = sorted(modes, key=lambda mode: len(self._uses[mode]) > 1)
        self._last = [max(block.modes, key=self._order.index) for block in data.blocks]
        # Of blocks whose other cells are unknown: the known ones, and those of each mode.
        self._known = {
            b: block.list_known() for b, block in enumerate(self._blocks) if block.is_observed
        }
        self._cells = {mode: self._group_cells(mode) for mode in modes if self._list_known(mode)}
        self._groups = [self._group_rows(mode) for mode in modes]
        self._fit = self._begin()

    def _list_uses(self, mode: int) -> list[int]:
        """List the numbers of the blocks that have a mode."""
        return [b for b, block in enumerate(self._blocks) if mode in block.modes]

    def _list_known(self, mode: int) -> list[int]:
        """List the numbers of the blocks that have a mode, and unknown cells."""
        return [b for b in self._uses[mode] if b in self._known]

    def _list_whole(self, mode: int) -> list[int]:
        """List the numbers of the blocks that have a mode, and know all cells of a row."""
        return [b for b in self._uses[mode] if b not in self._known]

    def _group_cells(self, mode: int) -> CellsOfMode:
        """Group the known cells of blocks with unknown ones by their row in a mode."""
        known = {b: self._known[b] for b in self._list_known(mode)}
        return CellsOfMode(known, mode, [len(factor) for factor in self.model.factors])

    def _group_rows(self, mode: int) -> list[tuple[Any, list[int]]]:
        """Divide the rows of a mode by the blocks that know all of their cells."""
        uses = self._list_whole(mode)
        factor = self.model.factors[mode]
        num_rows = factor.shape[0]
        is_known = np.ones((num_rows, len(uses)), bool)
        for column, b in enumerate(uses):
            places = self._blocks[b].find_places(mode)
            if places is not None:
                is_known[:, column] = np.isin(np.arange(num_rows), move(places, np))
        groups = group_rows(is_known, array_module(factor))
        return [(rows, [uses[column] for column in columns]) for rows, columns in groups]

    def _begin(self) -> Fit:
        """Give the start columns of norm 1; find its weights, if it has none; return its fit."""
        model = self.model
        factors = model.factors
        dtype = self._data.dtype
        norms: list[Array] = []
        for mode, factor in enumerate(factors):
            factors[mode], of_mode = _normalize(factor.astype(np.float64), dtype)
            norms.append(of_mode)
        grams = [self._find_grams(mode) for mode in range(len(factors))]
        inner: InnerProducts = {}
        for b, (block, last) in enumerate(zip(self._blocks, self._last, strict=True)):
            if b not in self._known:
                inner[b] = _inner_products(block.mttkrp(last, factors), factors[last])
        if model.weights is None:
            weights = [self._solve_first_weights(b, grams, inner) for b in range(len(self._blocks))]
        else:
            weights = [
                of_block * multiply_all([norms[n] for n in block.modes])
                for of_block, block in zip(model.weights, self._blocks, strict=True)
            ]
        model.weights = array_module(factors[0]).stack(weights).astype(dtype)
        return self._measure(grams, inner)

    def _find_grams(self, mode: int) -> ModeGrams:
        """Return the Gram matrix of the rows that each block knows."""
        factor = self.model.factors[mode]
        gram_of_all = None
        grams = {}
        for b in self._list_whole(mode):
            places = self._blocks[b].find_places(mode)
            if places is not None:
                grams[b] = _multiply_exactly([factor[places]])
                continue
            if gram_of_all is None:
                gram_of_all = _multiply_exactly([factor])
            grams[b] = gram_of_all
        return grams

    def update(self, iteration: int) -> float:
        """Update the model; take the sweep back, and end the run, if it raised the objective.

        The next sweep would be the same, since a sweep depends on the model alone.
        """
        model = self.model
        factors = list(model.factors)
        weights = model.weights
        before = self._fit
        self._fit = self._measure(*self._sweep())
        self._is_stuck = not self._fit.objective <= before.objective + before.rounding
        if self._is_stuck:
            model.factors[:] = factors
            model.weights = weights
            self._fit = before
        return self._fit.error

    def is_stuck(self) -> bool:
        """Return whether the last sweep was taken back."""
        return self._is_stuck

    def get_part(self, n: int) -> Array:
        return self.model.factors[n]

    def set_part(self, n: int, array: Array) -> None:
        self.model.factors[n] = array

    def project(self, n: int, factor: Array) -> Array:
        """Set the negative elements of a non-negative factor to zero."""
        if n not in self._constrained:
            return factor
        return np.maximum(factor, 0)

    def impute(self) -> None:
        """Do nothing: a block's unknown rows have no part in its systems."""

    def find_loss(self, error: float) -> float:
        """Return the objective; infinity if the sweep was taken back."""
        if self._is_stuck:
            return math.inf
        return self._fit.objective

    def can_compare_errors(self) -> bool:
        """Return True: all sums are in float64."""
        return True

    def keep(self) -> tuple[Array, list[Array], Fit]:
        return self.model.weights, list(self.model.factors), self._fit

    def take_back(self, kept: tuple[Array, list[Array], Fit]) -> None:
        self.model.weights, self.model.factors[:], self._fit = kept

    def _sweep(self) -> tuple[list[ModeGrams], InnerProducts]:
        """Update all modes; return their Gram matrices, and each block's inner products."""
        factors = self.model.factors
        weights = self.model.weights.astype(np.float64)
        grams = [self._find_grams(mode) for mode in range(len(factors))]
        inner: InnerProducts = {}
        for mode in self._order:
            products = self._update_mode(mode, grams, weights)
            for b, product in products.items():
                if self._last[b] == mode:  # all factors of the block are final
                    inner[b] = _inner_products(product, factors[mode])
        for b, block in enumerate(self._blocks):
            shares_all_modes = all(len(self._uses[n]) > 1 for n in block.modes)
            if shares_all_modes:  # so no factor can take up its weights
                is_constrained = self._constrained.issuperset(block.modes)
                weights[b] = self._solve_weights(b, grams, inner, weights[b], is_constrained)
        self.model.weights = weights.astype(self._data.dtype)
        return grams, inner

    def _update_mode(self, mode: int, grams: list[ModeGrams], weights: Array) -> dict[int, Array]:
        """Update a factor, its Gram matrices and the weights of its blocks; return its MTTKRPs."""
        factors = self.model.factors
        uses = self._uses[mode]
        start = factors[mode].astype(np.float64)
        if len(uses) == 1:  # of one block: its factor takes up the weights
            (only_block,) = uses
            start = start * weights[only_block]
            weights[only_block] = 1
        products = {b: self._blocks[b].mttkrp(mode, factors) for b in self._list_whole(mode)}
        rows = self._solve_mode(mode, start, products, grams, weights)
        factors[mode], norms = _normalize(rows, self._data.dtype)
        grams[mode] = self._find_grams(mode)
        for b in uses:
            weights[b] *= norms
        return products

    def _solve_mode(
        self,
        mode: int,
        start: Array,
        products: dict[int, Array],
        grams: list[ModeGrams],
        weights: Array,
    ) -> Array:
        """Solve for the rows of a mode, from its MTTKRPs and the Gram matrices of other modes.

        Rows that occur in the same blocks share one system.
        """
        xp = array_module(start)
        scales = {b: self._blocks[b].weight * weights[b] for b in self._uses[mode]}
        target: Array = sum(
            (product * scales[b] for b, product in products.items()), start=xp.zeros_like(start)
        )
        # Of |w_b|^2, in which the norms of the new columns are.
        squares: Array = sum(scales[b] * weights[b] for b in self._uses[mode])
        if mode in self._cells:
            return self._solve_with_cells(mode, start, target, grams, squares, weights)
        ridge = self._l2_reg * xp.diag(squares)
        solved = xp.empty_like(target)
        for rows, blocks in self._groups[mode]:
            gram = self._add_grams(ridge, blocks, mode, grams, weights)
            solved[rows] = _solve(gram, target[rows], start[rows], mode in self._constrained)
        return solved

    def _add_grams(
        self, gram: Array, blocks: list[int], mode: int, grams: list[ModeGrams], weights: Array
    ) -> Array:
        """Add the Gram matrices that blocks give to the rows of a mode."""
        for b in blocks:
            product = self._combine_grams(grams, b, skip=mode)
            scale = self._blocks[b].weight * weights[b]
            gram = gram + scale[:, None] * product * weights[b]
        return gram

    def _solve_with_cells(
        self,
        mode: int,
        start: Array,
        target: Array,
        grams: list[ModeGrams],
        squares: Array,
        weights: Array,
    ) -> Array:
        """Solve for the rows of a mode of which some blocks know single cells.

        The right-hand sides `target` are those of all other blocks. All is in units in which each
        component has the same ridge.
        """
        xp = array_module(start)
        cells = self._cells[mode]
        lengths = np.sqrt(xp.where(squares > 0, squares, 1))
        roots = {b: self._blocks[b].weight ** 0.5 for b in self._list_known(mode)}
        scales = {b: root * weights[b] / lengths for b, root in roots.items()}
        listed = cells.list_cells(self.model.factors, scales, roots)
        added = None
        if self._list_whole(mode):
            added = target / lengths
        rank = len(lengths)
        solved = xp.empty_like(start)
        for rows, blocks in self._groups[mode]:
            gram = self._add_grams(xp.zeros((rank, rank)), blocks, mode, grams, weights)
            fitted = fit_rows(
                listed,
                start * lengths,
                cells.plan.restrict(rows),
                gram / lengths[:, None] / lengths + self._l2_reg * xp.eye(rank),
                non_negative=mode in self._constrained,
                added=added,
            )
            solved[rows] = fitted[rows]
        return _drop_rounding(solved, column_norms(solved)) / lengths

    def _combine_grams(self, grams: list[ModeGrams], b: int, skip: int | None = None) -> Array:
        """Multiply the Gram matrices of a block's modes, but for one, element by element."""
        return multiply_all([grams[n][b] for n in self._blocks[b].modes if n != skip])

    def _solve_first_weights(self, b: int, grams: list[ModeGrams], inner: InnerProducts) -> Array:
        """Return the weights of a block that minimise, not negative if one of its factors is not.

        So all that follows is in proportion to the data.
        """
        block = self._blocks[b]
        rank = self.model.factors[0].shape[1]
        xp = array_module(self.model.factors[0])
        start = xp.full(rank, (block.square / rank) ** 0.5)
        is_constrained = not self._constrained.isdisjoint(block.modes)
        return self._solve_weights(b, grams, inner, start, is_constrained)

    def _solve_weights(
        self,
        b: int,
        grams: list[ModeGrams],
        inner: InnerProducts,
        start: Array,
        is_constrained: bool,
    ) -> Array:
        """Return the weights of a block that minimise, with its factors as they are."""
        if b in self._known:
            gram, products = self._known[b].sum_systems(self.model.factors)
        else:
            gram = self._combine_grams(grams, b)
            products = inner[b]
        gram = gram + self._l2_reg * array_module(gram).eye(len(gram))
        return _solve(gram, products[None], start[None], is_constrained)[0]

    def measure_start(self) -> float:
        return self._fit.error

    def _measure(self, grams: list[ModeGrams], inner: InnerProducts) -> Fit:
        """Compare the model with the data."""
        squares = []
        magnitudes = []
        penalties = []
        # Of columns in float32, which are 1 but for rounding.
        lengths = [
            move(sum_columns(factor.astype(np.float64) ** 2), np) for factor in self.model.factors
        ]
        for b, block in enumerate(self._blocks):
            if b in self._known:
                square, size = self._known[b].compare(self.model.weights[b], self.model.factors)
            else:
                square, size = self._compare_whole(b, grams, inner[b])
            squares.append(square)
            magnitudes.append(block.square + size)
            norms = multiply_all([lengths[n] for n in block.modes])
            weights = move(self.model.weights[b], np).astype(np.float64)
            penalties.append(self._l2_reg * float(norms @ weights**2))
        shares = np.array([block.weight for block in self._blocks])
        totals = np.array([block.square for block in self._blocks])
        relative_square = float(shares @ squares / (shares @ totals))
        block_errors = (squares / totals) ** 0.5
        return Fit(
            objective=float(shares @ np.add(squares, penalties)),
            rounding=_ROUNDING * float(shares @ magnitudes),
            error=relative_square**0.5,
            block_errors=block_errors.tolist(),
        )

    def _compare_whole(
        self, b: int, grams: list[ModeGrams], inner_products: Array
    ) -> tuple[float, float]:
        """Return the squared error of a block that knows all cells, and the size of its model.

        Nothing cancels in the size, which has no signs: rounding is in proportion to it.
        """
        gram = move(self._combine_grams(grams, b), np)
        weights = move(self.model.weights[b], np).astype(np.float64)
        inner = float(weights @ move(inner_products, np))
        model_square = float(weights @ gram @ weights)
        size = float(abs(weights) @ abs(gram) @ abs(weights))
        return abs(self._blocks[b].square + model_square - 2 * inner), size

    def save_state(self) -> dict[str, Array]:
        """Return nothing: these runs have no checkpoints."""
        return {}

    def make(self) -> CoupledCP:
        labels = self._data.labels
        # Values were divided by powers of two.
        weights = [
            of_block * of_block.dtype.type(block.power)
            for of_block, block in zip(self.model.weights, self._blocks, strict=True)
        ]
        factors = dict(zip(self._data.sizes, self.model.factors, strict=True))
        names = [block.names for block in self._blocks]
        absent = [block.absent for block in self._blocks]
        kind = CoupledCP
        if labels.keys() == factors.keys():  # each mode has labels
            kind = LabelledCoupledCP
        return kind(
            factors,
            make_cp_tensors(factors, names, weights, labels, absent),
            labels,
            blocks=[*map(tuple, names)],
            block_weights=[*self._data.weights],
            absent=absent,
        )

    def make_result(self) -> CoupledCP:
        """Sort the components, choose their signs, and add the errors."""
        self._sort_components()
        self._choose_signs()
        result = self.make()
        result.errors = self.model.errors
        result.block_errors = self._fit.block_errors
        return result

    def _sort_components(self) -> None:
        """Sort the components by their squared weights in all blocks, the largest first."""
        model = self.model
        xp = array_module(model.weights)
        weights = move(model.weights, np)  # (B, R)
        block_weights = np.array([block.weight for block in self._blocks])  # (B,)
        squares = block_weights[:, None] * weights.astype(np.float64) ** 2
        order = np.argsort(-squares.sum(axis=0), kind="stable")
        model.weights = xp.asarray(weights[:, order])
        model.factors[:] = [factor.take(xp.asarray(order), axis=1) for factor in model.factors]

    def _choose_signs(self) -> None:
        """Make columns mostly positive, and weights too where a block has a mode for itself."""
        model = self.model
        xp = array_module(model.weights)
        weights = move(model.weights, np)
        signs = [find_signs(factor) for factor in model.factors]
        for b, block in enumerate(self._blocks):
            weights[b] *= np.prod([signs[n] for n in block.modes], axis=0)
            free = self._list_free_modes(block)
            if free:
                signs[free[-1]] *= np.where(weights[b] < 0, -1, 1)
                weights[b] = abs(weights[b])
        model.weights = xp.asarray(weights)
        model.factors[:] = [
            factor * xp.asarray(of_mode, factor.dtype)
            for factor, of_mode in zip(model.factors, signs, strict=True)
        ]

    def _list_free_modes(self, block: CoupledBlock) -> list[int]:
        """List the modes that a block shares with none, and whose factors may be negative."""
        alone = [n for n in block.modes if len(self._uses[n]) == 1]
        return [n for n in alone if n not in self._constrained]


#: Of lists of factors, Gram matrices in float64: errors are differences of sums of their elements.
_multiply_exactly = functools.partial(multiply_grams, None, dtype=np.float64)


def _inner_products(product: Array, factor: Array) -> Array:
    """Compute the inner product with each component, (R,), in float64."""
    return sum_columns(product * factor)


def _normalize(rows: Array, dtype: np.dtype) -> tuple[Array, Array]:
    """Return a factor with columns of norm 1, or 0, and the norms that they had in float64."""
    norms = column_norms(rows)
    factor = rows / array_module(rows).where(norms == 0, 1, norms)
    return factor.astype(dtype, copy=False), norms


def _solve(gram: Array, targets: Array, rows: Array, is_constrained: bool) -> Array:
    """Return the rows (I, R) of least squares; with a constraint, by sweeps of HALS from `rows`.

    A component that is only rounding is zero: its column of norm 1 would be noise.
    """
    solved = improve(targets, gram, rows) if is_constrained else solve_semidefinite(gram, targets)
    return _drop_rounding(solved, column_norms(solved) * np.sqrt(gram.diagonal()))


def _drop_rounding(rows: Array, sizes: Array) -> Array:
    """Set components whose `sizes` (R,) are only rounding to zero."""
    return array_module(rows).where(sizes > _NOTHING * sizes.max(), rows, 0)
