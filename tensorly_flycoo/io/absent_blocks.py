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
    """Combinations of indices in `modes` without rows, of `num_labelled` whose labels occur."""

    modes: tuple[int, ...]
    num_absent: int
    num_labelled: int


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

    They seem to if at least half of their combinations have rows, in a good part of their cells,
    hardly any would lack rows if labels came together by chance, and few have hardly any rows: in
    many a table of counts, such as of names by sex, some labels rarely come together, and others
    never. Of several such modes these are the ones whose absent blocks would have had most rows.
    """
    num_rows = coords.shape[1]
    pairs = zip(coords, shape, strict=True)
    shares = [np.bincount(rows, minlength=size) / num_rows for rows, size in pairs]
    used = [int(np.count_nonzero(share)) for share in shares]
    found, most_rows = None, 0.0
    for num_modes in range(2, len(shape)):
        for modes in itertools.combinations(range(len(shape)), num_modes):
            own, count = [shape[n] for n in modes], num_cells(used[n] for n in modes)
            block_size = num_cells(used) // count
            if num_cells(own) > num_rows or num_rows < _FULL * block_size * count / 2:
                continue  # they are too many to have enough rows
            places = np.ravel_multi_index([coords[n] for n in modes], own)
            row_counts = np.bincount(places, minlength=num_cells(own))
            num_present = int(np.count_nonzero(row_counts))
            num_absent = count - num_present
            if not 0 < num_absent <= num_present or num_rows < _FULL * block_size * num_present:
                continue
            outer = functools.reduce(np.multiply.outer, [shares[n] for n in modes])
            expected = num_rows * outer.reshape(-1)
            by_chance = float(np.exp(-expected[expected > 0]).sum())
            num_poor = int(((row_counts > 0) & (row_counts < expected / 10)).sum())
            lost_rows = float(expected[row_counts == 0].sum())
            is_suspect = by_chance <= num_absent / 10 and num_poor <= 1 + num_absent / 4
            if is_suspect and lost_rows > most_rows:
                found, most_rows = AbsentBlocks(modes, num_absent, count), lost_rows
        if found is not None:
            break
    return found


def describe_absent(absent: AbsentBlocks, names: Sequence[str]) -> str:
    """Say which blocks are absent, and how to say what that means."""
    own = [str(names[mode]) for mode in absent.modes]
    kind = "pairs" if len(own) == 2 else "combinations"
    listed = json.dumps(own, ensure_ascii=False)
    return (
        f"{absent.num_absent:,} of {absent.num_labelled:,} {kind} ({', '.join(own)}) have no row: "
        f"zeros to parafac; pass missing={listed} if they were not measured, "
        'or missing="raise" if they are zeros'
    )
