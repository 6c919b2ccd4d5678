"""Precision "mixed": factors of fewer bits, until an iteration gains as little as their rounding.

Far from the end, most bits of a factor are noise. In "mixed" a factor is rounded as soon as it is
updated, to numbers that fit rows of half the width (`engines.narrow_rows`), and MTTKRP reads those.
The rounded factor is the model's, so that Gram matrices, MTTKRPs and errors are those of one model,
and the errors that a run reports are true. Where narrow rows do not serve, as for modes in groups,
whole rows of the same numbers give the same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from ..base.array_modules import Array
from ..base.checks import check_choice
from ..base.choices import Choice
from ..engines.narrow_rows import NARROW_FORMATS, NarrowRows
from ..spread import row_shards
from ..spread.row_shards import RowShards, find_owner
from ..tensor.tensor import FlycooTensor
from .stopping import Stop

PRECISIONS = ("own", "mixed")

#: A run turns to whole rows where an iteration lowers the error by less than so many roundings of
#: its factors, relative to the error, or twice the decrease at which it may stop.
_ROUNDINGS = 2.0

_chosen_precision = "own"


def set_precision(precision: str) -> Choice:
    """Choose the precision of the factors of `parafac` far from its end, in the whole process.

    Until it is called, the precision is "own".

    Parameters
    ----------
    precision : {"own", "mixed"}
        "own": all iterations have the precision of the tensor, and give TensorLy's numbers.
        "mixed": factors are rounded to half the width after each update, so that MTTKRP reads half
        the bytes, until an iteration lowers the error by hardly more than their rounding. From
        there on, and in the last iteration, nothing is rounded.

    Returns
    -------
    Choice
        A context manager: ``with set_precision("mixed"):`` restores the previous choice at the end
        of the block. A plain call holds until the next one.

    Raises
    ------
    ValueError
        If `precision` is neither of these names.

    Notes
    -----
    Factors of a float64 tensor are rounded to float32, those of a float32 tensor to 16-bit fixed
    point with a scale for each column. docs/accuracy.md says what that changes. The choice applies
    to all threads, and to `parafac` without a mask, `fixed_modes` or `smoothness` and with any
    `linesearch` but True; other decompositions ignore it. Nothing is rounded where it would not
    pay: where most factors fit a cache, modes are in groups, or the tensor has few nonzeros for
    each row.

    Results have the same bits in every run and layout, for any number of threads and devices.

    Examples
    --------
    >>> import tensorly as tl
    >>> import tensorly_flycoo
    >>> from tensorly_flycoo.testing import random_tensor
    >>> x = random_tensor((10, 20, 30), 500, random_state=0)
    >>> with tl.backend_context("flycoo"), tensorly_flycoo.set_precision("mixed"):
    ...     cp_tensor = tl.decomposition.parafac(x, 3, init="random", random_state=0)
    >>> tensorly_flycoo.set_precision("own")  # until the next call
    <precision 'own'>
    """
    global _chosen_precision
    previous = _chosen_precision

    def restore() -> None:
        global _chosen_precision
        _chosen_precision = previous

    _chosen_precision = check_choice(precision, "precision", PRECISIONS)
    return Choice(f"precision {precision!r}", restore)


class _Narrowed(NamedTuple):
    factor: Callable[[], Any]  # a weak reference
    narrow: NarrowRows


@final
class NarrowFactors:
    """The narrow copies of a run's factors, and whether it still rounds them."""

    def __init__(
        self, x: FlycooTensor, num_iterations: int, tol: float, factors_may_change: bool
    ) -> None:
        self.is_rounding = True
        self._factors_may_change = factors_may_change  # between iterations, by a callback
        self._engine = x._engine
        self._last_iteration = num_iterations - 1
        self._tol = tol
        self._rounding = NARROW_FORMATS[x.dtype].rounding
        self._known: dict[int, _Narrowed] = {}  # by mode
        self._solved: _Narrowed | None = None

    def round(self, factor: Array | RowShards, mode: int) -> Array | RowShards:
        """Round a factor: in place, or if it is row-sharded, as a new one."""
        if isinstance(factor, RowShards):
            rounded, narrow = row_shards.round_rows(factor)
            self.keep(rounded, mode, narrow)
            return rounded
        scales = self._engine.find_scales(factor)
        self.keep(factor, mode, self._engine.round_rows(factor, scales))
        return factor

    def keep(self, factor: Array | RowShards, mode: int, narrow: NarrowRows) -> None:
        """Keep the narrow copy of a factor, which is rounded, while that lives."""
        self._known[mode] = _Narrowed(weakref.ref(factor), narrow)

    def keep_solved(self, factor: Array, narrow: NarrowRows) -> None:
        """Keep the narrow rows of a factor that is rounded as it is solved for."""
        self._solved = _Narrowed(weakref.ref(find_owner(factor)), narrow)

    def take_solved(self, factor: Any, mode: int) -> bool:
        """Take the narrow rows of a factor, if it was rounded as it was solved for; say whether."""
        solved = self._solved
        self._solved = None
        if solved is None or solved.factor() is not find_owner(factor):
            return False
        self.keep(factor, mode, solved.narrow)
        return True

    def find(self, factors: Sequence[Any], skip: int) -> dict[int, NarrowRows] | None:
        """Return the narrow copies of all factors but one; None if not all of them have one."""
        found = {}
        for mode, factor in enumerate(factors):
            if mode == skip:
                continue
            known = self._known.get(mode)
            if known is None or known.factor() is not factor:
                return None
            found[mode] = known.narrow
        return found

    def begin(self, iteration: int) -> None:
        """Begin an iteration: the last one rounds nothing."""
        if self._factors_may_change:
            self._known.clear()
        if iteration == self._last_iteration:
            self.turn()

    def has_served(self, errors: Sequence[float]) -> bool:
        """Return whether the last iteration gained hardly more than rounding takes."""
        if len(errors) < 2:
            return False
        error = float(errors[-1])
        decrease = float(errors[-2]) - error
        least = max(_ROUNDINGS * self._rounding * error, 2 * self._tol)
        return not decrease >= least  # nan too

    def turn(self) -> None:
        """Round nothing any more, and read whole rows."""
        self.is_rounding = False
        self._known.clear()


def narrow_factors(
    x: FlycooTensor,
    rank: int,
    num_iterations: int,
    tol: float,
    factors_may_change: bool = False,
) -> NarrowFactors | None:
    """Return the narrow factors of a run; None where narrow rows do not pay, or rounding.

    With a single iteration, that is the last one.
    """
    if num_iterations < 2 or not _pays(x, rank):
        return None
    return NarrowFactors(x, num_iterations, tol, factors_may_change)


def _pays(x: FlycooTensor, rank: int) -> bool:
    """Return whether a run gains by rounding; nothing reads narrow rows of modes in groups."""
    are_apart = len(x._layout.groups) == x.ndim
    return are_apart and x._engine.narrow_pays(x.shape, x.nnz, rank, x.dtype)


def is_mixed() -> bool:
    """Return whether `set_precision` has chosen "mixed"."""
    return _chosen_precision == "mixed"


@final
class OnceWhole(Stop):
    """Another rule, which no run obeys while it rounds its factors: it turns to whole ones."""

    def __init__(self, rule: Stop, narrow: NarrowFactors) -> None:
        self._rule = rule
        self._narrow = narrow

    def is_over(self, errors: Sequence[float]) -> bool:
        if not self._narrow.is_rounding:
            return self._rule.is_over(errors)
        if self._narrow.has_served(errors):
            self._narrow.turn()
        return False
