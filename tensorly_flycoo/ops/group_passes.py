"""The factors of groups of modes, and the passes over the nonzeros that modes of a group share.

With T, the MTTKRP of a group, that of its mode a is ``sum over b of T[a, b] * B[b]``. T depends on
no factor of the group, so in a sweep one pass serves all its modes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..base.array_modules import Array
from ..spread.row_shards import RowShards
from ..spread.whole_factors import gather

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..spread.slab_layout import AnyLayout


class LastPass:
    """The last pass in one decomposition: T, and the factors that it was computed from.

    It serves the later modes of the same group if the factors outside of the group are the very
    same arrays; in the sweep that made it they must not be changed in place.
    """

    def __init__(self) -> None:
        self._rows: Array | None = None
        self._others: list[Any] = []
        self._mode = -1  # which used it last

    def find(
        self, factors: Sequence[Any], mode: int, group: Sequence[int], make: Callable[[], Array]
    ) -> Array:
        """Return T for `mode`; make it if the last one does not serve, and free that before."""
        others = [factor for n, factor in enumerate(factors) if n not in group]
        rows, self._rows = self._rows, None
        if not group[0] <= self._mode < mode or any(map(operator.is_not, others, self._others)):
            rows = None
        if rows is None:
            rows = make()
        if mode < group[-1]:
            self._rows, self._others, self._mode = rows, others, mode
        else:
            self._others, self._mode = [], -1
        return rows


def merge_factors(
    factors: Sequence[Array | RowShards],
    layout: AnyLayout,
    engine: Engine,
    skip: int | None = None,
) -> dict[int, Array | RowShards]:
    """Return the factor of each group but `skip`: a mode's, or a Khatri-Rao product of several."""
    record_format = layout.record_format
    if len(record_format.groups) == record_format.ndim:
        return {n: factor for n, factor in enumerate(factors) if n != skip}
    merged = {}
    for number, group in enumerate(record_format.groups):
        if number == skip:
            continue
        merged[number] = factors[group[0]]
        if len(group) > 1:
            own = [gather(factors[mode]) for mode in group]
            if number > 0 or layout.prefixes is None:
                merged[number] = engine.combine_rows(own, record_format.bits_below[number])
            else:
                rows = engine.xp.empty((record_format.num_prefixes, own[0].shape[1]), own[0].dtype)
                inputs = dict(enumerate(own))
                layout.prefixes.apply("mttkrp", engine, inputs, len(own), rows)
                merged[number] = rows
    return merged


def contract_rows(
    rows: Array,
    factors: Sequence[Array | RowShards],
    mode: int,
    layout: AnyLayout,
    engine: Engine,
    out: Array,
    weights: Array | None = None,
) -> None:
    """Write the MTTKRP of a mode to `out`, from that of its group, `rows`."""
    record_format = layout.record_format
    number, _ = record_format.find_place(mode)
    group = record_format.groups[number]
    own = [None if n == mode else gather(factors[n]) for n in group]
    if number > 0 or layout.prefixes is None:
        engine.contract_rows(rows, own, record_format.bits_below[number], out, weights)
    else:
        inputs = {n: array for n, array in enumerate([*own, rows]) if n != mode}
        layout.prefixes.apply("mttkrp", engine, inputs, mode, out, weights=weights)
