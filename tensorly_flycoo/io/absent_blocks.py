"""Find combinations of indices in some modes that no row of a table has."""

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..base.checks import num_cells

#: Combinations that are looked through, at most: 2 GiB with their coordinates.
_MOST_COMBINATIONS = 2**26

#: If rows fill at least this share of the cells of the blocks that have any, then a block without
#: any row is no accident.
_FULL = 0.1


#: If blocks that have rows have one in this share of their cells, the others are no zeros either.
NEARLY_FULL = 0.9


class AbsentBlocks(NamedTuple):
    """Combinations of the labels of some modes that no row of a table has."""

    modes: tuple[int, ...]
    num_absent: int
    num_combinations: int  # of all labels that occur
    lost_rows: float  # that they would have if labels came together by chance


def find_absent(coords: np.ndarray, shape: Sequence[int], names: Sequence[str]) -> np.ndarray:
    """Return the combinations of indices (ndim, count) that are not among coords, sorted.

    Examples
    --------
    >>> find_absent(np.array([[0, 1, 1], [1, 0, 1]]), (2, 2), ["donor", "type"]).tolist()
    [[0], [0]]
    """
    if num_cells(shape) > _MOST_COMBINATIONS:
        raise ValueError(
            f"missing is {[*names]}, with {num_cells(shape):,} combinations, expected at most "
            f'{_MOST_COMBINATIONS:,}: name fewer modes, or pass "unknown" if all cells without a '
            "row are"
        )
    has_rows = np.zeros(num_cells(shape), bool)
    has_rows[np.ravel_multi_index([*coords], shape)] = True
    return np.stack(np.unravel_index(np.flatnonzero(~has_rows), shape))


def suspect_absent(coords: np.ndarray, shape: Sequence[int]) -> AbsentBlocks | None:
    """Return the modes of a table of values that lack whole blocks, if two or more seem to.

    Of several such modes, the fewest, and then those whose absent blocks would have had most rows.
    """

    @functools.cache  # most tables have too many combinations for any to be found
    def find_shares(mode: int) -> np.ndarray:
        """Return how large a part of the rows each label of a mode has."""
        return np.bincount(coords[mode], minlength=shape[mode]) / coords.shape[1]

    for num_modes in range(2, len(shape)):
        candidates = itertools.combinations(range(len(shape)), num_modes)
        absents = [_look_at(modes, coords, shape, find_shares) for modes in candidates]
        suspects = [absent for absent in absents if absent is not None]
        if suspects:
            return max(suspects, key=lambda absent: absent.lost_rows)
    return None


def _look_at(
    modes: tuple[int, ...],
    coords: np.ndarray,
    shape: Sequence[int],
    find_shares: Callable[[int], np.ndarray],
) -> AbsentBlocks | None:
    """Return the absent blocks in some modes, if they do not look like chance; else None.

    Blocks look absent if at least half of the combinations of labels have rows, and in a good part
    of their cells; if hardly any combination would lack rows by chance; and if few combinations
    have hardly any rows. The last rule excludes many tables of counts, such as of names by sex,
    in which some labels rarely come together, and others never.
    """
    num_rows = coords.shape[1]
    sizes = [shape[mode] for mode in modes]
    if num_cells(sizes) > num_rows:
        return None
    shares = [find_shares(mode) for mode in range(len(shape))]
    num_used = [int(np.count_nonzero(share)) for share in shares]  # labels that occur
    num_combinations = num_cells(num_used[mode] for mode in modes)
    block_size = num_cells(num_used) // num_combinations
    # Before counting: with so many combinations, half of them cannot have enough rows.
    least_rows = _FULL * block_size * num_combinations / 2
    if num_rows < least_rows:
        return None

    combinations = np.ravel_multi_index([coords[mode] for mode in modes], sizes)
    row_counts = np.bincount(combinations, minlength=num_cells(sizes))
    num_present = int(np.count_nonzero(row_counts))
    num_absent = num_combinations - num_present
    if not 0 < num_absent <= num_present or num_rows < _FULL * block_size * num_present:
        return None

    # The numbers of rows if labels came together by chance: a combination has none with a
    # probability of exp(-expected), as in a Poisson distribution.
    outer = functools.reduce(np.multiply.outer, [shares[mode] for mode in modes])
    expected = num_rows * outer.reshape(-1)
    is_possible = expected > 0
    absent_by_chance = float(np.exp(-expected[is_possible]).sum())
    is_poor = (row_counts > 0) & (row_counts < expected / 10)
    num_poor = int(is_poor.sum())
    if absent_by_chance > num_absent / 10 or num_poor > 1 + num_absent / 4:
        return None
    lost_rows = float(expected[row_counts == 0].sum())
    return AbsentBlocks(modes, num_absent, num_combinations, lost_rows)


def describe_absent(absent: AbsentBlocks, names: Sequence[str]) -> str:
    """Describe how many blocks are absent, and the `missing` that settles what they mean."""
    mode_names = [str(names[mode]) for mode in absent.modes]
    kind = _name_blocks(mode_names)
    argument = json.dumps(mode_names, ensure_ascii=False)
    count = f"{absent.num_absent:,} of {absent.num_combinations:,}"
    return (
        f"{count} {kind} ({', '.join(mode_names)}) have no row: "
        f"zeros to parafac; pass missing={argument} if they were not measured, "
        'or missing="raise" if they are zeros'
    )


def describe_single_gaps(num_known: int, num_measured: int, names: Sequence[str]) -> str:
    """Describe how many cells of the blocks that have rows have none, and what to pass."""
    mode_names = ", ".join(map(str, names))
    return (
        f"{num_measured - num_known:,} of {num_measured:,} cells have no row, though their "
        f"{_name_blocks(names)} ({mode_names}) have some: they are zeros; pass "
        'missing="unknown" if they were not measured'
    )


def _name_blocks(mode_names: Sequence[str]) -> str:
    """Return the word for combinations of labels of some modes."""
    if len(mode_names) == 2:
        return "pairs"
    return "combinations"
