"""Groups of adjacent modes, whose indices a layout merges into one.

A group's factor is the Khatri-Rao product of its modes' factors. Modes of few combinations make one
pass over the nonzeros in place of one each, and read one row in place of one each.
"""

from collections.abc import Sequence
from itertools import combinations, pairwise
from numbers import Integral

from .packing import Groups, field_width

#: The most rows of a merged factor: with 32 columns in float32 they fill a GPU's L2 cache. A
#: larger one costs more than it saves.
_MOST_ROWS = 2**18

#: The fewest nonzeros for each row of a merged factor, or numbered combination of indices.
#: Measured: 8 win, 2 lose.
LEAST_NONZEROS = 8

#: So many rows of a factor cost nothing, however few the nonzeros.
_FEW_ROWS = 2**10

#: The fewest nonzeros of a tensor: a pass over fewer takes no longer than the launches of groups.
_LEAST_NNZ = 2**15

#: Modes beyond this number stay apart, so that few divisions into groups are compared.
_MOST_MODES = 12


def choose_groups(shape: Sequence[int], nnz: int) -> Groups:
    """Choose groups of adjacent modes: as few as may be, then those with the fewest rows.

    The choice depends on nothing but the shape and the number of nonzeros, so results do not depend
    on where and how they are computed.

    >>> choose_groups((16, 3, 105, 365, 20), 330_000)
    ((0, 1, 2), (3, 4))
    >>> choose_groups((1000, 1000, 1000), 10**6)
    ((0,), (1,), (2,))
    """
    modes, most = range(len(shape)), min(_MOST_ROWS, nnz // LEAST_NONZEROS)
    best: Groups = tuple((mode,) for mode in modes)
    if nnz < _LEAST_NNZ or len(shape) > _MOST_MODES:
        return best
    for num_groups in range(len(shape) - 1, 1, -1):
        allowed = {}
        for starts in combinations(modes[1:], num_groups - 1):
            groups = _divide(len(shape), starts)
            sizes = [_count_rows(shape, group) for group in groups if len(group) > 1]
            if max(sizes) <= most and _is_divisible(shape, groups):
                allowed[groups] = sum(sizes)
        if not allowed:
            break
        best = min(allowed, key=lambda groups: allowed[groups])
    return best


def find_longest_mode(shape: Sequence[int]) -> int:
    """Return the mode along which a tensor is cut: the first of its longest ones."""
    return max(range(len(shape)), key=lambda mode: shape[mode])


def list_rest(groups: Groups, count: int) -> Groups:
    """Return the groups of the modes from `count` on, when those before make one of their own."""
    rest = (tuple(mode for mode in group if mode >= count) for group in groups)
    return tuple(group for group in rest if group)


def find_groups(groups: object, shape: Sequence[int], nnz: int) -> tuple[Groups, int | None]:
    """Return the groups that a user gives: "auto", None, or a division of the modes.

    Returns also how many of the first modes, which are apart in the groups, become a group whose
    combinations that occur are numbered; None if they are counted first.
    """
    if groups is None:
        return tuple((mode,) for mode in range(len(shape))), 0
    if isinstance(groups, str):
        if groups != "auto":
            raise ValueError(f'groups is {groups!r}, expected "auto", None or groups of modes')
        return choose_groups(shape, nnz), 0 if nnz < _LEAST_NNZ else None
    found, count = check_groups(groups, shape), 0
    most = min(_MOST_ROWS, max(_FEW_ROWS, nnz // LEAST_NONZEROS))
    is_long = _count_rows(shape, found[0]) > most
    if len(found[0]) > 1 and (is_long or not _is_divisible(shape, found)):
        count = len(found[0])
        found = (*((mode,) for mode in found[0]), *found[1:])
    check_products(found, shape)
    if not _is_divisible(shape, found):
        raise ValueError(
            f"groups is {groups!r}, expected the longest mode, {find_longest_mode(shape)}, to "
            "begin a group"
        )
    return found, count


def check_groups(groups: object, shape: Sequence[int]) -> Groups:
    """Return a division of the modes, as tuples; refuse anything else."""
    what = f"groups is {groups!r}, expected all modes from 0 to {len(shape) - 1} in order, such as"
    example = [tuple(range(len(shape) - 1)), (len(shape) - 1,)] if len(shape) > 1 else [(0,)]
    if (
        not isinstance(groups, Sequence)
        or not all(isinstance(group, Sequence) for group in groups)
        or not all(isinstance(mode, Integral) for group in groups for mode in group)
    ):
        raise TypeError(f"{what} {example}")
    found = tuple(tuple(map(int, group)) for group in groups)
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


def _divide(ndim: int, starts: Sequence[int]) -> Groups:
    """Return the groups that begin with mode 0 and with each of `starts`."""
    return tuple(tuple(range(*pair)) for pair in pairwise([0, *starts, ndim]))


def _count_rows(shape: Sequence[int], group: Sequence[int]) -> int:
    """Count the rows of a group's factor: sizes but the first are rounded up to powers of two."""
    return shape[group[0]] << sum(field_width(shape[mode]) for mode in group[1:])


def _is_divisible(shape: Sequence[int], groups: Groups) -> bool:
    """Return whether the longest mode is the first of its group, so that slabs can cut it."""
    longest = find_longest_mode(shape)
    return any(group[0] == longest for group in groups)
