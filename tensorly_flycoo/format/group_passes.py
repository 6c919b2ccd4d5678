"""The factors of groups of modes, and the passes over the nonzeros that modes of a group share.

With T, the MTTKRP of a group, that of its mode a is ``sum over b of T[a, b] * B[b]``. T depends on
no factor of the group, so in a sweep one pass serves all its modes. Each piece of a tensor (a slab,
or all of it) makes its own T, and contracts it where it is.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..base.array_modules import Array


@dataclass
class GroupRows:
    """T of one piece: memory for it, whether a pass has written it, and what completes that."""

    rows: Array
    is_known: bool = False
    complete: Callable[[Array], object] | None = None


#: `find` of an `ops.mttkrp.LastPass` with its first arguments: takes a group, what makes T, and
#: perhaps `piece`.
FindRows: TypeAlias = Callable[..., GroupRows]


def apply_to_groups(
    layout: Any,
    operation: Callable[..., Array | None],
    engine: Any,
    inputs: Mapping[int, Array],
    mode: int,
    out: Array,
    find_rows: FindRows | None,
    **options: Any,
) -> Array | None:
    """Compute T of the group of `mode`, unless the last pass serves; contract it to `out`.

    `operation`, such as an MTTKRP, is a method of the engine: see `Layout.apply`. A mode without a
    group takes T as it is.
    """
    record_format = layout.record_format
    total = None
    number, _ = record_format.places[mode]
    group = record_format.groups[number]
    found = GroupRows(out)
    weights = None
    if len(group) > 1:
        weights = options.pop("weights", None)
        shape = (layout.merged.shape[number], out.shape[1])
        make_rows = functools.partial(engine.xp.empty, shape, out.dtype)
        found = GroupRows(make_rows()) if find_rows is None else find_rows(group, make_rows)
    if not found.is_known:
        merged = {}
        for n, modes in enumerate(record_format.groups):
            if inputs.keys() >= set(modes):
                is_one = len(modes) == 1
                merged[n] = inputs[modes[0]] if is_one else _merge(layout, engine, inputs, n)
        total = operation(layout, merged, number, found.rows, **options)
        if found.complete is not None:
            found.complete(found.rows)
        found.is_known = True
        found.complete = None
    if len(group) == 1:
        return total
    own: dict[int, Any] = dict(zip(group, map(inputs.get, group), strict=True))
    own[mode] = None  # an operation may read the factor of the mode too
    if number > 0 or layout.prefixes is None:
        bits_below = record_format.bits_below[number]
        engine.contract_rows(found.rows, list(own.values()), bits_below, out, weights)
    else:
        own[len(group)] = found.rows
        del own[mode]
        engine.mttkrp(layout.prefixes, own, mode, out, weights)
    return total


def _merge(layout: Any, engine: Any, factors: Mapping[int, Array], number: int) -> Array:
    """Return the factor of a group of several modes: the product of theirs."""
    record_format = layout.record_format
    own = operator.itemgetter(*record_format.groups[number])(factors)
    if number > 0 or layout.prefixes is None:
        return engine.combine_rows(own, record_format.bits_below[number])
    rows = engine.xp.empty((record_format.num_prefixes, own[0].shape[1]), own[0].dtype)
    engine.mttkrp(layout.prefixes, dict(enumerate(own)), len(own), rows)
    return rows
