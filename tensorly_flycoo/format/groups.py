"""Groups of adjacent modes, whose indices a layout merges into one.

A group's factor is the Khatri-Rao product of its modes' factors. Modes of few combinations make one
pass over the nonzeros in place of one each, and read one row in place of one each.
"""

import operator
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from .packing import Groups, field_width, ungrouped

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

    >>> choose_groups((16, 3, 105, 365, 20), 330_000)
    ((0, 1, 2), (3, 4))
    >>> choose_groups((1000, 1000, 1000), 10**6)
    ((0,), (1,), (2,))
    """
    ndim = len(shape)
    best = ungrouped(ndim)
    if nnz // num_slabs < _LEAST_NNZ or ndim > _MOST_MODES:
        return best
    for num_groups in range(ndim - 1, 1, -1):
        num_rows: dict[Groups, int] = {}  # of the merged factors of each division that is allowed
        for groups in _divide_modes(ndim, num_groups):
            merged = [group for group in groups if len(group) > 1]
            counts = [_count_rows(shape, group) for group in merged]
            limits = [_limit_rows(shape, group, nnz, num_slabs) for group in merged]
            if all(count <= limit for count, limit in zip(counts, limits, strict=True)):
                num_rows[groups] = sum(counts)
        if not num_rows:
            break  # fewer groups have more rows still
        best = min(num_rows, key=num_rows.__getitem__)
    return best


def _divide_modes(ndim: int, num_groups: int) -> Iterator[Groups]:
    """Yield all divisions of the modes into so many groups of adjacent ones.

    >>> list(_divide_modes(3, 2))
    [((0,), (1, 2)), ((0, 1), (2,))]
    """
    for starts in combinations(range(1, ndim), num_groups - 1):
        edges = [0, *starts, ndim]
        yield tuple(tuple(range(start, stop)) for start, stop in pairwise(edges))


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
    """Return the groups of the modes from `count` on, if the modes before make one group.

    >>> list_rest(((0, 1), (2, 3), (4,)), 3)
    ((3,), (4,))
    """
    return tuple(group[max(0, count - group[0]) :] for group in groups if group[-1] >= count)


def find_groups(
    groups: object, shape: Sequence[int], nnz: int, num_slabs: int = 1
) -> tuple[Groups, int | None]:
    """Return the groups that a user gives: "auto", None, or a division of the modes.

    Returns also how many of the first modes, which are apart in the groups, become a group whose
    combinations that occur are numbered; None if each slab counts them first.
    """
    if groups is None:
        return ungrouped(len(shape)), 0
    if isinstance(groups, str):
        if groups != "auto":
            raise ValueError(f'groups is {groups!r}, expected "auto", None or groups of modes')
        is_small = nnz // num_slabs < _LEAST_NNZ or len(shape) < 3
        return choose_groups(shape, nnz, num_slabs), 0 if is_small else None
    division = check_groups(groups, shape)
    first, *rest = division
    num_numbered = 0
    most_rows = max(_FEW_ROWS, _limit_rows(shape, first, nnz, num_slabs))
    if len(first) > 1 and _count_rows(shape, first) > most_rows:
        num_numbered = len(first)
        division = (*ungrouped(num_numbered), *rest)
    check_products(division, shape)
    return division, num_numbered


def check_groups(groups: Any, shape: Sequence[int]) -> Groups:
    """Return a division of the modes, as tuples; refuse anything else."""
    last = len(shape) - 1
    example = [tuple(range(last)), (last,)] if last > 0 else [(0,)]
    refusal = (
        f"groups is {groups!r}, expected all modes from 0 to {last} in order, such as {example}"
    )
    try:
        division = tuple(tuple(map(operator.index, group)) for group in groups)
    except TypeError:
        raise TypeError(refusal) from None
    modes = [mode for group in division for mode in group]
    if modes != list(range(len(shape))) or () in division:
        raise ValueError(refusal)
    return division


def check_products(groups: Groups, shape: Sequence[int]) -> None:
    """Refuse groups with more combinations of indices than can be numbered in 32 bits."""
    for group in groups:
        num_rows = _count_rows(shape, group)
        if len(group) > 1 and num_rows > 2**32:
            raise ValueError(
                f"groups has {group} with {num_rows:,} combinations of indices, "
                f"expected at most {2**32:,}: divide it"
            )


def _count_rows(shape: Sequence[int], group: Sequence[int]) -> int:
    """Count the rows of a group's factor: sizes but the first are rounded up to powers of two.

    >>> _count_rows((10, 5, 3), (0, 1, 2))  # 10 * 8 * 4
    320
    """
    return shape[group[0]] << sum(field_width(shape[mode]) for mode in group[1:])


def _limit_rows(shape: Sequence[int], group: Sequence[int], nnz: int, num_slabs: int) -> int:
    """Return the most rows of a group's factor that are worth it.

    Each slab has a factor of its own. Slabs divide its rows among them if the mode that is cut is
    in the group; else each has them all.
    """
    num_factors = 1 if find_longest_mode(shape) in group else num_slabs
    return min(_MOST_ROWS, int(nnz // (num_factors * _LEAST_NONZEROS)))
