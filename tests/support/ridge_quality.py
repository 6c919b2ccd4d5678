"""Compare the ridge that observed_parafac chooses with fixed ones: ``python ridge_quality.py``.

Of six kinds of made-up ratings, of two modes for even seeds and of three for odd ones, prints for
how many seeds the error at new cells is at most 1.15 times that with the best of five fixed ridges.
The error is the root mean square of the differences from the expected values, which have no noise;
of several ``--starts``, that of the run which fits best. With few entries in each row a start often
ends in a poor local minimum, with some ridges and not with others: that is luck, of which the best
of five has more. The cost is that of a call by default, in calls with a fixed ridge.

With ``--ranks`` prints in how many planted sets `select_rank` suggests the planted rank instead.
"""

import argparse
import multiprocessing
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from tensorly_flycoo import (
    FlycooTensor,
    cp_to_entries,
    observed_parafac,
    select_rank,
)

#: What tells libraries how many threads to use.
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")

RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1)

#: How much larger than with the best fixed ridge an error may be.
BAR = 1.15

#: Of two modes and of three: the least and the most entries for each row of a factor.
DENSITIES = {2: (15, 30), 3: (30, 55)}

#: The standard deviation of the noise.
NOISE = 0.5

#: Of `select_rank`: the ranks to try, and the runs of each.
RANKS, NUM_RUNS = range(1, 6), 8


class Ratings(NamedTuple):
    """Ratings to fit, and cells whose expected values are known."""

    x: FlycooTensor
    rank: int
    options: dict[str, Any]
    cells: np.ndarray
    expected: np.ndarray

    def measure(self, cp_tensor):
        """Return the root mean squared error of a model at the cells."""
        return float(np.mean((cp_to_entries(cp_tensor, self.cells) - self.expected) ** 2) ** 0.5)


class Truth:
    """A mean, biases and components of random sizes, and cells that are drawn alike or unlike."""

    def __init__(self, seed, has_biases=True, has_components=True, is_skewed=False):
        self.random = random = np.random.default_rng(seed)
        ndim = 2 + seed % 2
        sizes = ((150, 300), (100, 200)) if ndim == 2 else ((70, 130), (60, 100), (8, 15))
        self.shape = tuple(int(random.integers(*bounds)) for bounds in sizes)
        self.rank = int(random.integers(1, 5))
        self.count = int(sum(self.shape) * random.uniform(*DENSITIES[ndim]))
        self.biases = [has_biases * random.normal(0, 0.5, size) for size in self.shape]
        factors = [random.normal(size=(size, self.rank)) for size in self.shape]
        letters = "ijk"[:ndim]
        subscripts = ",".join(f"{letter}r" for letter in letters)
        cells = np.einsum(f"{subscripts}->{letters}", *factors)
        self.components = has_components * cells / cells.std()
        # Zipf's law: the chance of an index is one over its place in a random order.
        weights = [1 / random.permutation(np.arange(1.0, size + 1)) for size in self.shape]
        self.chances = [w**is_skewed / (w**is_skewed).sum() for w in weights]

    def draw_cells(self, count):
        pairs = zip(self.shape, self.chances, strict=True)
        return np.unique([self.random.choice(n, count, p=p) for n, p in pairs], axis=1)

    def evaluate(self, cells):
        """Return what the model says of cells, less the mean."""
        pairs = zip(self.biases, cells, strict=True)
        return sum(bias[ids] for bias, ids in pairs) + self.components[tuple(cells)]

    def rate(self, cells):
        return self.evaluate(cells) + self.random.normal(0, NOISE, cells.shape[1])


def make_planted(seed):
    """Make the ratings of TRIAL5.md: biases, components and noise."""
    return observe(Truth(seed), mean=3.5)


def make_long_tail(seed):
    """Make ratings of a few busy and many quiet users, of popular and of rare films."""
    return observe(Truth(seed, is_skewed=True), mean=3.5)


def make_biases(seed):
    """Make ratings that biases explain: a model has components in vain."""
    return observe(Truth(seed, has_components=False), mean=3.5)


def make_latent(seed):
    """Make ratings around zero, which components alone explain."""
    return observe(Truth(seed, has_biases=False), mean=0, biases=False)


def observe(truth, mean, biases=True):
    """Observe some cells of a truth with noise."""
    coords, cells = truth.draw_cells(truth.count), truth.draw_cells(4000)
    x = FlycooTensor(coords, mean + truth.rate(coords), truth.shape)
    return Ratings(x, truth.rank, {"biases": biases}, cells, mean + truth.evaluate(cells))


def make_stars(seed):
    """Make ratings that are rounded to whole stars, of which there are one to five."""
    truth = Truth(seed)
    coords, cells = truth.draw_cells(truth.count), truth.draw_cells(4000)
    values = np.clip(np.rint(3.5 + truth.rate(coords)), 1, 5)
    # One, and one more for each threshold that is passed.
    passed = 3.5 + truth.evaluate(cells) - np.arange(1.5, 5)[:, None]
    expected = 1 + ndtr(passed / NOISE).sum(axis=0)
    x = FlycooTensor(coords, values, truth.shape)
    return Ratings(x, truth.rank, {"biases": True}, cells, expected)


