"""Find combinations of indices in some modes that no row of a table has."""

import functools
import itertools
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..base.checks import num_cells

#: Combinations that are looked through, at most: 2 GiB with their coordinates.
_MOST_COMBINATIONS = 2**26

#: From which mean share of their cells on that have rows, the fibres of a table count as full, so
#: that one without any row is no accident.
_FULL = 0.1


class AbsentBlocks(NamedTuple):
    """Combinations of indices in `modes` without rows, of those of the labels that occur.

    If labels came together by chance, they would have `lost_rows`.
    """

    modes: tuple[int, ...]
    num_absent: int
    num_combinations: int
    lost_rows: float


def find_absent(coords: np.ndarray, shape: Sequence[int], names: Sequence[str]) -> np.ndarray:
    """Return the combinations of indices (ndim, count) that are not among coords, sorted."""
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
    pairs = zip(coords, shape, strict=True)
    shares = [np.bincount(rows, minlength=size) / rows.size for rows, size in pairs]
    for num_modes in range(2, len(shape)):
        sets = itertools.combinations(range(len(shape)), num_modes)
        looked_at = [_look_at(modes, coords, shares) for modes in sets]
        suspects = [absent for absent in looked_at if absent is not None]
        if suspects:
            return max(suspects, key=lambda absent: absent.lost_rows)
    return None


def _look_at(
    modes: tuple[int, ...], coords: np.ndarray, shares: Sequence[np.ndarray]
) -> AbsentBlocks | None:
    """Return the absent blocks in some modes, if they do not look like chance; else None.

    At least half of the combinations have rows, in a good part of their cells, hardly any would
    lack rows if labels came together by chance, and few have hardly any rows: in many a table of
    counts, such as of names by sex, some labels rarely come together, and others never.
    """
    num_rows = coords.shape[1]
    num_used = [int(np.count_nonzero(share)) for share in shares]
    num_combinations = num_cells(num_used[n] for n in modes)
    block_size = num_cells(num_used) // num_combinations
    sizes = [shares[n].size for n in modes]
    if num_cells(sizes) > num_rows or 2 * num_rows < _FULL * block_size * num_combinations:
        return None  # they are too many to have enough rows
    places = np.ravel_multi_index([coords[n] for n in modes], sizes)
    row_counts = np.bincount(places, minlength=num_cells(sizes))
    num_present = int(np.count_nonzero(row_counts))
    num_absent = num_combinations - num_present
    if not 0 < num_absent <= num_present or num_rows < _FULL * block_size * num_present:
        return None
    outer = functools.reduce(np.multiply.outer, [shares[n] for n in modes])
    expected = num_rows * outer.reshape(-1)
    absent_by_chance = float(np.exp(-expected[expected > 0]).sum())
    num_poor = int(((row_counts > 0) & (row_counts < expected / 10)).sum())
    if absent_by_chance > num_absent / 10 or num_poor > 1 + num_absent / 4:
        return None
    lost_rows = float(expected[row_counts == 0].sum())
    return AbsentBlocks(modes, num_absent, num_combinations, lost_rows)


def describe_absent(absent: AbsentBlocks, names: Sequence[str]) -> str:
    """Say which blocks are absent, and how to say what that means."""
    own = [str(names[mode]) for mode in absent.modes]
    kind = "pairs" if len(own) == 2 else "combinations"
    listed = json.dumps(own, ensure_ascii=False)
    count = f"{absent.num_absent:,} of {absent.num_combinations:,}"
    return (
        f"{count} {kind} ({', '.join(own)}) have no row: "
        f"zeros to parafac; pass missing={listed} if they were not measured, "
        'or missing="raise" if they are zeros'
    )
