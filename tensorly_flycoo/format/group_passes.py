"""The factors of groups of modes, and the passes over the nonzeros that modes of a group share.

With T, the MTTKRP of a group, that of its mode a is ``sum over b of T[a, b] * B[b]``. T depends on
no factor of the group, so in a sweep one pass serves all its modes. Each piece of a tensor (a slab,
or all of it) makes its own T, and contracts it where it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..base.array_modules import Array


@dataclass
class GroupRows:
    """T of one piece: its memory, whether a pass has written it, and how to complete it."""

    rows: Array
    is_known: bool = False
    complete: Callable[[Array], object] | None = None  # called once, with the rows of a pass


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
    """Compute T of the group of `mode`, unless it is known, and contract it to `out`.

    `operation`, such as an MTTKRP, is a method of the engine: see `Layout.apply`. `find_rows`
    returns the T of the last pass of the same group, if it still holds. A mode that is a group by
    itself takes T as its result. Returns what `operation` returns, None if T was known.
    """
    number, _ = layout.record_format.places[mode]
    group = layout.record_format.groups[number]
    if len(group) == 1:
        return operation(layout, _merge_all(layout, engine, inputs), number, out, **options)
    weights = options.pop("weights", None)  # of the columns of `out`, not of T
    shape = (layout.merged.shape[number], out.shape[1])
    make_rows = functools.partial(engine.xp.empty, shape, out.dtype)
    group_rows = GroupRows(make_rows()) if find_rows is None else find_rows(group, make_rows)
    total = None
    if not group_rows.is_known:
        factors = _merge_all(layout, engine, inputs)
        total = operation(layout, factors, number, group_rows.rows, **options)
        if group_rows.complete is not None:
            group_rows.complete(group_rows.rows)
            group_rows.complete = None
        group_rows.is_known = True
    _contract(layout, engine, group_rows.rows, inputs, mode, out, weights)
    return total


def _merge_all(layout: Any, engine: Any, inputs: Mapping[int, Array]) -> dict[int, Any]:
    """Return the factor of each group of which all modes have one, by the group's number."""
    merged = {}
    for number, group in enumerate(layout.record_format.groups):
        if not inputs.keys() >= set(group):
            continue
        if len(group) == 1:
            merged[number] = inputs[group[0]]
        else:
            factors = list(map(inputs.__getitem__, group))
            merged[number] = _merge(layout, engine, factors, number)
    return merged


def _merge(layout: Any, engine: Any, factors: Sequence[Array], number: int) -> Any:
    """Return the factor of a group of several modes: the product of their factors."""
    is_numbered = number == 0 and layout.prefixes is not None
    if not is_numbered:
        return engine.make_group_factor(layout, factors, number)
    # The tensor of prefixes has a one for each number, so its MTTKRP for the mode of numbers is
    # the product of the factors' rows for each.
    num_prefixes = layout.record_format.num_prefixes
    rows = engine.xp.empty((num_prefixes, factors[0].shape[1]), factors[0].dtype)
    engine.mttkrp(layout.prefixes, dict(enumerate(factors)), len(factors), rows)
    return rows


def _contract(
    layout: Any,
    engine: Any,
    rows: Array,
    inputs: Mapping[int, Array],
    mode: int,
    out: Array,
    weights: Array | None,
) -> None:
    """Contract T of the group of `mode` (`rows`) with the factors of the group's other modes."""
    number, _ = layout.record_format.places[mode]
    group = layout.record_format.groups[number]
    factors = {n: inputs.get(n) for n in group}
    factors[mode] = None  # an operation may read the factor of the mode too
    is_numbered = number == 0 and layout.prefixes is not None
    if is_numbered:
        del factors[mode]
        # The last mode of the tensor of prefixes numbers them: its factor is T.
        operands = {**factors, len(group): rows}
        engine.mttkrp(layout.prefixes, operands, mode, out, weights)
    else:
        bits_below = layout.record_format.bits_below[number]
        engine.contract_rows(rows, list(factors.values()), bits_below, out, weights)
