"""Penalised rows of Tucker and PARAFAC2 models are on a GPU those of the CPU."""

import cupy
import numpy as np
import pytest
import scipy.sparse
from row_penalty_statements import OPERATORS, measure_rows, update_densely
from sides import check_runs

from tensorly_flycoo import FlycooTensor, RaggedTensor
from tensorly_flycoo.decomposition import parafac2, tucker
from tensorly_flycoo.decomposition.row_penalties import RowPenalty, update_rows
from tensorly_flycoo.testing import random_tensor

EACH_DTYPE = pytest.mark.parametrize("dtype", ["float32", "float64"])


def make_problem(num_rows, rank):
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((3 * rank, rank)) * rng.uniform(0.5, 2, rank)
    gram = basis.T @ basis
    true = rng.standard_normal((num_rows, rank)) * (rng.random((num_rows, rank)) < 0.5)
    targets = true @ gram + rng.standard_normal((num_rows, 3 * rank)) @ basis
    return rng.standard_normal((num_rows, rank)), targets, gram


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(("num_rows", "rank"), [(7, 3), (5000, 8), (30_000, 33)])
def test_an_update_takes_the_steps_of_admm(name, num_rows, rank):
    rows, targets, gram = make_problem(num_rows, rank)
    on_gpu = [cupy.asarray(array) for array in (rows, targets, gram)]
    penalty = RowPenalty(OPERATORS[name], 5.0)
    found = update_rows(penalty, *on_gpu)
    by_columns = [*map(cupy.asfortranarray, on_gpu[:2]), on_gpu[2]]
    for arrays in (on_gpu, by_columns):
        assert found.tobytes() == update_rows(penalty, *arrays).tobytes()
    expected = update_densely(name, 5.0, rows, targets, gram)
    np.testing.assert_allclose(found.get(), expected, rtol=0, atol=1e-10 * abs(expected).max())
    before, after = (measure_rows(name, 5.0, x, targets, gram) for x in (rows, found.get()))
    assert after < before


@EACH_DTYPE
@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("init", ["random", "svd"])
@pytest.mark.parametrize(
    "options", [{"l1_reg": {2: 0.3}}, {"group_lasso": {0: 0.4}, "l1_reg": {1: 0.1}}], ids=str
)
def test_tucker_as_on_the_cpu(options, init, dtype):
    x = random_tensor((70, 60, 50), 5000, random_state=0, dtype=dtype, device="cpu")
    on_gpu = FlycooTensor(*x.nonzeros(), x.shape, device="cuda")
    options = {"init": init, "random_state": 0, "n_iter_max": 5, "tol": 0} | options
    compare(lambda data: tucker(data, [4, 3, 5], return_errors=True, **options), x, on_gpu, dtype)


@EACH_DTYPE
@pytest.mark.parametrize(
    "options",
    [
        {"l1_reg": {2: 0.3}},
        {"l1_reg": {0: 0.1}, "group_lasso": {2: 0.3}},
        {"l1_reg": {2: 0.3}, "nn_modes": [0, 2]},
    ],
    ids=str,
)
def test_parafac2_as_on_the_cpu(options, dtype):
    heights = [20, 5, 33, 5, 20, 12]
    slices = [
        scipy.sparse.random_array((height, 40), density=0.4, rng=height, dtype=dtype)
        for height in heights
    ]
    x, on_gpu = (RaggedTensor(slices, device=device) for device in ("cpu", "cuda"))
    options = {"random_state": 0, "n_iter_max": 5, "tol": 0} | options
    compare(lambda data: parafac2(data, 4, return_errors=True, **options), x, on_gpu, dtype)


def compare(decompose, x, on_gpu, dtype):
    """Compare errors and objectives' parts; a second run on the GPU gives the same bits."""
    expected, errors = decompose(x)
    found, on_gpu_errors = decompose(on_gpu)
    again, _ = decompose(on_gpu)
    tolerance = 1e-3 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(on_gpu_errors, errors, rtol=tolerance)
    check_runs(found, again, dtype)
    for own, factor in zip(found.factors, expected.factors, strict=True):
        assert factor.dtype == dtype
        size = float(abs(own).sum())
        assert size == pytest.approx(float(abs(factor).sum()), rel=tolerance)
