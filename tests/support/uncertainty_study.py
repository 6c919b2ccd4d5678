"""Whether the intervals of `uncertainty` are right: their widths, and how many hold the truth.

Of each kind of model, tensors are drawn whose components are known, and fitted. Printed are, for
each mode, the median half width of the intervals over that of an independent bootstrap (new tensors
of the rows or entries drawn, decomposed by the public function until it has converged), and the
shares of intervals that hold the planted numbers: of the factors' elements, and of the weights.

    python tests/support/uncertainty_study.py --count 50 --processes 16
"""

import argparse
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import sparse
import tensorly as tl
from scipy.optimize import linear_sum_assignment
from scipy.stats import t as student
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, observed_parafac, uncertainty
from tensorly_flycoo.decomposition import (
    generalized_parafac,
    non_negative_parafac,
    non_negative_parafac_hals,
    parafac,
)

SHAPE, RANK = (30, 20, 15), 2

#: Iterations of the fits to compare with, and the change of the error that ends them.
LONG = {"n_iter_max": 3000, "tol": 1e-11}


@dataclass
class Case:
    """A tensor whose components are known, a model of it, and how to fit one again."""

    x: FlycooTensor
    planted: CPTensor
    cp: CPTensor
    mode: int | None
    refit: Callable[[np.ndarray], CPTensor]  # of the numbers of the rows or entries drawn


def make_rows(random, fit, *, shape=SHAPE, sign=True, noise=0.5, hide=None, counts=False):
    """Plant a tensor whose rows of mode 0 are a sample; `hide` draws the mask of its cells."""
    draw = random.standard_normal if sign else partial(random.gamma, 1.0, 1.0)
    planted = [draw(size=(size, RANK)) for size in shape]
    if counts:
        planted[0] *= 2 / tl.cp_to_tensor((None, planted)).mean()
        dense = random.poisson(tl.cp_to_tensor((None, planted))).astype(float)
    else:
        dense = tl.cp_to_tensor((None, planted))
        dense += noise * dense.std() * random.standard_normal(shape)
    mask = None if hide is None else hide(random, shape)

    def decompose(dense, mask, start):
        options = {} if mask is None else {"mask": make_mask(mask)}
        whole = dense if mask is None else dense * mask
        init = CPTensor((None, [np.ascontiguousarray(factor) for factor in start]))
        return fit(FlycooTensor.from_dense(whole), RANK, init=init, **options)

    cp = decompose(dense, mask, planted)

    def refit(rows):
        own = None if mask is None else mask[rows if len(mask) > 1 else slice(None)]
        scaled = [cp.factors[0][rows] * cp.weights, *cp.factors[1:]]
        return decompose(dense[rows], own, scaled)

    whole = dense if mask is None else dense * mask
    x = FlycooTensor.from_dense(whole)
    return Case(x, CPTensor((None, planted)), cp, 0, refit)


def hide_cells(random, shape, share=0.3):
    """Mark cells as missing with zeros."""
    return (random.random_sample(shape) >= share).astype(float)


def hide_blocks(random, shape, share=0.3):
    """Mark pairs of indices of modes 0 and 1 as missing."""
    return (random.random_sample((*shape[:2], 1)) >= share).astype(float)


def make_mask(mask):
    """Return a mask as `parafac` takes it."""
    coords = np.stack((mask == 0).nonzero())
    return sparse.COO(coords, np.zeros(coords.shape[1]), mask.shape, fill_value=1.0)


