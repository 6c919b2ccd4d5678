"""The factors of groups of modes, and the passes over the nonzeros that modes of a group share.

With T, the MTTKRP of a group, that of its mode a is ``sum over b of T[a, b] * B[b]``. T depends on
no factor of the group, so in a sweep one pass serves all its modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base.array_modules import Array
from ..spread.row_shards import RowShards
from ..spread.whole_factors import gather

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.packing import RecordFormat


class LastPass:
    """The last pass in one decomposition: T, and the factors that it was computed from.

    It serves a later mode of the same group if the factors outside of the group are the very same
    arrays; in the sweep that made it they must not be changed in place.
    """

    def __init__(self) -> None:
        self._rows: Array | None = None
        self._others: list[Any] = []
        self._mode = -1  # which used it last

    def find(self, factors: Sequence[Any], mode: int, group: Sequence[int]) -> Array | None:
        """Return T if it serves `mode`; else free it."""
        others = _list_others(factors, group)
        if not group[0] <= self._mode < mode or any(map(_differ, others, self._others)):
            self._rows, self._others = None, others
        self._mode = mode
        return self._rows

    def keep(self, rows: Array) -> None:
        """Keep what `find` did not return."""
        self._rows = rows


def _list_others(factors: Sequence[Any], group: Sequence[int]) -> list[Any]:
    return [factor for n, factor in enumerate(factors) if n not in group]


def _differ(a: object, b: object) -> bool:
    return a is not b


def merge_factors(
    factors: Sequence[Array | RowShards],
    record_format: RecordFormat,
    engine: Engine,
    skip: int | None = None,
) -> dict[int, Array | RowShards]:
    """Return the factor of each group but `skip`: a mode's, or a Khatri-Rao product of several."""
    merged = {}
    for number, group in enumerate(record_format.groups):
        if number != skip:
            own = [factors[mode] for mode in group]
            if len(own) > 1:
                whole = [gather(factor) for factor in own]
                own = [engine.combine_rows(whole, record_format.bits_below[number])]
            merged[number] = own[0]
    return merged
