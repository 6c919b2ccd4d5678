"""Coupled CP decomposition: tensors and matrices that share modes, and so factors."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorly as tl
from tensorly._factorized_tensor import FactorizedTensor

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_factors, check_least, check_rank, check_real, check_weights
from ..base.fit_record import FitRecord, recording
from ..base.reporting import log_compilation
from ..engines import select_engine
from ..engines.out_of_memory import attempt, check_room
from ..engines.tall import column_norms, find_signs, solve_semidefinite, sum_columns
from ..io.entries import find_places
from ..loop.coupled_blocks import CoupledBlocks, group_rows, read_blocks
from ..loop.cp_loop import Callback, Run
from ..loop.cp_model import multiply_all, multiply_grams
from ..loop.guarding import check_options, describe_as
from ..loop.hals import improve
from ..results.coupled_cp import CoupledCP, LabelledCoupledCP, make_cp_tensors
from ..tensor.entrance import mirror
from .non_negative_parafac_hals import find_constrained
from .parafac import parafac

#: By how much sums in float64 may be off, relative to the terms that cancel in them.
_ROUNDING = 64 * np.finfo(np.float64).eps

#: Relative to the largest component, one that is only the rounding of what cancelled.
_NOTHING = 16 * np.finfo(np.float64).eps


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
) -> CoupledCP:
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
        is a block by itself; in a pair its modes get other names.
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
        not change the row, and which the block's model predicts.
    l2_reg : float
        :math:`\lambda`, a ridge on the squared norms of the components in each block, rows that it
        lacks included. It has no unit: a lone component shrinks to 1 / (1 + l2_reg) of its norm.
        With ``missing="unknown"`` it keeps predictions from running away; try 0.001 to 0.1.

    Returns
    -------
    CoupledCP, or LabelledCoupledCP if all modes have labels
        With the errors :math:`\sqrt{\sum \omega_b |X_b - M_b|^2 / \sum \omega_b |X_b|^2}` for the
        models :math:`M_b`, which are sums in float64 of the model as it is returned. Float32 if
        all blocks are, else float64.

    Raises
    ------
    TypeError
        If a block is no pair, is a table, holds complex numbers or is on another device than the
        others; if `rank` is no integer, `l2_reg` no number, or `init` has an array of wrong dtype.
    ValueError
        If a block does not have a name for each of two or more axes, shares no mode with another
        block, or has no nonzeros, nan or infinity; if the sizes of a shared mode differ without
        labels, only some blocks label it, or a block shares none of its labels; if `rank` is below
        1, `l2_reg` below 0, `block_weights` are not positive, or `init` or `nn_modes` do not fit.

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
    data = read_blocks(blocks, block_weights, missing)
    rank = check_rank(rank)
    constrained = find_constrained(nn_modes, data.sizes)

    def run() -> CoupledCP:
        model = _start(data, rank, init, random_state, constrained)
        options: dict[str, Any] = {"n_iter_max": n_iter_max, "callback": callback, "tol": tol}
        return _CoupledALS(data, constrained, l2_reg, tensor=None, model=model, **options).iterate()

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


def _start(
    data: CoupledBlocks, rank: int, init: Any, random_state: Any, constrained: set[int]
) -> tuple[Array | None, list[Array]]:
    """Return the weights (B, R), None if they are not known, and the factors of the start."""
    engine = select_engine(data.device)
    dtype = data.dtype
    names = list(data.sizes)
    sizes = list(data.sizes.values())
    if isinstance(init, str) and init == "random":
        check_room(engine, sum(sizes) * rank * dtype.itemsize)
        random = tl.check_random_state(random_state)
        return None, [engine.draw_uniform(random, (size, rank), dtype) for size in sizes]
    given = init.factors if isinstance(init, CoupledCP) else init
    is_dict = isinstance(given, Mapping) and not isinstance(given, FactorizedTensor)
    if not is_dict or {*given} != {*names}:
        got = list(given) if is_dict else repr(given)
        raise ValueError(f"init is {got}, expected 'random', a CoupledCP, or a factor for {names}")
    if isinstance(init, CoupledCP):
        given = {name: _match_rows(name, factor, init, data) for name, factor in given.items()}
    for name, size in data.sizes.items():
        if len(given[name]) != size:
            raise ValueError(
                f"the factor of mode {name!r} of init has shape {given[name].shape}, expected "
                f"{(size, rank)}"
            )
    factors = check_factors([given[name] for name in names], sizes, dtype, engine.array_type)
    if factors[0].shape[1] != rank:
        raise ValueError(f"factors of init have {factors[0].shape[1]} columns, expected {rank}")
    for n in constrained:
        name = f"the factor of mode {names[n]!r} of init"
        check_least(factors[n], name, reason=", as nn_modes has this mode")
    if not isinstance(init, CoupledCP):
        return None, factors
    own = [cp_tensor.weights for cp_tensor in init.cp_tensors]
    if len(own) != len(data.blocks):
        raise ValueError(f"init has models of {len(own)} blocks, expected {len(data.blocks)}")
    modes = [tuple(block.names) for block in data.blocks]
    if init.blocks and [*map(tuple, init.blocks)] != modes:
        raise ValueError(f"init has the blocks {init.blocks}, expected {modes}, in this sequence")
    for array in own:
        check_weights(array, rank, dtype, engine.array_type)
    pairs = zip(own, data.blocks, strict=True)
    return engine.xp.stack([array / dtype.type(block.power) for array, block in pairs]), factors


def _match_rows(name: Any, factor: Array, init: CoupledCP, data: CoupledBlocks) -> Array:
    """Return a factor of a guess in the sequence of the data's labels; refuse other labels."""
    known = init.labels.get(name)
    wanted = data.labels.get(name)
    if known is None or wanted is None or np.array_equal(known, wanted):
        return factor
    places = find_places(wanted, known)
    if known.size != wanted.size or (places < 0).any():
        raise ValueError(
            f"init has {known.size} labels of mode {name!r}, such as {known[0]}, expected the "
            f"{wanted.size} of blocks, such as {wanted[0]}: start at random, or from their rows"
        )
    return factor[array_module(factor).asarray(places)]


