"""Alternating least squares from many random starts at once.

The columns of an MTTKRP do not depend on each other. So one MTTKRP with the columns of all runs
updates a mode of every run, and the small matrices of all runs are multiplied and inverted as a
stack (n, R, R). Runs that have converged or are dropped leave the stack.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.reporting import report
from ..engines.tall import (
    call_lapack,
    inner_product,
    is_own,
    multiply,
    solve_rows,
    transposed_product,
)
from ..format.packing import round_up
from ..loop.cp_model import make_cp_tensor, multiply_all
from ..loop.initial_guess import draw_factors
from ..loop.masked_rows import MaskedRows
from ..loop.masks import MissingEntries
from ..loop.momentum import Pace, extrapolate
from ..loop.observed_rows import fit_alike
from ..loop.smoothness import smooth
from ..loop.stopping import has_converged
from ..loop.whole_tensor import WholeTensor
from ..ops.call_memory import count_iteration_nbytes
from ..ops.mttkrp import LastPass
from ..spread.slab_layout import SlabLayout
from ..spread.spread_layout import SpreadLayout
from ..tensor.tensor import FlycooTensor
from .match import match_all

#: Runs that have ended stay in the stack if fewer columns than this would be left: MTTKRP would not
#: be faster, and would need another kernel, which may have to be compiled. They leave when they are
#: a quarter of it, lest there be a kernel for each number of runs. (Missing entries cost by run.)
_LEAST_COLUMNS = 16

#: On a GPU the stack has a multiple of so many runs: then rows of columns of either precision are
#: aligned, for which there are fewer kernels, and the faster ones.
_GPU_MULTIPLE = 4

#: Bytes of the factors of all runs together, on a CPU, that suit its caches: with three times as
#: many, each column of an MTTKRP took twice as long (1 MB of L2 a core, 2000^3, 300K nonzeros).
_CPU_CACHE_NBYTES = 2**22

#: Bytes of a row that MTTKRP reads together on a CPU; filling them pays even beyond the caches.
_CPU_ROW_NBYTES = 128

#: How much larger the arrays of a run are here than in a run of its own: each factor lies in
#: memory as a stack and as columns, and a mode's MTTKRP does too; momentum keeps a stack more.
_COPIES = 4

#: Columns of resampled runs that are computed together: of nycflights on a CPU, each takes a third
#: more time with 400 than with 128.
_RESAMPLED_COLUMNS = 128

#: The last models of each resampled run, from which it is extrapolated.
PATH_LENGTH = 8

#: What keeps `_find_limits` from dividing by rounding errors, relative to what it divides by.
_RIDGE = 1e-6

#: The share of the free memory that all runs together may take.
_SHARE = 0.5

#: No run is dropped before so many iterations; runs are compared with each other after as many.
_PATIENCE = 10

#: Runs whose factor match score is so high are on the way to the same solution.
_SAME = 0.95


@dataclass(eq=False)
class Run:
    """A run: its CP tensor, once it has ended, and its relative error after each iteration."""

    cp_tensor: Any = None
    errors: Any = field(default_factory=list)  # a list
    is_dropped: bool = False
    leader: int | None = None  # the run for which it was dropped since they match
    pace: Pace = field(default_factory=Pace)

    @property
    def is_active(self) -> bool:
        return self.cp_tensor is None and not self.is_dropped


class Stopping(NamedTuple):
    """Options of `parafac` that end a run."""

    n_iter_max: int = 100
    tol: float = 1e-8
    cvg_criterion: str = "abs_rec_error"

    def ends(self, errors: Sequence[Any]) -> bool:
        is_last = len(errors) >= self.n_iter_max
        return is_last or has_converged(errors, self.tol, self.cvg_criterion)


def run_together(
    x: FlycooTensor,
    rank: int,
    seeds: Sequence[int],
    stopping: Stopping,
    has_momentum: bool = False,
    missing: MissingEntries | None = None,
    keep_all: bool = True,
) -> list[Run]:
    """Run ``parafac(x, rank, init="random", random_state=seed)`` for each of the seeds.

    With `has_momentum`, also with ``linesearch="nesterov"``. With `missing`, those entries of `x`
    are imputed: without momentum. Runs to repeat alone have no CP tensor: two together would not
    be faster or not fit, or `x` is zero, which a lone run refuses.

    Unless `keep_all`, runs are dropped by the rule of `best_of`, whose notes also say which results
    are reproduced to the bit. (An error that approaches its limit like 1 / t has t times its last
    decrease to go; a run that matches a better one that is not dropped is dropped for it.) The host
    waits for a GPU once per iteration of all runs, and to compare them.
    """
    size = _choose_batch_size(x, rank, 0 if missing is None else missing.count)
    is_lone = size == 1 and missing is None and (keep_all or isinstance(x._layout, SpreadLayout))
    runs = [Run() for _ in seeds]
    if size == 0 or is_lone or x.norm() == 0:
        return runs
    for start in range(0, len(seeds), size):
        own = runs[start : start + size]
        report(f"runs {start + 1} to {start + len(own)} of {len(seeds)} together")
        batch = _Batch.draw(x, rank, seeds[start : start + size], missing)
        _run_batch(batch, own, runs, stopping, has_momentum, keep_all)
    return runs


class RowRules(NamedTuple):
    """How the rows of resampled runs are fitted, besides by least squares."""

    missing: MissingEntries | None = None
    l2_reg: float = 0.0
    non_negative: Collection[int] = ()
    smoothness: Mapping[int, float] = {}  # of modes without missing entries or such signs


#: Least squares alone.
PLAIN_RULES = RowRules()


def run_resampled(
    x: FlycooTensor,
    factors: Sequence[Array],
    mode: int,
    weights: np.ndarray,
    num_iterations: int,
    rules: RowRules = PLAIN_RULES,
) -> list[CPTensor]:
    """Iterate `parafac` from one model for each row of `weights` (n, I), of the rows of a mode.

    Rows are fitted by the `rules`, whose missing entries are of `x`. Results are extrapolated, and
    on the host. Rows of the mode's factor are multiplied by the roots of their weights: least
    squares with weights fit the rows of `x` times these roots.
    """
    rank = factors[0].shape[1]
    xp = array_module(factors[0])
    paths = []
    x = x if rules.missing is None else rules.missing.observed
    size = max(1, min(_choose_batch_size(x, rank), _RESAMPLED_COLUMNS // rank))
    for start in range(0, len(weights), size):
        own = xp.asarray(weights[start : start + size, :, None], x.dtype)
        count = len(own)
        path: deque[np.ndarray] = deque(maxlen=PATH_LENGTH)
        report(f"fits {start + 1} to {start + count} of {len(weights)} together")
        if is_cupy(own):
            own = xp.concatenate([own, *[own[:1]] * (-count % _GPU_MULTIPLE)])
        stacks = [xp.stack([factor] * len(own)) for factor in factors]
        batch = _ResampledBatch(x, stacks, {mode: own}, rules)
        for number in range(num_iterations + 1):
            if number:
                batch.update()
            path.append(move(xp.concatenate(batch.stacks, axis=1)[:count], np))
        paths.append(np.stack(path))
    stacks = np.split(find_limits(np.concatenate(paths, axis=1)), np.cumsum(x.shape)[:-1], axis=1)
    for n in rules.non_negative:
        stacks[n] = np.maximum(stacks[n], 0)
    stacks[mode] *= np.sqrt(weights[:, :, None])
    return [make_cp_tensor(None, own) for own in zip(*stacks, strict=True)]


def find_limits(path: np.ndarray) -> np.ndarray:
    """Call `_find_limits` with one thread of the BLAS, on whose number its products depend."""
    return call_lapack(_find_limits, path)


def _find_limits(path: np.ndarray) -> np.ndarray:
    r"""Extrapolate all factors of all runs after each iteration (T + 1, n, I, R) to their limits.

    Near the model, from which all runs start, one linear map gives the next change of any run:
    :math:`d_{t+1} = J d_t`. So after T changes a run is :math:`J (I - J)^{-1} d_T` from its limit.
    This maps each :math:`d_t - d_{t+1}` to :math:`d_{t+1}`: the coefficients that combine the
    former, of all runs, to :math:`d_T` combine the latter to what is missing. It is reduced rank
    extrapolation (Sidi, SIAM Journal on Numerical Analysis 23, 1986) with the changes of all runs.
    """
    changes = np.diff(path.reshape(*path.shape[:2], -1), axis=0)
    after = changes[1:].reshape(-1, changes.shape[2])
    bends = changes[:-1].reshape(after.shape) - after
    gram = bends @ bends.T
    gram.flat[:: len(gram) + 1] += _RIDGE * np.trace(gram) / max(1, len(gram)) or 1.0
    shares = np.linalg.solve(gram, bends @ changes[-1].T)
    return path[-1] + (shares.T @ after).reshape(path.shape[1:])


def _choose_batch_size(x: FlycooTensor, rank: int, num_missing: int = 0) -> int:
    """Choose how many runs fit free memory and a CPU's caches together; 0 if not even one does."""
    free = x._engine.count_free_nbytes()
    size = 2**10
    if free is not None:
        each = _COPIES * count_iteration_nbytes(x, rank)
        # On a GPU each column has the values too, and MTTKRP of the mode that numbers entries.
        each += num_missing * x.dtype.itemsize * (1 if x.device == "cpu" else _COPIES * rank)
        size = int(_SHARE * free) // each
    if x.device == "cpu":
        column_nbytes = sum(x.shape) * x.dtype.itemsize
        num_columns = max(_CPU_CACHE_NBYTES // column_nbytes, _CPU_ROW_NBYTES // x.dtype.itemsize)
        size = min(size, max(1, num_columns // rank))
    return size


def _run_batch(
    batch: "_Batch",
    own: Sequence[Run],
    runs: Sequence[Run],
    stopping: Stopping,
    has_momentum: bool,
    keep_all: bool,
) -> None:
    """Iterate the own ones of all runs until they have ended; then they may stay in the stack."""
    least = 1 if batch.imputed is not None else -(-_LEAST_COLUMNS // batch.stacks[0].shape[2])
    stack = [*own, *(Run(is_dropped=True) for _ in batch.stacks[0][len(own) :])]
    while num_active := sum(run.is_active for run in stack):
        size = round_up(max(num_active, least), batch.multiple)
        if 4 * size <= 3 * len(stack):
            kept = np.sort(np.argsort([not run.is_active for run in stack], kind="stable")[:size])
            batch.keep(kept)
            stack = [stack[place] for place in kept]
        steps = [run.pace.step if run.is_active else 0.0 for run in stack]
        if has_momentum:
            batch.extrapolate(steps)
        is_back = np.zeros(len(stack), bool)
        for place, (run, error) in enumerate(zip(stack, batch.iterate(), strict=True)):
            if not run.is_active:
                continue
            if steps[place] and not error <= run.errors[-1]:
                run.pace.take_back()
                is_back[place] = True
            else:
                if has_momentum and run.errors:
                    run.pace.advance()
                run.errors.append(error)
                if stopping.ends(run.errors):
                    run.cp_tensor = batch.take(place)
        if is_back.any():
            batch.take_back(is_back)
        if not keep_all:
            _drop(runs, stack, batch.take)


def _drop(runs: Sequence[Run], stack: Sequence[Run], take: Callable[[int], CPTensor]) -> None:
    """Drop active runs; see `run_together`.

    `take` copies the model at a place of the stack, which few iterations need.
    """
    going = {run: place for place, run in enumerate(stack) if run.is_active}
    order = sorted((run for run in runs if run.errors), key=lambda run: float(run.errors[-1]))
    t = min((len(run.errors) for run in going), default=0)
    if t < _PATIENCE:
        return
    least = float(order[0].errors[-1])
    for run in order[-(-_PATIENCE * len(order) // t) :]:
        if run in going:
            before, last = map(float, run.errors[-2:])
            if last - 2 * t * max(before - last, 0.0) > least:
                run.cp_tensor = take(going[run])
                run.is_dropped = True
    rivals = [run for run in order if not run.is_dropped]
    if t % _PATIENCE or len(rivals) < 2:
        return
    models: Any = [take(going[run]) if run in going else run.cp_tensor for run in rivals]
    scores = match_all([model.factors for model in models])
    for place, (run, model) in enumerate(zip(rivals, models, strict=True)):
        better = [n for n in range(place) if not rivals[n].is_dropped and scores[place, n] >= _SAME]
        if run in going and better:
            run.cp_tensor = model
            run.is_dropped = True
            run.leader = runs.index(rivals[better[0]])


class ImputedStarts(LastPass):
    """The share of missing entries in MTTKRPs of many models whose columns are side by side.

    It is a `LastPass`, whose T includes them: the observed tensor's groups share their passes too.
    """

    def __init__(self, missing: MissingEntries, num_models: int) -> None:
        super().__init__()
        layout = missing.observed._layout
        self._engine = missing.engine
        record_format = layout.record_format
        self._units: list[tuple[Sequence[int], Sequence[int]]] = []  # modes and their bits
        for group, bits in zip(record_format.groups, record_format.bits_below, strict=True):
            # T of a slab lacks rows; missing entries may have prefixes that no nonzero has.
            if not isinstance(layout, SlabLayout) and (layout.prefixes is None or group[0] > 0):
                self._units.append((group, bits))
            else:
                self._units += [((mode,), (0,)) for mode in group]
        rows = [
            reduce(or_, [missing.coords[n] << bit for n, bit in zip(*unit, strict=True)])
            for unit in self._units
        ]
        sizes = [missing.shape[modes[0]] << bits[0] for modes, bits in self._units]
        engine = missing.engine
        xp = missing.engine.xp
        self._entries = engine.entries(engine, xp.stack(rows), sizes, missing.dtype)
        self._values = xp.stack([missing.start] * num_models, axis=1)
        self._merged: dict[int, tuple[list[Array], Array]] = {}

    def keep(self, places: Array) -> None:
        """Drop all models but those at `places`."""
        self._values = self._engine.xp.ascontiguousarray(self._values[:, places])
        self._merged = {}

    def find_completion(
        self, factors: Sequence[Any], mode: int
    ) -> Callable[[Array], object] | None:
        number, is_whole = self._find_unit(mode)
        return (lambda rows: self._add(rows, factors, number)) if is_whole else None

    def complete(self, products: Array, factors: Sequence[Array], mode: int) -> Array:
        """Add the missing entries to the MTTKRP of a mode, unless T has them."""
        number, is_whole = self._find_unit(mode)
        return products if is_whole else self._add(products, factors, number)

    def _find_unit(self, mode: int) -> tuple[int, bool]:
        """Return the number of a mode's unit, and whether that is a group, whose T is completed."""
        pairs = enumerate(self._units)
        return next((n, len(modes) > 1) for n, (modes, _) in pairs if mode in modes)

    def _add(self, out: Array, factors: Sequence[Array], number: int) -> Array:
        others = {n: self._merge(factors, n) for n in range(len(self._units)) if n != number}
        self._entries.add_mttkrp(others, self._values, number, out)
        return out

    def _merge(self, factors: Sequence[Array], number: int) -> Array:
        """Return the Khatri-Rao product of the factors of a unit; kept until one is replaced."""
        modes, bits = self._units[number]
        given = [factors[mode] for mode in modes]
        known, merged = self._merged.get(number, ([], None))
        if merged is None or any(a is not b for a, b in zip(given, known, strict=True)):
            merged = given[0] if len(given) == 1 else self._engine.combine_rows(given, bits)
            self._merged[number] = given, merged
        return merged

    def measure(self, factors: Sequence[Array]) -> Array:
        """Impute from the models; return what `Entries.evaluate` does."""
        columns = {n: self._merge(factors, n) for n in range(len(self._units))}
        self._values, sums = self._entries.evaluate(columns, self._values)
        return sums


class _Batch:
    """Runs of one rank, iterated together; the lists have an array for each mode.

    These are the factors of all runs (n, I, R), now and before the last step; their columns as
    MTTKRP reads them (I, n * R); and their Gram matrices (n, R, R). The latter two count rows of a
    mode as often as its `weights` (n, I, 1) say, if it has some.
    """

    def __init__(
        self,
        x: FlycooTensor,
        stacks: list[Array],
        imputed: ImputedStarts | None = None,
        weights: dict[int, Array] | None = None,
    ) -> None:
        self.x, self.imputed, self.data = x, imputed, WholeTensor(x, imputed)
        self.weights = weights or {}
        self.stacks = stacks
        self.columns = [*stacks]
        self.grams = [*stacks]
        for mode, stack in enumerate(stacks):
            self._replace(mode, stack)
        self.before: list[Array] = []
        self.multiple = _GPU_MULTIPLE if is_cupy(stacks[0]) else 1  # of which are runs

    def _replace(self, mode: int, stack: Array) -> None:
        """Replace the factors of a mode, and what is computed from them."""
        counted = stack * self.weights[mode] if mode in self.weights else stack
        self.stacks[mode], self.columns[mode] = stack, _lay_out(counted)
        if is_own(stack[0].T, stack[0]):
            pairs = zip(stack, counted, strict=True)
            self.grams[mode] = np.stack([multiply(factor.T, own) for factor, own in pairs])
            return
        if is_cupy(stack):
            stack, counted = (of.astype(np.float64, copy=False) for of in (stack, counted))
        self.grams[mode] = stack.swapaxes(1, 2) @ counted

    @classmethod
    def draw(
        cls, x: FlycooTensor, rank: int, seeds: Sequence[int], missing: MissingEntries | None = None
    ) -> "_Batch":
        """Draw the initial guesses of TensorLy."""
        guesses = [draw_factors(x, rank, tl.check_random_state(seed)) for seed in seeds]
        if is_cupy(guesses[0][0]):
            guesses += guesses[:1] * (-len(guesses) % _GPU_MULTIPLE)
        stacks = [np.stack(factors) for factors in zip(*guesses, strict=True)]
        if missing is None:
            return cls(x, stacks)
        return cls(missing.observed, stacks, ImputedStarts(missing, len(guesses)))

    def keep(self, places: np.ndarray) -> None:
        """Drop all runs but those at `places`."""
        ids = array_module(self.stacks[0]).asarray(places)
        self.stacks = [stack[ids] for stack in self.stacks]
        self.before = [stack[ids] for stack in self.before]
        self.columns = [_lay_out(stack) for stack in self.stacks]
        self.grams = [gram[ids] for gram in self.grams]
        if self.imputed is not None:
            self.imputed.keep(ids)

    def take(self, place: int) -> CPTensor:
        """Return a copy of one run's model."""
        return make_cp_tensor(None, [stack[place].copy() for stack in self.stacks])

    def extrapolate(self, steps: Sequence[float]) -> None:
        """Move all factors but the first, which is not read, by as many of their last changes."""
        before = self.before
        self.before = self.stacks.copy()
        if not before:
            return
        each = array_module(before[0]).asarray(steps, before[0].dtype)[:, None, None]
        for mode in range(1, self.x.ndim):
            self._replace(mode, extrapolate(self.stacks[mode], before[mode], each))

    def take_back(self, is_back: np.ndarray) -> None:
        """Give some runs the factors that they had before they were extrapolated."""
        chosen = array_module(self.stacks[0]).asarray(is_back)[:, None, None]
        pairs = zip(self.before, self.stacks, strict=True)
        self.stacks = [np.where(chosen, *pair) for pair in pairs]

    def iterate(self) -> list[np.floating]:
        """Update all modes of all runs; return their errors."""
        return self._measure(*self.update())

    def update(self) -> tuple[Array, Array]:
        """Update all modes of all runs; return the last one's MTTKRP and factors."""
        for mode in range(self.x.ndim):
            num_runs, size, rank = self.stacks[mode].shape
            products = self.data.mttkrp(None, self.columns, mode)
            if self.imputed is not None:
                products = self.imputed.complete(products, self.columns, mode)
            products = products.reshape(size, num_runs, rank)
            rows = products.transpose(1, 0, 2).copy()  # (n, I, R)
            del products
            stack = self._solve(rows, mode)
            self._replace(mode, stack)
        return rows, stack

    def _solve(self, rows: Array, mode: int) -> Array:
        """Return the factors of a mode (n, I, R) that its MTTKRP `rows` give."""
        others = self.grams[:mode] + self.grams[mode + 1 :]
        # The engine takes pseudo-inverses where it must, if it has a kernel.
        inverses = self.x._engine.invert_products(others, rows.dtype)
        if inverses is None:
            matrices = multiply_all(self.grams, mode).astype(rows.dtype, copy=False)
            pairs = zip(matrices, rows, strict=True)  # on the CPU to the bit as for lone runs
            solved = [solve_rows(*pair, wants_sums=True)[0] for pair in pairs]
            return array_module(rows).stack(solved)
        stack = (rows @ inverses).astype(rows.dtype)
        if rows.dtype == np.float64:  # a step of refinement reduces the residual
            stack += (rows - stack @ multiply_all(self.grams, mode)) @ inverses
        return stack

    def _measure(self, rows: Array, stack: Array) -> list[np.floating]:
        """Compute the errors as for a lone run, after a single copy to the host."""
        squares = multiply_all(self.grams).astype(np.float64, copy=False)
        squares = squares.reshape(len(squares), -1).sum(axis=1)
        norm = self.x.norm()
        if is_cupy(rows):
            inner = (rows * stack).sum(axis=1, dtype=np.float64).sum(axis=1)
        else:
            inner = np.array([inner_product(*pair) for pair in zip(rows, stack, strict=True)])
        imputed = [] if self.imputed is None else [*self.imputed.measure(self.columns)]
        found = move(array_module(rows).stack([squares, inner, *imputed]), np)
        if imputed:  # as `ImputedTensor.measure` does
            total = self.x._layout.norm**2 + found[2]
            errors = np.sqrt(np.abs(total + found[0] - 2 * (found[1] + found[3])) / total)
            return [*errors]
        errors = np.sqrt(np.abs(float(norm) ** 2 + found[0] - 2 * found[1]))
        return [*(errors.astype(self.x.dtype) / norm)]


class _ResampledBatch(_Batch):
    """Runs that fit their rows by rules, one run after another where these are no least squares."""

    def __init__(
        self, x: FlycooTensor, stacks: list[Array], weights: dict[int, Array], rules: RowRules
    ) -> None:
        self._rules = rules
        missing = rules.missing
        rank = stacks[0].shape[2]
        self._masked = None if missing is None else MaskedRows(missing, rank)
        super().__init__(x, stacks, None, weights)

    def _replace(self, mode: int, stack: Array) -> None:
        super()._replace(mode, stack)
        strength = self._rules.smoothness.get(mode, 0.0)
        if strength:
            steps = np.diff(stack, axis=1)
            self.grams[mode] = self.grams[mode] + strength * (steps.swapaxes(1, 2) @ steps)

    def _solve(self, rows: Array, mode: int) -> Array:
        rules = self._rules
        strength = self._rules.smoothness.get(mode, 0.0)
        if strength:
            rows = array_module(rows).stack([smooth(own, strength) for own in rows])
        if self._masked is None and not rules.l2_reg and mode not in rules.non_negative:
            return super()._solve(rows, mode)
        solved = [self._fit(own, number, mode) for number, own in enumerate(rows)]
        return array_module(rows).stack(solved).astype(rows.dtype, copy=False)

    def _fit(self, products: Array, number: int, mode: int) -> Array:
        """Fit the rows of one run, in float64."""
        rules = self._rules
        is_non_negative = mode in self._rules.non_negative
        factors = [stack[number].astype(np.float64, copy=False) for stack in self.stacks]
        products = products.astype(np.float64, copy=False)
        if self._masked is None:
            gram = multiply_all([of[number] for of in self.grams], mode).astype(np.float64)
            gram = gram + rules.l2_reg * array_module(gram).eye(len(gram))
            if is_non_negative:
                return fit_alike(products, gram, factors[mode], non_negative=True)
            return solve_rows(gram, products)[0]
        weights = {n: of[number].astype(np.float64, copy=False) for n, of in self.weights.items()}
        counted = [of * weights[n] if n in weights else of for n, of in enumerate(factors)]
        pairs = zip(factors, counted, strict=True)
        grams = [transposed_product(own, of) for own, of in pairs]  # of which a part is subtracted
        return self._masked.fit(
            products,
            grams,
            factors,
            mode,
            l2_reg=rules.l2_reg,
            non_negative=is_non_negative,
            row_weights={n: of[:, 0] for n, of in weights.items()},
        )


def _lay_out(stack: Array) -> Array:
    """Lay the factors of all runs side by side: (I, n * R)."""
    return stack.transpose(1, 0, 2).copy().reshape(stack.shape[1], -1)
