"""The table of solvers, models to begin at, and data: ``init=`` and checkpoints.

Each solver makes one iteration from a model of each kind, beside data of each kind. The result is
compared with TensorLy's iteration of the dense array, or with one in NumPy where TensorLy has none;
or the call is a ValueError that names the argument. Rows of a guess with labels go to their labels.
"""

import copy
import functools

import numpy as np
import pytest
import tensorly as tl
import tensorly.decomposition
from model_table import (
    DATA,
    KINDS,
    LABELS,
    PERMUTED,
    Refusal,
    find_cells,
    judge,
    list_arrays,
    make_beside,
    make_design,
    make_model,
    make_tags,
    permute,
    report,
    solve_row,
    takes,
    unfold,
)
from tensorly.cp_tensor import CPTensor
from tensorly.parafac2_tensor import Parafac2Tensor
from tensorly.tucker_tensor import TuckerTensor

from tensorly_flycoo import decomposition
from tensorly_flycoo.decomposition.methods import METHODS

EPS = np.finfo(float).eps

#: The ridge of `observed_parafac`.
RIDGE = 0.1


def is_matched(kind, beside):
    """Return whether rows of a labelled guess go to other places."""
    return beside.id in PERMUTED and not kind.rebuilt


def make_guess(kind, beside):
    """Return the weights or core, and the factors, as they are to begin beside data; NumPy's."""
    first, factors = list_arrays(make_model(kind.id))
    if is_matched(kind, beside):
        mode, order = PERMUTED[beside.id]
        if not (kind.model == "PARAFAC2" and mode == 1):  # B has no rows of labels
            factors[mode] = factors[mode][order]
    return first, factors


def list_guess(kind):
    """Return all arrays of a model."""
    model = make_model(kind.id)
    if kind.model == "coupled":
        return [*model.factors.values(), *(cp.weights for cp in model.cp_tensors)]
    return [model[0], *model[1]]


def start(solver, kind, beside, **options):
    """Make one iteration of a solver from a model of a kind."""
    model = make_model(kind.id)
    function = getattr(decomposition, solver)
    given = {"n_iter_max": 1, "init": model} | options
    if "random_state" in METHODS[solver].defaults:
        given["random_state"] = 0
    if solver == "observed_parafac":
        given["l2_reg"] = RIDGE
    if solver == "shared_parafac":
        given["modes"] = []
    x = beside.x
    if solver == "coupled_parafac":
        tags, labels = make_tags()
        is_labelled = hasattr(x, "labels")
        tags = tags, labels if is_labelled else [*labels]
        x = [x if is_labelled else (x, [*LABELS][: x.ndim]), tags]
        given |= dict(kind.options) if kind.model == "coupled" else {}
    with tl.backend_context("flycoo"):
        return function(x, find_rank(solver, kind, beside), **given)


def find_rank(solver, kind, beside):
    if METHODS[solver].model == "Tucker":
        return [2] * beside.x.ndim
    return len(list_arrays(make_model(kind.id))[0]) if kind.model == "CP" else 2


def iterate_densely(solver, kind, beside):
    """Return all cells of the model of one iteration in TensorLy, or in NumPy."""
    if solver == "coupled_parafac":  # which has converged
        return permute(find_cells(make_model(kind.id).cp_tensors[0]), beside)
    first, factors = make_guess(kind, beside)
    dense, mask = beside.dense, find_mask(beside)
    if solver == "observed_parafac":
        return observe(dense, first, factors)
    if solver == "generalized_parafac":
        return update_counts(dense, first, factors, np.ones(dense.shape) if mask is None else mask)
    options = {"n_iter_max": 1}
    if METHODS[solver].model == "Tucker":
        options["init"] = TuckerTensor((first, factors))
    elif kind.model == "PARAFAC2":  # the projections of a guess do not count
        projections = [np.eye(dense.shape[1], 2)] * len(dense)
        options["init"] = Parafac2Tensor((first, factors, projections))
    else:
        options["init"] = CPTensor((first, factors))
    if solver == "parafac2":
        dense, mask = [*fill_slices(dense, mask)], None
    elif solver == "non_negative_tucker" and mask is not None:  # TensorLy's has no mask
        guess = TuckerTensor((np.abs(first), [np.abs(factor) for factor in factors]))
        dense, mask = np.where(mask > 0, dense, find_cells(guess)), None
    if mask is not None:
        options["mask"] = mask
    function = getattr(tensorly.decomposition, solver)
    with tl.backend_context("numpy"):
        return find_cells(function(dense, find_rank(solver, kind, beside), **options))


def find_mask(beside):
    """Return the mask that the data have themselves, as TensorLy takes it."""
    return None if beside.known is None else beside.known.astype(float)


def is_unique(solver, kind, beside):
    """Return whether one iteration has one result: no system or projection is singular."""
    if solver == "shared_parafac":  # a damped step, which no dense loop takes
        return False
    if solver not in ("parafac", "parafac2"):
        return True
    first, factors = make_guess(kind, beside)
    if solver == "parafac":  # biases of other modes and the mean are alike to the rows of one
        return not kind.biases
    if solver == "parafac2":
        b = np.linalg.qr(factors[1])[1] if kind.model == "CP" else factors[1]
        filled = fill_slices(beside.dense, find_mask(beside))
        for of_slice, row in zip(filled, factors[0], strict=True):
            singular = np.linalg.svd(of_slice @ factors[2] * (first * row) @ b.T, compute_uv=False)
            if singular[-1] < 1e-7 * singular[0]:
                return False
    return True