def make_observed(
    random, *, shape=SHAPE, share=0.25, noise=0.5, biases=False, mode=None, **options
):
    """Plant the entries of a tensor, all others of whose cells are unknown."""
    is_signed = not options.get("non_negative")
    draw = random.standard_normal if is_signed else partial(random.gamma, 1.0, 1.0)
    planted = [draw(size=(size, RANK)) for size in shape]
    shifts = [random.standard_normal(size) * biases for size in shape]
    truth = tl.cp_to_tensor((None, planted)) + 3.0 * biases
    for n, shift in enumerate(shifts):
        truth = truth + shift.reshape([-1 if n == m else 1 for m in range(len(shape))])
    coords = np.stack(np.nonzero(random.random_sample(shape) < share))
    values = truth[tuple(coords)] + noise * truth.std() * random.standard_normal(coords.shape[1])
    options = {"l2_reg": 0.1, "biases": biases} | options
    start = CPTensor((None, planted))
    x = FlycooTensor(coords, values, shape)
    cp = observed_parafac(x, RANK, init=start, **options, **LONG)
    chosen = options | {"l2_reg": cp.flycoo.l2_reg}

    def refit(drawn):
        init = [factor[:, :RANK] for factor in cp.factors]
        if mode is None:
            ids, weights = np.unique(drawn, return_counts=True)
            own, own_values, size = coords[:, ids], values[ids], shape
            confidence = {"confidence": FlycooTensor(own, weights.astype(float), shape)}
        else:
            init[mode] = init[mode][drawn]
            parts = [np.flatnonzero(coords[mode] == row) for row in drawn]
            ids, confidence = np.concatenate(parts), {}
            own, own_values, size = coords[:, ids], values[ids], list(shape)
            own[mode] = np.repeat(np.arange(len(drawn)), [part.size for part in parts])
        y = FlycooTensor(own, own_values, tuple(size))
        return observed_parafac(
            y, RANK, init=CPTensor((None, init)), **chosen, **confidence, **LONG
        )

    if biases:
        planted = add_biases(planted, shifts, truth[tuple(coords)].mean() - 3.0, 3.0)
    return Case(x, CPTensor((None, planted)), cp, mode, refit)


def add_biases(planted, shifts, excess, mean):
    """Return the planted factors beside those of biases, as least squares with a ridge has them.

    Its mean is that of the values, which exceeds the planted one, and is not fitted. What one
    mode's biases have in common can be another's: the ridge divides it so that squares are least.
    """
    common = sum(shift.mean() for shift in shifts) - excess
    parts = sum(1 / len(shift) for shift in shifts)
    columns = []
    for n, (factor, shift) in enumerate(zip(planted, shifts, strict=True)):
        own = np.ones((len(factor), len(planted) + 1))
        own[:, n] = shift - shift.mean() + common / len(shift) / parts
        columns.append(np.concatenate([factor, own], axis=1))
    columns[-1][:, -1] = mean + excess
    return columns


def fit_counts(x, rank, init):
    """Fit a model of counts until it has converged."""
    return generalized_parafac(x, rank, 3000, init, tol=1e-10)


KINDS = {
    "all cells": partial(make_rows, fit=partial(parafac, **LONG)),
    "l2_reg": partial(make_rows, fit=partial(parafac, l2_reg=1.0, **LONG)),
    "mask of cells": partial(make_rows, fit=partial(parafac, **LONG), hide=hide_cells),
    "mask of 70 % of cells": partial(
        make_rows, fit=partial(parafac, **LONG), hide=partial(hide_cells, share=0.7)
    ),
    "mask of blocks": partial(make_rows, fit=partial(parafac, **LONG), hide=hide_blocks),
    "non-negative": partial(make_rows, fit=partial(non_negative_parafac_hals, **LONG), sign=False),
    "non-negative, masked": partial(
        make_rows, fit=partial(non_negative_parafac, **LONG), sign=False, hide=hide_cells
    ),
    "counts, rows": partial(make_rows, fit=fit_counts, sign=False, counts=True),
    "observed, entries": make_observed,
    "observed, ridge chosen": partial(make_observed, l2_reg="validation"),
    "observed, rows": partial(make_observed, mode=0),
    "observed, non-negative": partial(make_observed, non_negative=True),
    "biases, entries": partial(make_observed, biases=True),
    "biases, rows": partial(make_observed, biases=True, mode=0),
}


