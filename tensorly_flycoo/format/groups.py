"""Groups of adjacent modes, whose indices a layout merges into one.

A group's factor is the Khatri-Rao product of its modes' factors. Modes of few combinations make one
pass over the nonzeros in place of one each, and read one row in place of one each.
"""

import operator
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

from .packing import Groups, field_width

#: The most rows of a merged factor: with 32 columns in float32 they fill a GPU's L2 cache. A
#: larger one costs more than it saves.
_MOST_ROWS = 2**18

#: The fewest nonzeros for each row of a merged factor. Measured: 8 win, 2 lose.
_LEAST_NONZEROS = 8

#: So many rows of a factor cost nothing, however few the nonzeros.
_FEW_ROWS = 2**10

#: The fewest nonzeros of a tensor: a pass over fewer takes no longer than the launches of groups.
_LEAST_NNZ = 2**15

#: Modes beyond this number stay apart, so that few divisions into groups are compared.
_MOST_MODES = 12


def choose_groups(shape: Sequence[int], nnz: int, num_slabs: int = 1) -> Groups:
    """Choose groups of adjacent modes: as few as may be, then those with the fewest rows.

    The choice depends on nothing but the shape and the numbers of nonzeros and slabs, so results do
    not depend on where and how they are computed.
    """
    modes = range(len(shape))
    sizes = (nnz, num_slabs)
    best: Groups = tuple((mode,) for mode in modes)
    if nnz // num_slabs < _LEAST_NNZ or len(shape) > _MOST_MODES:
        return best
    for num_groups in range(len(shape) - 1, 1, -1):
        allowed = {}
        for starts in combinations(modes[1:], num_groups - 1):
            # Those that begin with mode 0 and with each of `starts`.
            groups = tuple(tuple(range(*pair)) for pair in pairwise([0, *starts, len(shape)]))
            merged = {group: _count_rows(shape, group) for group in groups if len(group) > 1}
            if all(rows <= _find_limit(shape, own, *sizes) for own, rows in merged.items()):
                allowed[groups] = sum(merged.values())
        if not allowed:
            break
        best = min(allowed, key=lambda groups: allowed[groups])
    return best


def explain_apart(shape: Sequence[int], nnz: int, num_slabs: int) -> str:
    """Say why a tensor, or one of its slabs, has no groups of modes."""
    if len(shape) < 3:
        return "fewer than 3 modes"
    if nnz // num_slabs < _LEAST_NNZ:
        return f"fewer than {_LEAST_NNZ:,} nonzeros in a slab"
    if len(choose_groups(shape, nnz, num_slabs)) < len(shape):
        return "groups= leaves them apart"
    if len(shape) > _MOST_MODES:
        return f"more than {_MOST_MODES} modes, the first with too many combinations of indices"
    return "too many combinations of neighbouring indices, or numbers would lengthen records"


def find_longest_mode(shape: Sequence[int]) -> int:
    """Return the mode along which a tensor is cut: the first of its longest ones."""
    return max(range(len(shape)), key=lambda mode: shape[mode])


def list_rest(groups: Groups, count: int) -> Groups:
    """Return the groups of the modes from `count` on, when those before make one of their own."""
    return tuple(group[max(0, count - group[0]) :] for group in groups if group[-1] >= count)


def find_groups(
    groups: object, shape: Sequence[int], nnz: int, num_slabs: int = 1
) -> tuple[Groups, int | None]:
    """Return the groups that a user gives: "auto", None, or a division of the modes.

    Returns also how many of the first modes, which are apart in the groups, become a group whose
    combinations that occur are numbered; None if each slab counts them first.
    """
    if groups is None:
        return tuple((mode,) for mode in range(len(shape))), 0
    if isinstance(groups, str):
        if groups != "auto":
            raise ValueError(f'groups is {groups!r}, expected "auto", None or groups of modes')
        is_small = nnz // num_slabs < _LEAST_NNZ or len(shape) < 3
        return choose_groups(shape, nnz, num_slabs), 0 if is_small else None
    found = check_groups(groups, shape)
    count = 0
    most = max(_FEW_ROWS, _find_limit(shape, found[0], nnz, num_slabs))
    if len(found[0]) > 1 and _count_rows(shape, found[0]) > most:
        count = len(found[0])
        found = (*((mode,) for mode in found[0]), *found[1:])
    check_products(found, shape)
    return found, count


def check_groups(groups: Any, shape: Sequence[int]) -> Groups:
    """Return a division of the modes, as tuples; refuse anything else."""
    what = f"groups is {groups!r}, expected all modes from 0 to {len(shape) - 1} in order, such as"
    example = [tuple(range(len(shape) - 1)), (len(shape) - 1,)] if len(shape) > 1 else [(0,)]
    try:
        found = tuple(tuple(map(operator.index, group)) for group in groups)
    except TypeError:
        raise TypeError(f"{what} {example}") from None
    if [mode for group in found for mode in group] != list(range(len(shape))) or () in found:
        raise ValueError(f"{what} {example}")
    return found


def check_products(groups: Groups, shape: Sequence[int]) -> None:
    """Refuse groups with more combinations of indices than can be numbered in 32 bits."""
    for group in groups:
        if len(group) > 1 and _count_rows(shape, group) > 2**32:
            raise ValueError(
                f"groups has {group} with {_count_rows(shape, group):,} combinations of indices, "
                f"expected at most {2**32:,}: divide it"
            )


def _count_rows(shape: Sequence[int], group: Sequence[int]) -> int:
    """Count the rows of a group's factor: sizes but the first are rounded up to powers of two."""
    return shape[group[0]] << sum(field_width(shape[mode]) for mode in group[1:])


def _find_limit(shape: Sequence[int], group: Sequence[int], nnz: int, num_slabs: int) -> int:
    """Return the most rows of a group's factor, of which a slab has all but of the mode cut."""
    num_factors = 1 if find_longest_mode(shape) in group else num_slabs
    return min(_MOST_ROWS, int(nnz // (num_factors * _LEAST_NONZEROS)))