class _Fit(NamedTuple):
    """What is minimised, how far rounding moves it, and the errors of all blocks and of each."""

    objective: float
    rounding: float
    error: float
    block_errors: list[float]


@dataclass
class _CoupledALS(Run):
    """Iterations of alternating least squares on factors (I, R) of norm 1 and weights (B, R).

    All sums, Gram matrices and systems are in float64, of the factors and weights as they are kept.
    """

    solver = "coupled_parafac"
    data: CoupledBlocks
    constrained: set[int]
    l2_reg: float

    def prepare(self) -> None:
        data = self.data
        self.blocks = self.data.blocks
        self._is_stuck = False
        modes = range(len(data.sizes))
        # For each mode the numbers of the blocks that have it.
        self._uses = [[b for b, block in enumerate(data.blocks) if n in block.modes] for n in modes]
        self._order = sorted(modes, key=lambda n: len(self._uses[n]) > 1)
        self._last = [max(block.modes, key=self._order.index) for block in data.blocks]
        self._groups = [self._group_rows(n) for n in modes]
        self._begin()

    def _group_rows(self, mode: int) -> list[tuple[Any, list[int]]]:
        """Divide the rows of a mode by the blocks that know them: rows, and those blocks."""
        uses = self._uses[mode]
        xp = array_module(self.factors[mode])
        is_known = np.ones((self.factors[mode].shape[0], len(uses)), bool)
        for column, b in enumerate(uses):
            if (places := self.blocks[b].find_places(mode)) is not None:
                is_known[:, column] = np.isin(np.arange(len(is_known)), move(places, np))
        groups = group_rows(is_known, xp)
        return [(rows, [uses[column] for column in known]) for rows, known in groups]

    def _begin(self) -> None:
        """Give the start columns of norm 1; find its weights, if it has none, and its error."""
        factors = self.factors
        xp = array_module(self.factors[0])
        dtype = self.data.dtype
        norms: list[Array] = []
        for mode, factor in enumerate(factors):
            factors[mode], own = _normalize(factor.astype(np.float64), dtype)
            norms.append(own)
        grams = [self._find_grams(mode) for mode in range(len(factors))]
        pairs = list(zip(self.blocks, self._last, strict=True))
        sums = [_add_products(block.mttkrp(last, factors), factors[last]) for block, last in pairs]
        if self.weights is None:
            weights = [self._solve_first_weights(b, grams, own) for b, own in enumerate(sums)]
        else:
            scales = [multiply_all([norms[n] for n in block.modes]) for block in self.blocks]
            weights = [own * scale for own, scale in zip(self.weights, scales, strict=True)]
        self.weights = xp.stack(weights).astype(dtype)
        self._fit = self._measure(grams, sums)

    def _find_grams(self, mode: int) -> dict[int, Array]:
        """Return the Gram matrix of the rows that each block knows."""
        factor = self.factors[mode]
        whole = _multiply_exactly([factor])
        known = {b: self.blocks[b].find_places(mode) for b in self._uses[mode]}
        return {b: whole if p is None else _multiply_exactly([factor[p]]) for b, p in known.items()}

    def step(self, iteration: int) -> float:
        """Update the model, or take a sweep back that raises what is minimised; that ends the run.

        The next sweep would be the same, since a sweep depends on the model alone.
        """
        factors = list(self.factors)
        weights = self.weights
        known = self._fit
        self._fit = self._measure(*self.update(iteration))
        self._is_stuck = not self._fit.objective <= known.objective + known.rounding
        if self._is_stuck:
            self.factors[:], self.weights, self._fit = factors, weights, known
        return self._fit.error

    def is_over(self) -> bool:
        return self._is_stuck or super().is_over()

    def update(self, iteration: int) -> tuple[list[dict[int, Array]], list[Array]]:
        """Update all modes; return the Gram matrices, and each block's inner products with them."""
        factors = self.factors
        weights = self.weights.astype(np.float64)
        grams = [self._find_grams(mode) for mode in range(len(factors))]
        sums: list[Array] = [None] * len(self.blocks)
        for mode in self._order:
            uses = self._uses[mode]
            start = factors[mode].astype(np.float64)
            if len(uses) == 1:  # of one block: its factor takes up the weights
                start = start * weights[uses[0]]
                weights[uses[0]] = 1
            products = {b: self.blocks[b].mttkrp(mode, factors) for b in uses}
            rows = self._solve_mode(mode, start, products, grams, weights)
            factors[mode], norms = _normalize(rows, self.data.dtype)
            grams[mode] = self._find_grams(mode)
            for b, product in products.items():
                weights[b] *= norms
                if self._last[b] == mode:
                    sums[b] = _add_products(product, factors[mode])
        for b, block in enumerate(self.blocks):
            # Weights that no factor can take up, since the block shares all of its modes.
            if all(len(self._uses[n]) > 1 for n in block.modes):
                is_constrained = self.constrained.issuperset(block.modes)
                weights[b] = self._solve_weights(b, grams, sums[b], weights[b], is_constrained)
        self.weights = weights.astype(self.data.dtype)
        return grams, sums

    def _solve_mode(
        self,
        mode: int,
        start: Array,
        products: dict[int, Array],
        grams: list[dict[int, Array]],
        weights: Array,
    ) -> Array:
        """Return the rows of a mode that minimise, from its MTTKRPs and the others' Gram matrices.

        Rows that the same blocks know have one system.
        """
        xp = array_module(start)
        scales = {b: self.blocks[b].weight * weights[b] for b in products}
        target: Array = sum(product * scales[b] for b, product in products.items())
        # Of |w_b|^2, in which the norms of the new columns are.
        ridge = self.l2_reg * xp.diag(sum(scales[b] * weights[b] for b in products))
        solved = xp.empty_like(target)
        for rows, known in self._groups[mode]:
            gram: Array = ridge
            for b in known:
                others = multiply_all([grams[n][b] for n in self.blocks[b].modes if n != mode])
                gram = gram + scales[b][:, None] * others * weights[b]
            solved[rows] = _solve(gram, target[rows], start[rows], mode in self.constrained)
        return solved

    def _solve_first_weights(self, b: int, grams: list[dict[int, Array]], inner: Array) -> Array:
        """Return the weights of a block that minimise, not negative if one of its factors is not.

        So all that follows is in proportion to the data.
        """
        block = self.blocks[b]
        start = array_module(inner).full_like(inner, (block.square / len(inner)) ** 0.5)
        is_constrained = not self.constrained.isdisjoint(block.modes)
        return self._solve_weights(b, grams, inner, start, is_constrained)

    def _solve_weights(
        self,
        b: int,
        grams: list[dict[int, Array]],
        inner: Array,
        start: Array,
        is_constrained: bool,
    ) -> Array:
        """Return the weights of a block that minimise, with its factors as they are."""
        gram = multiply_all([grams[n][b] for n in self.blocks[b].modes])
        gram = gram + self.l2_reg * array_module(gram).eye(len(gram))
        return _solve(gram, inner[None], start[None], is_constrained)[0]

    def measure_start(self) -> float:
        return self._fit.error

    def _measure(self, grams: list[dict[int, Array]], sums: list[Array]) -> _Fit:
        """Compare the model with the data."""
        squares = []
        magnitudes = []
        penalties = []
        # Of columns in float32, which are 1 but for rounding.
        lengths = [move(sum_columns(factor.astype(np.float64) ** 2), np) for factor in self.factors]
        for b, block in enumerate(self.blocks):
            gram = move(multiply_all([grams[n][b] for n in block.modes]), np)
            weights = move(self.weights[b], np).astype(np.float64)
            inner = float(weights @ move(sums[b], np))
            squares.append(abs(block.square + float(weights @ gram @ weights) - 2 * inner))
            magnitudes.append(block.square + float(abs(weights) @ abs(gram) @ abs(weights)))
            norms = multiply_all([lengths[n] for n in block.modes])
            penalties.append(self.l2_reg * float(norms @ weights**2))
        shares = np.array([block.weight for block in self.blocks])
        wholes = np.array([block.square for block in self.blocks])
        return _Fit(
            objective=float(shares @ np.add(squares, penalties)),
            rounding=_ROUNDING * float(shares @ magnitudes),
            error=float(shares @ squares / (shares @ wholes)) ** 0.5,
            block_errors=((squares / wholes) ** 0.5).tolist(),
        )

    def make(self) -> CoupledCP:
        pairs = zip(self.weights, self.blocks, strict=True)
        weights = [own * own.dtype.type(block.power) for own, block in pairs]
        factors = dict(zip(self.data.sizes, self.factors, strict=True))
        blocks = [block.names for block in self.blocks]
        labels = self.data.labels
        kind = LabelledCoupledCP if {*labels} == {*factors} else CoupledCP
        return kind(
            factors,
            make_cp_tensors(factors, blocks, weights, labels),
            labels,
            blocks=[*map(tuple, blocks)],
            block_weights=[*self.data.weights],
        )

    def finish(self) -> CoupledCP:
        """Sort the components, choose their signs, and add the errors."""
        xp = array_module(self.weights)
        weights = move(self.weights, np)
        scales = np.array([block.weight for block in self.blocks])[:, None]
        order = np.argsort(-(scales * weights.astype(np.float64) ** 2).sum(axis=0), kind="stable")
        weights = weights[:, order]
        factors = [factor.take(xp.asarray(order), axis=1) for factor in self.factors]
        signs = [find_signs(factor) for factor in factors]
        for b, block in enumerate(self.blocks):
            weights[b] *= np.prod([signs[n] for n in block.modes], axis=0)
            alone = [n for n in block.modes if len(self._uses[n]) == 1]
            if free := [n for n in alone if n not in self.constrained]:
                signs[free[-1]] *= np.where(weights[b] < 0, -1, 1)
                weights[b] = abs(weights[b])
        signed = zip(factors, signs, strict=True)
        self.factors[:] = [factor * xp.asarray(sign, factor.dtype) for factor, sign in signed]
        self.weights = xp.asarray(weights)
        model = self.make()
        model.errors = self.errors
        model.block_errors = self._fit.block_errors
        return model


#: Of lists of factors, Gram matrices in float64: errors are differences of sums of their elements.
_multiply_exactly = functools.partial(multiply_grams, None, dtype=np.float64)


def _add_products(product: Array, factor: Array) -> Array:
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
    xp = array_module(gram)
    sizes = column_norms(solved) * xp.sqrt(gram.diagonal())
    return xp.where(sizes > _NOTHING * sizes.max(), solved, 0)
