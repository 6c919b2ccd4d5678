"""The factors of groups of modes, and the passes over the nonzeros that modes of a group share.

With T, the MTTKRP of a group, that of its mode a is ``sum over b of T[a, b] * B[b]``. T depends on
no factor of the group, so in a sweep one pass serves all its modes. Each piece of a tensor (a slab,
or all of it) makes its own T, and contracts it where it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..base.array_modules import Array

if TYPE_CHECKING:
    from .layout import Layout


@dataclass
class GroupRows:
    """T of one piece: memory for it, whether a pass has written it, and what completes that."""

    rows: Array
    is_known: bool = False
    complete: Callable[[Array], object] | None = None


#: `LastPass.find` with its first arguments: takes a group, what makes T, and perhaps `piece`.
FindRows: TypeAlias = Callable[..., GroupRows]


class LastPass:
    """The last pass in one decomposition: T of each piece, and the factors it was computed from.

    It serves the later modes of the same group if the factors outside of the group are the very
    same arrays; in the sweep that made it they must not be changed in place.
    """

    def __init__(self) -> None:
        # For each piece T, the factors outside of the group, and the mode which used it last.
        self._pieces: dict[int, tuple[GroupRows, list[Any], int]] = {}

    def find(
        self,
        factors: Sequence[Any],
        mode: int,
        group: Sequence[int],
        make: Callable[[], Array],
        piece: int = 0,
    ) -> GroupRows:
        """Return T of a piece for `mode`; if the last one does not serve, free it, `make` one."""
        others = [factor for n, factor in enumerate(factors) if n not in group]
        found, known_others, last_mode = self._pieces.pop(piece, (None, [], -1))
        if (
            found is None
            or not found.is_known
            or not group[0] <= last_mode < mode
            or any(map(operator.is_not, others, known_others))
        ):
            del found
            found = GroupRows(make(), complete=self.find_completion(factors, mode))
        if mode < group[-1]:
            self._pieces[piece] = found, others, mode
        return found

    def find_completion(
        self, factors: Sequence[Any], mode: int
    ) -> Callable[[Array], object] | None:
        """Return what adds to T of `mode` all that its pass does not know; here nothing."""
        return None


def apply_to_groups(
    layout: Layout,
    operation: str,
    engine: Any,
    inputs: Mapping[int, Array],
    mode: int,
    out: Array,
    find_rows: FindRows | None,
    stays: bool,
    options: dict[str, Any],
) -> Array | None:
    """Run an MTTKRP, also of ratios, on a piece with groups of modes: see `Layout.apply`."""
    record_format = layout.record_format
    number, _ = record_format.places[mode]
    group, weights = record_format.groups[number], None

    def make_rows() -> Array:
        return engine.xp.empty((layout.merged.shape[number], out.shape[1]), out.dtype)

    if len(group) == 1:
        found = GroupRows(out)
    else:
        found = GroupRows(make_rows()) if find_rows is None else find_rows(group, make_rows)
        weights = options.pop("weights", None)
    total = None
    if not found.is_known:
        merged = _merge_factors(layout, engine, inputs)
        compute = getattr(engine, operation)(layout, merged, number, found.rows, **options)
        total = layout.take_step(number, compute, engine, stays)
        if found.complete is not None:
            found.complete(found.rows)
        found.is_known, found.complete = True, None
    if len(group) == 1:
        return total
    own = {n: inputs[n] for n in group if n != mode}
    if number > 0 or layout.prefixes is None:
        given, bits = [own.get(n) for n in group], record_format.bits_below[number]
        engine.contract_rows(found.rows, given, bits, out, weights)
    else:
        own[len(group)] = found.rows
        layout.prefixes.apply("mttkrp", engine, own, mode, out, weights=weights)
    return total


def _merge_factors(layout: Layout, engine: Any, factors: Mapping[int, Array]) -> dict[int, Array]:
    """Return the factor of each group all of whose modes have one: for several a product."""
    record_format, merged = layout.record_format, {}
    for number, group in enumerate(record_format.groups):
        own = [factors[mode] for mode in group if mode in factors]
        if len(own) < len(group):
            continue
        merged[number] = own[0]
        if len(group) == 1:
            continue
        if number > 0 or layout.prefixes is None:
            merged[number] = engine.combine_rows(own, record_format.bits_below[number])
        else:
            rows = engine.xp.empty((record_format.num_prefixes, own[0].shape[1]), own[0].dtype)
            layout.prefixes.apply("mttkrp", engine, dict(enumerate(own)), len(own), rows)
            merged[number] = rows
    return merged
