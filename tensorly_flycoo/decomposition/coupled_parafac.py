"""Coupled CP decomposition: tensors and matrices that share modes, and so factors."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorly as tl

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_factors, check_least, check_rank, check_real, check_weights
from ..base.fit_record import FitRecord, recording
from ..base.reporting import log_compilation
from ..engines import select_engine
from ..engines.tall import column_norms, find_signs, solve, sum_columns
from ..loop.cp_loop import Callback, Run
from ..loop.cp_model import multiply_all, multiply_grams
from ..loop.guarding import check_options, describe_as
from ..loop.hals import improve
from ..results.coupled_cp import CoupledCP, LabelledCoupledCP, make_cp_tensors
from ..tensor.memory import attempt, check_room
from ..tensor.mirroring import mirror
from .coupled_blocks import Blocks, read_blocks
from .non_negative_parafac_hals import find_constrained
from .parafac import parafac


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
        Arrays have the dtype and are on the device of the result.
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
        models :math:`M_b`. Float32 if all blocks are, else float64.

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
    by position. A block whose rows move is built anew, as is one that becomes float64. Data in host
    memory, but for a FlycooTensor, go to the GPU if another block is there, or else to the device
    that `set_device` chose.

    An iteration updates the modes of a single block first, then those that blocks share, each by
    the exact minimiser: one MTTKRP for each mode of each block, and one system of R equations for
    each mode. What is minimised never rises but by rounding. With one matrix that shares the first
    mode of a tensor of three modes the factors are those of TensorLy's
    `coupled_matrix_tensor_3d_factorization` from the same start.

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
    data, rank = read_blocks(blocks, block_weights, missing), check_rank(rank)
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
    data: Blocks, rank: int, init: Any, random_state: Any, constrained: set[int]
) -> tuple[Array, list[Array]]:
    """Return the weights (number of blocks, R) and the factors of the initial guess."""
    engine, dtype = select_engine(data.device), data.dtype
    names, sizes = list(data.sizes), list(data.sizes.values())
    weights = engine.xp.ones((len(data.blocks), rank), dtype)
    if isinstance(init, str) and init == "random":
        check_room(engine, sum(sizes) * rank * dtype.itemsize)
        random = tl.check_random_state(random_state)
        return weights, [engine.draw_uniform(random, (size, rank), dtype) for size in sizes]
    given = init.factors if isinstance(init, CoupledCP) else init
    if not isinstance(given, Mapping) or {*given} != {*names}:
        got = list(given) if isinstance(given, Mapping) else repr(given)
        raise ValueError(f"init is {got}, expected 'random', a CoupledCP, or a factor for {names}")
    factors = check_factors([given[name] for name in names], sizes, dtype, engine.array_type)
    if factors[0].shape[1] != rank:
        raise ValueError(f"factors of init have {factors[0].shape[1]} columns, expected {rank}")
    for n in constrained:
        name = f"the factor of mode {names[n]!r} of init"
        check_least(factors[n], name, reason=", as nn_modes has this mode")
    if isinstance(init, CoupledCP):
        own = [cp_tensor.weights for cp_tensor in init.cp_tensors]
        if len(own) != len(data.blocks):
            raise ValueError(f"init has models of {len(own)} blocks, expected {len(data.blocks)}")
        for array in own:
            check_weights(array, rank, dtype, engine.array_type)
        weights = engine.xp.stack(
            [array / dtype.type(block.power) for array, block in zip(own, data.blocks, strict=True)]
        )
    return weights, factors


@dataclass
class _CoupledALS(Run):
    """Iterations of alternating least squares on factors (I, R) of norm 1 and weights (B, R)."""

    solver = "coupled_parafac"
    data: Blocks
    constrained: set[int]
    l2_reg: float

    def prepare(self) -> None:
        data, self.blocks = self.data, self.data.blocks
        self._block_errors: list[float] = []
        modes = range(len(data.sizes))
        # For each mode the numbers of the blocks that have it.
        self._uses = [[b for b, block in enumerate(data.blocks) if n in block.modes] for n in modes]
        self._order = sorted(modes, key=lambda n: len(self._uses[n]) > 1)
        self._last = [max(block.modes, key=self._order.index) for block in data.blocks]
        self._groups = [self._group_rows(n) for n in modes]

    def _group_rows(self, mode: int) -> list[tuple[Any, list[int]]]:
        """Divide the rows of a mode by the blocks that know them: rows, and those blocks."""
        uses, xp = self._uses[mode], array_module(self.weights)
        is_known = np.ones((self.factors[mode].shape[0], len(uses)), bool)
        for column, b in enumerate(uses):
            if (places := self.blocks[b].find_places(mode)) is not None:
                is_known[:, column] = np.isin(np.arange(len(is_known)), move(places, np))
        if is_known.all():
            return [(slice(None), uses)]
        groups = []
        for kind in np.unique(is_known, axis=0):
            rows = np.flatnonzero((is_known == kind).all(axis=1))
            groups.append((xp.asarray(rows), [uses[n] for n in np.flatnonzero(kind)]))
        return groups

    def _find_grams(self, mode: int) -> dict[int, Array]:
        """Return the Gram matrix of the rows that each block knows, in float64."""
        factor = self.factors[mode]
        whole = _multiply_exactly([factor])
        known = {b: self.blocks[b].find_places(mode) for b in self._uses[mode]}
        return {b: whole if p is None else _multiply_exactly([factor[p]]) for b, p in known.items()}

    def update(self, iteration: int) -> tuple[list[dict[int, Array]], list[Array]]:
        """Update the model; return what `measure` takes: Gram matrices and inner products."""
        factors, weights, constrained = self.factors, self.weights.copy(), self.constrained
        xp = array_module(weights)
        grams = [self._find_grams(mode) for mode in range(len(factors))]
        sums: list[Array] = [None] * len(self.blocks)
        for mode in self._order:
            uses, factor = self._uses[mode], factors[mode]
            if len(uses) == 1:  # of one block: its factor takes up the weights
                factor = factor * weights[uses[0]]
                weights[uses[0]] = 1
            products = {b: self.blocks[b].mttkrp(mode, factors) for b in uses}
            scales = {b: self.blocks[b].weight * weights[b] for b in uses}
            target: Array = sum(product * scales[b] for b, product in products.items())
            # Of |w_b|^2: the new columns' norms go into w_b; those of a start are left out.
            ridge = self.l2_reg * xp.diag(sum(scales[b] * weights[b] for b in uses))
            parts = []
            for rows, known in self._groups[mode]:
                gram: Array = ridge
                for b in known:
                    others = multiply_all([grams[n][b] for n in self.blocks[b].modes if n != mode])
                    gram = gram + scales[b][:, None] * others * weights[b]
                gram, is_constrained = gram.astype(factor.dtype), mode in constrained
                parts.append(_solve(gram, target[rows], factor[rows], is_constrained))
            factor = parts[0]
            if len(parts) > 1:
                factor = xp.empty_like(target)
                for (rows, _), part in zip(self._groups[mode], parts, strict=True):
                    factor[rows] = part
            norms = column_norms(factor)
            factors[mode] = factor = factor / xp.where(norms == 0, 1, norms)
            grams[mode] = self._find_grams(mode)
            for b, product in products.items():
                weights[b] *= norms
                if self._last[b] == mode:
                    sums[b] = _add_products(product, factor)
        for b, block in enumerate(self.blocks):
            # Weights that no factor can take up, since the block shares all of its modes.
            if all(len(self._uses[n]) > 1 for n in block.modes):
                gram = multiply_all([grams[n][b] for n in block.modes])
                gram = gram + self.l2_reg * xp.eye(len(gram))
                own = weights[b][None].astype(np.float64)
                weights[b] = _solve(gram, sums[b][None], own, {*block.modes} <= constrained)[0]
        self.weights = weights
        return grams, sums

    def measure_start(self) -> float:
        factors = self.factors
        pairs = zip(self.blocks, self._last, strict=True)
        sums = [_add_products(block.mttkrp(last, factors), factors[last]) for block, last in pairs]
        return self.measure(([self._find_grams(mode) for mode in range(len(factors))], sums))

    def measure(self, result: tuple[list[dict[int, Array]], list[Array]]) -> float:
        """Compute the relative error of all blocks, and keep those of each."""
        (grams, sums), exact, squares = result, self.weights.astype(np.float64), []
        self._block_errors = []
        for b, (block, own, inner) in enumerate(zip(self.blocks, exact, sums, strict=True)):
            gram = multiply_all([grams[n][b] for n in block.modes])
            square = abs(block.square + float(own @ gram @ own) - 2 * float(own @ inner))
            squares.append(block.weight * square)
            self._block_errors.append((square / block.square) ** 0.5)
        return (sum(squares) / sum(block.weight * block.square for block in self.blocks)) ** 0.5

    def make(self) -> CoupledCP:
        pairs = zip(self.weights, self.blocks, strict=True)
        weights = [own * own.dtype.type(block.power) for own, block in pairs]
        factors = dict(zip(self.data.sizes, self.factors, strict=True))
        blocks, labels = [block.names for block in self.blocks], self.data.labels
        kind = LabelledCoupledCP if {*labels} == {*factors} else CoupledCP
        return kind(factors, make_cp_tensors(factors, blocks, weights, labels), labels)

    def finish(self) -> CoupledCP:
        """Sort the components, choose their signs, and add the errors."""
        xp, weights = array_module(self.weights), move(self.weights, np)
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
        model.errors, model.block_errors = self.errors, self._block_errors
        return model


#: Of lists of factors, Gram matrices in float64: errors are differences of sums of their elements.
_multiply_exactly = functools.partial(multiply_grams, None, dtype=np.float64)


def _add_products(product: Array, factor: Array) -> Array:
    """Compute the inner product with each component, (R,), in float64."""
    return sum_columns(product.astype(np.float64, copy=False) * factor)


def _solve(gram: Array, targets: Array, rows: Array, is_constrained: bool) -> Array:
    """Return the rows (I, R) of least squares; with a constraint, by sweeps of HALS from `rows`."""
    return improve(targets, gram, rows) if is_constrained else solve(gram, targets.T).T
