"""Timing completion at Netflix's shape, and beside `implicit`
===========================================================

Time an epoch of `observed_parafac`, an update of all modes, at the shape of Netflix's ratings: 100M
known entries, drawn on the device, of 480,189 users x 17,770 films x 2,182 days. Both solvers run:
steps of conjugate gradients, and exact rows. For the same shape and rank, see also the figures of
cuFastTucker, doi 10.1145/3648094.

With `--clicks`, compare with `implicit`, the usual package for matrices of clicks, if it is
installed (``pip install implicit``): the persons and films of MovieLens 100k that go with a rating
of 4 or 5, a fifth of them held out. Both fit the model of Hu, Koren and Volinsky by three steps of
conjugate gradients in float32; the time is that until the best ten films for each person have as
many held-out ones as `implicit` finds in its 15 iterations.

Run it::

    python examples/completion.py --device cuda
    python examples/completion.py --nnz 1e6             # on the CPU
    python examples/completion.py --clicks
"""

import argparse
import resource
import time

import numpy as np
import sparse

from tensorly_flycoo import FlycooTensor, observed_parafac

SHAPE = (480_189, 17_770, 2_182)
SKEW = 1.5  # the busiest user has about 16,000 ratings, the best known film 150,000
ALPHA, L2_REG, NUM_BEST = 10.0, 1.0, 10


def draw_ratings(nnz, shape, device, seed=0):
    """Draw known entries on a device, with more of low indices: values from 1 to 5."""
    if device == "cuda":
        import cupy as xp
    else:
        xp = np
    random = xp.random.default_rng(seed)
    sizes = xp.asarray(shape)[:, None]
    coords = xp.empty((len(shape), nnz), np.int32)
    for row, size in zip(coords, sizes, strict=True):
        row[...] = size * random.random(nnz, dtype=np.float32) ** SKEW
    values = 1 + (5 * random.random(nnz, dtype=np.float32)).astype(np.int8)
    return FlycooTensor(coords, values.astype(np.float32), shape, device=device)


def time_epochs(x, rank, num_epochs, **options):
    """Return the seconds of each epoch with its error, and the peak memory in GB."""
    times = []

    def note(cp_tensor, error):  # which is on the host: the epoch has ended
        times.append(time.perf_counter())

    observed_parafac(
        x, rank, n_iter_max=num_epochs, tol=0, l2_reg=0.1, random_state=0, callback=note, **options
    )
    if x.device == "cuda":
        import cupy

        pool = cupy.get_default_memory_pool()
        nbytes = pool.total_bytes()
        pool.free_all_blocks()
    else:
        nbytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return np.diff(times), nbytes / 1e9


def read_clicks():
    """Return the persons and films (2, n) of good ratings, in a random order."""
    from ratings import FILM, PERSON, read_ratings

    coords, ratings, _ = read_ratings()
    clicks = coords[[PERSON, FILM]][:, ratings >= 4]
    return clicks[:, np.random.default_rng(0).permutation(clicks.shape[1])]


def measure_recall(factors, known, held_out):
    """Return the share of held-out films among each person's best films that are not known."""
    persons, films = factors
    scores = persons @ films.T
    scores[tuple(known)] = -np.inf
    best = np.argpartition(-scores, NUM_BEST, axis=1)[:, :NUM_BEST]
    wanted = np.zeros(scores.shape, bool)
    wanted[tuple(held_out)] = True
    possible = np.minimum(wanted.sum(axis=1), NUM_BEST).sum()
    return np.take_along_axis(wanted, best, axis=1).sum() / possible


def fit_implicit(clicks, shape, rank, num_iterations):
    """Return the seconds of implicit's fit, and its factors."""
    import scipy.sparse
    from implicit.als import AlternatingLeastSquares

    weights = np.full(clicks.shape[1], ALPHA, np.float32)
    matrix = scipy.sparse.csr_matrix((weights, tuple(clicks)), shape)
    model = AlternatingLeastSquares(
        rank, regularization=L2_REG, iterations=num_iterations, random_state=0
    )
    start = time.perf_counter()
    model.fit(matrix, show_progress=False)
    seconds = time.perf_counter() - start
    return seconds, [model.user_factors, model.item_factors]


def fit_ours(clicks, shape, rank, num_iterations):
    """Return the seconds since the call and the factors after each iteration."""
    ones = np.ones(clicks.shape[1], np.float32)
    x, weights = (sparse.COO(clicks, values, shape) for values in (ones, ALPHA * ones))
    found = []
    start = time.perf_counter()
    observed_parafac(
        x, rank, n_iter_max=num_iterations, tol=0, l2_reg=L2_REG, random_state=0, cg_steps=3,
        confidence=weights, unobserved=1,
        callback=lambda cp, error: found.append((time.perf_counter() - start, cp.factors)),
    )  # fmt: skip
    return found[1:]


def compare(clicks, rank, num_iterations):
    """Print and return times and recalls: ours after each iteration, and implicit's."""
    shape = tuple(int(row.max()) + 1 for row in clicks)
    held_out, known = np.split(clicks, [clicks.shape[1] // 5], axis=1)
    fit_ours(known, shape, rank, 1)  # compiles
    ours = [
        (seconds, measure_recall(factors, known, held_out))
        for seconds, factors in fit_ours(known, shape, rank, num_iterations)
    ]
    try:
        fit_implicit(known, shape, rank, 1)
        seconds, factors = fit_implicit(known, shape, rank, num_iterations)
    except ImportError:
        print("implicit is not installed")
        return {"ours": ours}
    recall = measure_recall(factors, known, held_out)
    print(f"implicit: recall {recall:.4f} in {seconds:.3f} s, {num_iterations} iterations")
    number = next((n for n, found in enumerate(ours) if found[1] >= recall), None)
    if number is None:
        print(f"ours: only {max(found[1] for found in ours):.4f} in {ours[-1][0]:.3f} s")
    else:
        print(f"ours: {ours[number][1]:.4f} in {ours[number][0]:.3f} s, {number + 1} iterations")
    return {"ours": ours, "implicit": (seconds, recall)}


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--nnz", type=float, default=100_480_507)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cg-steps", type=int, default=3)
    parser.add_argument("--clicks", action="store_true", help="compare with implicit instead")
    arguments = parser.parse_args(argv)
    if arguments.clicks:
        return compare(read_clicks(), arguments.rank, 15)
    x = draw_ratings(int(arguments.nnz), SHAPE, arguments.device)
    results = {}
    for name, options in {
        f"{arguments.cg_steps} steps of conjugate gradients": {"cg_steps": arguments.cg_steps},
        "the same with biases": {"cg_steps": arguments.cg_steps, "biases": True},
        "exact": {},
    }.items():
        times, peak = time_epochs(x, arguments.rank, arguments.epochs, **options)
        print(f"{name}: {np.median(times):.3f} s an epoch, {peak:.1f} GB at most", flush=True)
        results[name] = times
    return results


if __name__ == "__main__":
    main()