def match(planted, cp, skip=None):
    """Return planted weights and factors, normalised, in the order and signs of a model's.

    A mode may be skipped, whose rows are others.
    """
    bias_modes = cp.flycoo.bias_modes or (-1,) * cp.rank
    norms = [np.linalg.norm(factor, axis=0) for factor in planted.factors]
    known = [factor / norm for factor, norm in zip(planted.factors, norms, strict=True)]
    pairs = zip(cp.factors, known, strict=True)
    products = [own.T @ other for n, (own, other) in enumerate(pairs) if n != skip]
    scores = np.abs(np.prod(products, axis=0))
    scores[np.greater_equal(bias_modes, 0)] = 0
    scores[:, RANK:] = 0
    for place, mode in enumerate(bias_modes):
        if mode >= 0:
            scores[place, RANK + mode] = 1
    order = linear_sum_assignment(scores, maximize=True)[1]
    signs = [np.where(of[range(len(order)), order] < 0, -1, 1) for of in products]
    if skip is not None:
        signs.insert(skip, 1)
    factors = [own[:, order] * sign for own, sign in zip(known, signs, strict=True)]
    return np.prod(norms, axis=0)[order], factors


def compare_widths(case, found, random, n):
    """Return the median half width of each mode's intervals over that of new fits."""
    cp, mode = found.cp_tensor, case.mode
    size = case.x.nnz if mode is None else case.x.shape[mode]
    fits = [case.refit(random.randint(size, size=size)) for _ in range(n)]
    samples = [match(fit, cp, skip=mode)[1] for fit in fits]
    ratios = []
    for n_mode, (lower, upper) in enumerate(cp.intervals):
        if n_mode != mode:
            error = np.std([factors[n_mode] for factors in samples], axis=0, ddof=1)
            width = np.median(error) * student.ppf(0.95, n - 1)
            ratios.append(np.median(upper - lower) / 2 / width)
    return ratios


def try_kind(name, seed, n, widths):
    """Return the ratios of widths, and the intervals held, of one tensor of a kind."""
    warnings.simplefilter("ignore")
    random = np.random.RandomState(seed)
    with tl.backend_context("flycoo"):
        case = KINDS[name](random)
        found = uncertainty(case.x, case.cp, case.mode, n, random_state=seed)
        weights, factors = match(case.planted, found.cp_tensor)
        elements = []
        for mode, (own, ends) in enumerate(zip(factors, found.cp_tensor.intervals, strict=True)):
            bias_modes = found.cp_tensor.flycoo.bias_modes or (-1,) * found.cp_tensor.rank
            is_fitted = np.isin(bias_modes, (-1, mode))  # others' biases have ones here
            if mode != case.mode:
                elements.append(is_inside(own, ends)[:, is_fitted].ravel())
        ratios = compare_widths(case, found, random, n) if widths else []
    return ratios, np.concatenate(elements), is_inside(weights, found.weights)


def is_inside(numbers, interval):
    """Return whether each number is in its interval."""
    lower, upper = interval
    return (lower <= numbers) & (numbers <= upper)


def main():
    """Print a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--count", type=int, default=20, help="tensors of each kind")
    parser.add_argument("--widths", type=int, default=2, help="of which to compare widths")
    parser.add_argument("--fits", type=int, default=50)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{'kind':24} elements  weights  half widths, by mode", flush=True)
    with ProcessPoolExecutor(arguments.processes) as pool:
        for name in arguments.kinds:
            jobs = [
                pool.submit(try_kind, name, seed, arguments.fits, seed < arguments.widths)
                for seed in range(arguments.count)
            ]
            ratios, elements, weights = zip(*(job.result() for job in jobs), strict=True)
            compared = np.median(ratios[: arguments.widths], axis=0) if arguments.widths else []
            shown = " ".join(f"{of:.2f}" for of in compared)
            held = np.concatenate(elements).mean(), np.concatenate(weights).mean()
            print(f"{name:24} {held[0]:8.1%} {held[1]:8.1%}  {shown}", flush=True)


if __name__ == "__main__":
    main()
