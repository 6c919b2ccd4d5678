"""Entries that a fit does not see, drawn at random to judge it by."""

from collections.abc import Iterator

import numpy as np

from ..base.array_modules import move
from ..ops.sampling import make_sampler
from ..tensor.tensor import FlycooTensor


def count_share(num_entries: int, share: float) -> int:
    """Return how many entries a share of them is: at least one, and never all.

    >>> count_share(10, 0.3), count_share(10, 0.01), count_share(2, 0.99)
    (3, 1, 1)
    """
    count = max(1, round(share * num_entries))
    return min(count, num_entries - 1)


def draw_parts(num_entries: int, size: int, random: np.random.RandomState) -> Iterator[np.ndarray]:
    """Divide the numbers of entries at random into parts of a size; the last one may be smaller.

    >>> [part.tolist() for part in draw_parts(5, 2, np.random.RandomState(0))]
    [[2, 0], [1, 3], [4]]
    """
    order = random.permutation(num_entries)
    for start in range(0, num_entries, size):
        yield order[start : start + size]


def hold_out(
    x: FlycooTensor, count: int, random: np.random.RandomState, with_zeros: bool = True
) -> np.ndarray:
    """Draw cells to hold out: `count` nonzeros and, `with_zeros`, as many other cells.

    Return their coordinates (ndim, n), on the host. Each index of another cell is that of a nonzero
    of its own, so that busy rows are held out as often as they occur. Nearly all of these cells are
    zeros; then the coordinates are sorted and without duplicates.
    """
    numbers = next(draw_parts(x.nnz, count, random))
    num_donors = x.ndim if with_zeros else 0  # nonzeros that give another cell its indices
    donors = random.randint(x.nnz, size=(num_donors, count))
    places = x._engine.xp.asarray(np.append(numbers, donors))
    coords = move(make_sampler(x).take(places)[0], np)
    coords = coords.reshape(x.ndim, 1 + num_donors, count)
    stored = coords[:, 0]
    if not with_zeros:
        return stored
    modes = np.arange(x.ndim)
    cells = coords[modes, 1 + modes]  # the index of mode n comes from donor n
    return np.unique(np.hstack([stored, cells]), axis=1)
