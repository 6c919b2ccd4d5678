"""Whether the changes of components that `diagnose` predicts come true, on planted tensors.

Tensors are drawn whose components are known, with noise, and decomposed. Then noise of the same law
is added once more, and the decomposition goes on from its model. Printed are, for each kind of
tensor, the shares of components that change by less than predicted, and by more than a tenth of it:
when the noise is added, and from the planted components to those found in the noisy data.

    python tests/support/diagnose_study.py --processes 16
"""

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, diagnose
from tensorly_flycoo.decomposition import non_negative_parafac_hals, parafac
from tensorly_flycoo.testing import planted_tensor


def plant_dense(random):
    """Draw a tensor without zeros, whose columns may be alike, and its noise: a function."""
    shape = random.randint(8, 21, size=3)
    rank = random.randint(2, 5)
    likeness = random.uniform(0, 2)
    factors = []
    for size in shape:
        common = likeness * random.standard_normal((size, 1))
        factors.append(random.standard_normal((size, rank)) + common)
    dense = tl.cp_to_tensor((None, factors))
    level = 10 ** random.uniform(-3, 0) * dense.std()

    def add_noise(dense):
        return dense + level * random.standard_normal(dense.shape)

    return dense, factors, add_noise


def plant_sparse(random):
    """Draw a tensor that is mostly zeros, and its noise, which only its nonzeros have."""
    shape = random.randint(30, 61, size=3)
    rank = random.randint(2, 5)
    num_nonzeros = random.randint(300, 1500)
    x, factors = planted_tensor(shape, rank, num_nonzeros, random_state=random)
    dense = x.to_coo().todense()
    # Nonzeros differ in their noise, by up to ten times.
    levels = 10 ** random.uniform(-3, 0) * x.norm() / x.nnz**0.5
    levels = levels * (dense != 0) * 10 ** random.uniform(-0.5, 0.5, dense.shape)

    def add_noise(dense):
        return dense + levels * random.standard_normal(dense.shape)

    return dense, factors, add_noise


def plant_non_negative(random):
    """Draw a tensor of non-negative factors, some of whose elements are zeros, and its noise."""
    shape = random.randint(8, 21, size=3)
    rank = random.randint(2, 5)
    density = random.uniform(0.3, 1)
    factors = []
    for size in shape:
        is_used = random.random_sample((size, rank)) < density
        factors.append(random.gamma(0.7, size=(size, rank)) * is_used)
    dense = tl.cp_to_tensor((None, factors))
    level = 10 ** random.uniform(-3, 0) * dense.std()

    def add_noise(dense):
        return dense + level * random.standard_normal(dense.shape)

    return dense, factors, add_noise


#: Fits that end where an error no longer changes, in float64.
LONG = {"n_iter_max": 3000, "tol": 1e-13, "linesearch": "nesterov"}

#: How each kind is drawn and decomposed.
KINDS = {
    "dense": (plant_dense, parafac),
    "sparse": (plant_sparse, parafac),
    "non-negative": (plant_non_negative, non_negative_parafac_hals),
}


def try_kind(name, seed):
    """Return the changes of each component over the predicted ones: by noise, and from the truth.

    Both are nan for components that may have changed by more than their norm: nothing is promised.
    """
    warnings.simplefilter("ignore")
    with tl.backend_context("flycoo"):
        plant, decompose = KINDS[name]
        planted, factors, add_noise = plant(np.random.RandomState(seed))
        truth = (None, factors)
        noisy = add_noise(planted)
        x = FlycooTensor.from_dense(noisy)
        model = fit(decompose, x, truth)
        predicted = diagnose(x, model).noise
        again = fit(decompose, FlycooTensor.from_dense(add_noise(noisy)), model)
    predicted = np.where(predicted < 1, predicted, np.nan)
    return np.stack([compare(model, again), compare(model, truth)]) / predicted


def fit(decompose, x, start):
    """Decompose a tensor from a start, which its components stay near."""
    init = CPTensor((start[0], [np.array(factor) for factor in start[1]]))
    return decompose(x, init.rank, init=init, **LONG)


def compare(model, other):
    """Return the norm of each component's change, relative to the component of the model."""
    own, others, both = (
        multiply(*pair) for pair in ((model, model), (other, other), (model, other))
    )
    return np.sqrt(np.maximum(own + others - 2 * both, 0) / own)


def multiply(one, other):
    """Return the inner product of each component of one model with that of another (R,)."""
    product = np.ones(one[1][0].shape[1])
    for own, others in zip(one[1], other[1], strict=True):
        product = product * np.einsum("ir,ir->r", own, others)
    for weights in (one[0], other[0]):
        product = product if weights is None else product * weights
    return product


def judge(ratios):
    """Return the shares of components within their prediction, and above a tenth of it."""
    ratios = ratios[~np.isnan(ratios)]
    return (ratios <= 1).mean(), (ratios >= 0.1).mean()


def main():
    """Print a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="tensors of each kind")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    print("                          by noise              from the truth")
    print("kind          components  within  above 1/10    within  above 1/10")
    with ProcessPoolExecutor(arguments.processes) as pool:
        for name in KINDS:
            jobs = pool.map(partial(try_kind, name), range(arguments.count))
            ratios = np.concatenate([*jobs], axis=1)
            count = (~np.isnan(ratios[0])).sum()
            by_noise, from_truth = map(judge, ratios)
            shown = [f"{share:10.1%}" for share in (*by_noise, *from_truth)]
            print(f"{name:14} {count:9d}", *shown, flush=True)


if __name__ == "__main__":
    main()