def check_descent(solver, kind, beside, found):
    """Check that an iteration does not raise the error of known cells, or of filled slices."""
    first, factors = make_guess(kind, beside)
    if solver in ("parafac", "shared_parafac"):
        # Missing cells begin with what the tensor stores there, as in TensorLy.
        before = find_cells((first, factors)) - beside.dense
        after = find_cells(found) - beside.dense
    else:
        filled = fill_slices(beside.dense, find_mask(beside))
        b = np.linalg.qr(factors[1])[1] if kind.model == "CP" else factors[1]
        before = []
        for of_slice, row in zip(filled, factors[0], strict=True):
            model = b * (first * row) @ factors[2].T
            left, _, right = np.linalg.svd(of_slice @ model.T, full_matrices=False)
            before.append(of_slice - left @ right @ model)
        after = filled - find_cells(found)
    assert np.linalg.norm(after) <= np.linalg.norm(before) * (1 + 1e-12)


def fill_slices(dense, mask):
    """Return slices with the mean of their known cells at the others."""
    if mask is None:
        return np.array(dense)
    means = (dense * mask).sum(axis=(1, 2)) / mask.sum(axis=(1, 2))
    return np.where(mask > 0, dense, means[:, None, None])


def observe(dense, weights, factors):
    """Solve the rows of each mode in turn for the nonzeros alone, with a ridge."""
    factors = [*factors[:-1], factors[-1] * weights]
    scale = np.sqrt(np.mean(dense[dense != 0] ** 2))
    ridges = np.full(len(weights), RIDGE * scale ** (2 - 2 / dense.ndim))
    for mode in range(dense.ndim):
        design = make_design((None, factors), mode)
        pairs = [(of_row, 1.0 * (of_row != 0)) for of_row in unfold(dense, mode)]
        rows = [solve_row(design, *pair, ridges, False)[0] for pair in pairs]
        factors[mode] = np.array(rows)
    return find_cells((None, factors))


def update_counts(dense, weights, factors, known):
    """Make one multiplicative update of each factor for the likelihood of counts."""
    factors = [*factors[:-1], factors[-1] * weights]
    if (find_cells((None, factors))[dense * known > 0] == 0).any():  # the likelihood is 0
        factors = [np.where(f == 0, f.mean(axis=0) / 100, f) for f in factors]
    for mode in range(dense.ndim):
        design = make_design((None, factors), mode)
        means = factors[mode] @ design.T
        of_mode = unfold(known, mode)
        ratios = np.divide(unfold(dense, mode), means, out=np.zeros_like(means), where=means > 0)
        factors[mode] = factors[mode] * ((ratios * of_mode) @ design) / (of_mode @ design)
    return find_cells((None, factors))


def expect_init(solver, kind, beside):
    """Return the call of a cell, and its check or refusal."""
    call = functools.partial(start, solver, kind, beside)
    method, words = METHODS[solver], []
    has_slices = solver == "parafac2"
    if kind.model != method.model and not (has_slices and kind.model == "CP"):
        words.append("init is ")
    is_by_row = takes(kind, beside) or beside.id in PERMUTED
    if has_slices and beside.id in ("fewer", "more", "shape"):  # their rows are no part of a guess
        is_by_row = beside.id == "shape" or kind.rebuilt or kind.model == "PARAFAC2"
    if not is_by_row:
        words += ["init ", "and init", "in init", "of init", "blocks[0] has the modes"]
    if beside.id == "renamed" and solver == "coupled_parafac":
        words.append("blocks[0] has the modes")
    if has_slices and beside.x.ndim != 3:
        words.append("tensor_slices has shape")
    if has_slices and kind.biases:
        words.append("rank is ")
    is_obeyed = method.takes_mask or (solver == "observed_parafac" and beside.id == "all_unknown")
    if beside.known is not None and not is_obeyed:
        words += ["tensor has unknown cells", "tensor knows "]
        words += ["blocks[0] has a mask of unknown cells", "l2_reg is 0"]  # of coupled tensors
    is_signed = kind.model == "CP" and min(map(np.min, list_guess(kind))) < 0
    if solver == "generalized_parafac" and is_signed:
        words.append("of init")
    if words:
        return call, Refusal(*words)

    def check(found):
        if not is_unique(solver, kind, beside):
            check_descent(solver, kind, beside, found)
            return
        expected = iterate_densely(solver, kind, beside)
        cells = find_cells(found.cp_tensors[0] if solver == "coupled_parafac" else found)
        # Iterations differ by rounding, which systems of condition 1e6 enlarge; a coupled model has
        # converged until its last iterations change no cell by 1e-7.
        tolerance = 1e-6 if solver == "coupled_parafac" else 1e-9
        np.testing.assert_allclose(cells, expected, rtol=0, atol=tolerance * abs(expected).max())

    return call, check


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("solver", [name for name in METHODS if name != "shared_tucker"])
def test_one_iteration_from_each_model(solver, kind):
    wrong = []
    before = copy.deepcopy(list_guess(kind))
    for data in DATA:
        beside = make_beside(data, kind.data, kind.ndim)
        if found := judge(*expect_init(solver, kind, beside)):
            wrong.append(f"{solver}-{kind.id}-{data}: {found}")
    for array, old in zip(list_guess(kind), before, strict=True):
        np.testing.assert_array_equal(array, old)  # a guess stays as it is
    report(wrong)
