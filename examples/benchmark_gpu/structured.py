"""Tensors whose combinations of indices repeat as in real ones, drawn from published figures.

Where modes are drawn apart, nearly every combination of all indices but the last has one nonzero.
In real tensors it has many: a flight's carrier, origin and destination come again on other days.
So a tensor is drawn as a tree here: the distinct first indices, below each the second indices it
occurs with, and so on to the nonzeros. No nonzero is drawn twice.

The figures of FROSTT's tensors are from T. Torun, A. Taweel and D. Unat, "A sparse tensor generator
with efficient feature extraction", Frontiers in Applied Mathematics and Statistics 11, 2025,
doi 10.3389/fams.2025.1589033. Which indices occur together is not among them, and random.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Structure:
    """How often combinations of indices repeat. A prefix is one of the first indices.

    Attributes
    ----------
    shape : tuple of int
    num_prefixes : tuple of int
        Numbers of distinct prefixes of 1, 2, ... indices; the last are the nonzeros.
    variations : tuple of float
        Coefficients of variation: of the number of prefixes by the prefix that is one shorter.
        The first has none.
    """

    shape: tuple
    num_prefixes: tuple
    variations: tuple

    def shrink(self, share, shape=None):
        """Keep a share of the prefixes of each length, which repeat as often as before."""
        num_prefixes = tuple(max(1, round(share * number)) for number in self.num_prefixes)
        return Structure(shape or self.shape, num_prefixes, self.variations)


#: The paper describes prefixes of the last three lengths. Shorter ones, and the variations of the
#: last but two, are guesses. That vast has one nonzero for each pair is from vast-2015-mc1-3d.
STRUCTURES = {
    "nell-2": Structure((12_092, 9_184, 28_818), (12_092, 337_365, 76_879_419), (0, 3.33, 0.892)),
    "vast": Structure(
        (165_427, 11_374, 2, 100, 89), (165_427, *4 * (26_021_945,)), (0, 0.492, 0, 0, 0)
    ),
    "nell-1": Structure(
        (2_902_330, 2_143_368, 25_495_389), (2_902_330, 17_372_409, 143_599_552), (0, 13.6, 7.50)
    ),
    "uber": Structure(
        (183, 24, 1_140, 1_717), (183, 4_391, 692_597, 3_309_490), (0, 0, 0.237, 1.02)
    ),
    "lbnl": Structure(
        (1_605, 4_198, 1_631, 4_209, 868_131),
        (1_605, 6_072, 22_968, 39_047, 1_698_825),
        (0, 1, 1, 7.97, 26.2),
    ),
    "darpa": Structure((22_476, 22_476, 23_776_223), (17_898, 76_424, 28_436_033), (0, 13.1, 23.1)),
    "chicago-comm": Structure(
        (6_186, 24, 77, 32), (6_186, 141_452, 3_706_818, 5_330_673), (0, 0, 0.406, 0.526)
    ),
    "enron": Structure(
        (6_066, 5_699, 244_268, 1_176), (6_066, 151_738, 31_312_343, 54_202_099), (0, 1, 4.13, 1.82)
    ),
    "flickr-3d": Structure(
        (319_686, 28_153_045, 1_607_191), (319_686, 28_153_050, 112_890_310), (0, 3.29, 1.04)
    ),
    "delicious-3d": Structure(
        (532_924, 17_262_471, 2_480_308), (532_924, 47_257_441, 140_126_181), (0, 2.77, 1.40)
    ),
}


def draw_structured(structure, alpha, is_scattered, random, xp=np):
    """Draw distinct nonzeros, in the order of their prefixes.

    Numbers below a prefix are log-normal: the largest of FROSTT's are then near the paper's. Sums
    are exact, unless a prefix would have more than its mode's size, which then is its number.

    Parameters
    ----------
    structure : Structure
    alpha, is_scattered
        How the indices below a prefix are drawn, see `tensors.Problem`.
    random : xp.random.RandomState
    xp : module
        numpy, or cupy to draw on the GPU, where a seed gives another tensor.

    Returns
    -------
    int32 array (ndim, nnz)
    """
    coords = xp.zeros((0, 1), np.int32)
    levels = zip(structure.shape, structure.num_prefixes, structure.variations, strict=True)
    for size, num_prefixes, variation in levels:
        counts = _draw_counts(random, coords.shape[1], num_prefixes, variation, xp)
        counts = xp.minimum(counts, size)
        parents, places = _unroll(counts, xp)
        counts = counts[parents]
        # One random number from each of `count` equal parts of [0, 1): numbers that do not
        # descend. With their places added they ascend, so they are distinct.
        uniform = (places + random.random_sample(places.size)) / counts
        rows = (uniform**alpha * (size - counts + 1)).astype(np.int64)
        rows = xp.minimum(rows, size - counts) + places
        rows = scatter_rows(rows, size) if is_scattered else rows
        coords = xp.concatenate([coords[:, parents], rows[None].astype(np.int32)])
    return coords


def scatter_rows(rows, size):
    """Spread neighbouring rows over a mode; different rows stay different."""
    factor = 2_654_435_761 % size or 1
    while math.gcd(factor, size) != 1:  # else its multiples would not reach every row
        factor += 1
    return (rows * factor + 12_345) % size


def _draw_counts(random, num_counts, total, variation, xp):
    """Draw positive integers with a given sum and, nearly, a coefficient of variation.

    What is above 1 is log-normal, and rounded so that the sum is exact.
    """
    num_more = total - num_counts
    deviation = math.sqrt(math.log1p((variation * total / max(1, num_more)) ** 2))
    weights = xp.exp(deviation * random.standard_normal(num_counts))
    # A GPU adds floats in an order that may change from run to run.
    ends = xp.cumsum((2**20 * weights).astype(np.int64))
    ends = xp.rint(ends * (num_more / int(ends[-1]))).astype(np.int64)
    return 1 + xp.diff(ends, prepend=0)


def _unroll(counts, xp):
    """Return for each of the counted its parent, and its place among its parent's."""
    ends = xp.cumsum(counts)
    is_first = xp.zeros(int(ends[-1]), np.int64)
    is_first[ends[:-1]] = 1
    parents = xp.cumsum(is_first)
    return parents, xp.arange(parents.size) - (ends - counts)[parents]