def make_two_valued(seed):
    """Make ratings of one or five, or, for every other pair of seeds, of zero or one."""
    truth = Truth(seed)
    coords, cells = truth.draw_cells(truth.count), truth.draw_cells(4000)
    passed, chances = truth.rate(coords) > 0, ndtr(truth.evaluate(cells) / NOISE)
    if seed % 4 < 2:
        x = FlycooTensor(coords, 1 + 4.0 * passed, truth.shape)
        return Ratings(x, truth.rank, {"biases": True}, cells, 1 + 4 * chances)
    x = FlycooTensor(coords[:, passed], np.ones(passed.sum()), truth.shape)
    seen = FlycooTensor(coords, np.ones(passed.size), truth.shape)
    return Ratings(x, truth.rank, {"biases": True, "confidence": seen}, cells, chances)


KINDS = {
    "planted": make_planted,
    "long tail": make_long_tail,
    "biases only": make_biases,
    "latent only": make_latent,
    "stars": make_stars,
    "two-valued": make_two_valued,
}


def fit(ratings, num_starts=1, l2_reg="validation", **options):
    """Fit ratings; return the error, the seconds of the first run, and the ridge."""
    fits = []
    for start in range(num_starts):
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # components that a large ridge leaves nothing of
            found, errors = observed_parafac(
                ratings.x, ratings.rank, random_state=start, l2_reg=l2_reg, return_errors=True,
                **ratings.options, **options,
            )  # fmt: skip
        seconds, l2_reg = time.process_time() - begin, found.flycoo.l2_reg
        fits.append((errors[-1], ratings.measure(found), seconds))
    return min(fits)[1], fits[0][2], l2_reg


def compare(kind, seed, num_starts):
    """Return the errors of the default and of the fixed ridges, its cost in runs, and its ridge."""
    ratings = KINDS[kind](seed)
    fit(ratings, n_iter_max=1, l2_reg=1.0)  # compiles
    error, seconds, ridge = fit(ratings, num_starts)
    fixed = [fit(ratings, num_starts, l2_reg) for l2_reg in RIDGES]
    return error, [of[0] for of in fixed], seconds / np.mean([of[1] for of in fixed]), ridge


def draw_planted(seed, rank):
    """Draw the ratings of TRIAL5.md, number by number."""
    random, shape = np.random.default_rng(seed), (100, 80, 10)
    factors = [random.normal(size=(size, rank)) for size in shape]
    cells = np.einsum("ir,jr,kr->ijk", *factors)
    cells /= cells.std()
    coords = np.unique(np.array([random.integers(0, size, 8000) for size in shape]), axis=1)
    biases = [random.normal(0, NOISE, size) for size in shape]
    values = 3.5 + sum(bias[ids] for bias, ids in zip(biases, coords, strict=True))
    values += cells[tuple(coords)] + random.normal(0, NOISE, coords.shape[1])
    return FlycooTensor(coords, values, shape)


def select(seed):
    """Return the planted rank, 2 or 3, and the suggested one."""
    rank = 2 + seed % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = select_rank(
            draw_planted(seed, rank), RANKS, NUM_RUNS, method="observed_parafac", biases=True,
            random_state=0,
        )  # fmt: skip
    return rank, found.rank


def print_ridges(pool, kinds, seeds, num_starts, is_verbose):
    """Print a row for each kind, and before it, if asked, what each seed gave."""
    print(f"{'kind':<12}{f'within {BAR}':>14}{'worst':>8}{'median':>8}{'cost':>8}", flush=True)
    starts = [num_starts] * len(seeds)
    results = {kind: pool.map(compare, [kind] * len(seeds), seeds, starts) for kind in kinds}
    for kind, own in results.items():
        ratios, costs = [], []
        for seed, (error, fixed, cost, ridge) in zip(seeds, own, strict=True):
            ratios.append(error / min(fixed))
            costs.append(cost)
            if is_verbose:
                errors = " ".join(f"{of_ridge:.3f}" for of_ridge in fixed)
                print(f"  {seed}: {ratios[-1]:.2f}, {ridge:g}: {error:.3f}; {errors}", flush=True)
        within = f"{np.sum(np.array(ratios) <= BAR)} of {len(ratios)}"
        figures = f"{max(ratios):8.2f}{np.median(ratios):8.2f}{np.median(costs):8.1f}"
        print(f"{kind:<12}{within:>14}{figures}", flush=True)


def print_ranks(pool, seeds):
    """Print how often the planted rank is suggested, and what is suggested instead."""
    pairs = list(pool.map(select, seeds))
    print(f"planted rank suggested: {sum(a == b for a, b in pairs)} of {len(pairs)}")
    for seed, (planted, suggested) in zip(seeds, pairs, strict=True):
        if planted != suggested:
            print(f"  seed {seed}: planted {planted}, suggested {suggested}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    seeds = range(options.seeds)
    # One thread for each process: new ones read this when their libraries load.
    os.environ |= dict.fromkeys(_THREADS, "1")
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        if options.ranks:
            print_ranks(pool, seeds)
        else:
            print_ridges(pool, options.kinds, seeds, options.starts, options.verbose)


if __name__ == "__main__":
    main()
