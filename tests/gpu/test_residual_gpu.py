"""A sparse tensor minus a CP model on a GPU: as on the CPU, with the same bits in every run."""

import cupy
import numpy as np
import pytest
import sparse
import tensorly as tl
from sides import fetch
from tensorly.cp_tensor import CPTensor, cp_lstsq_grad
from tensorly.decomposition import parafac, parafac_power_iteration

from tensorly_flycoo import FlycooTensor, center
from tensorly_flycoo.engines.tall import MIN_TALL_ROWS

#: One mode is tall: the GPU's own kernels multiply its factors.
SHAPE = (MIN_TALL_ROWS + 5, 300, 200)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def make_pair(dtype):
    """Make one tensor on the GPU and one on the CPU."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 100_000) for size in SHAPE])
    values = rng.standard_normal(100_000).astype(dtype)
    return [FlycooTensor(coords, values, SHAPE, device=device) for device in ("cuda", "cpu")]


def make_model(dtype, rank=3, seed=0):
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((size, rank)).astype(dtype) for size in SHAPE]
    return CPTensor((rng.standard_normal(rank).astype(dtype), factors))


def check(found, expected, magnitude, dtype):
    """Compare; no sum has more additions than a mode of the tensor has rows."""
    bound = 2 * sum(SHAPE) * np.finfo(dtype).eps * magnitude
    assert found.dtype == dtype
    assert (np.abs(fetch(found) - expected) <= bound).all()


@DTYPES
def test_products(dtype):
    on_gpu, on_cpu = (x - make_model(dtype) for x in make_pair(dtype))
    assert isinstance(on_gpu.factors[0], cupy.ndarray)
    weights, factors = make_model(dtype, rank=5, seed=1)
    most = abs(on_cpu.tensor) - CPTensor((-abs(on_cpu.weights), [*map(np.abs, on_cpu.factors)]))
    for mode in range(3):
        magnitude = most.mttkrp([*map(np.abs, factors)], mode, abs(weights))
        expected = on_cpu.mttkrp(factors, mode, weights)
        found = on_gpu.mttkrp(factors, mode, weights)
        check(found, expected, magnitude, dtype)
        assert (on_gpu.mttkrp(factors, mode, weights) == found).all()
    vectors = {0: factors[0][:, 0], 2: factors[2][:, 0]}
    magnitude = most.contract({mode: abs(vector) for mode, vector in vectors.items()})
    check(on_gpu.contract(vectors), on_cpu.contract(vectors), magnitude, dtype)
    coords = np.stack([np.arange(0, size, size // 100)[:100] for size in SHAPE])
    check(on_gpu.entries(coords), on_cpu.entries(coords), most.entries(coords), dtype)


@DTYPES
def test_norm_and_inner_products(dtype):
    gpu_x, cpu_x = make_pair(dtype)
    model = make_model(dtype)
    other = make_model(dtype, seed=1)
    on_gpu = gpu_x - model
    on_cpu = cpu_x - model
    tolerance = 1e3 * np.finfo(dtype).eps  # of norms, whose terms do not cancel
    np.testing.assert_allclose(on_gpu.norm(), on_cpu.norm(), rtol=tolerance)
    scale = float(on_cpu.norm()) * float((cpu_x - other).norm())
    for gpu_other, cpu_other in (
        (gpu_x, cpu_x),
        (other, other),
        (gpu_x - other, cpu_x - other),
    ):
        found = fetch(on_gpu.inner(gpu_other))
        np.testing.assert_allclose(found, on_cpu.inner(cpu_other), atol=tolerance * scale)


def make_coo():
    return sparse.random((6, 7, 8), nnz=90, random_state=0)


@pytest.mark.parametrize("kind", [lambda coo: coo, FlycooTensor.from_coo], ids=["COO", "Flycoo"])
def test_tensorlys_functions(kind):
    coo = make_coo()
    dense = coo.todense()
    x = kind(coo)
    np.random.seed(0)
    found = parafac_power_iteration(x, 3, 2, 5)
    with tl.backend_context("numpy"):
        np.random.seed(0)
        expected = parafac_power_iteration(dense, 3, 2, 5)
    for array, exact in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
        np.testing.assert_allclose(fetch(array, x), exact, atol=1e-10)
    start = {"init": "random", "random_state": 0, "n_iter_max": 10}
    model = parafac(center(x, (1, 2)), 3, **start)
    with tl.backend_context("numpy"):
        expected = parafac(dense - dense.mean((1, 2), keepdims=True), 3, **start)
    for array, exact in zip(model.factors, expected.factors, strict=True):
        np.testing.assert_allclose(fetch(array, x), exact, atol=1e-10)
    (_, gradient), loss = cp_lstsq_grad(model, x, return_loss=True)
    with tl.backend_context("numpy"):
        on_host = CPTensor((None, [fetch(array, x) for array in model.factors]))
        (_, expected), expected_loss = cp_lstsq_grad(on_host, dense, return_loss=True)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-10)
    for array, exact in zip(gradient, expected, strict=True):
        np.testing.assert_allclose(fetch(array, x), exact, atol=1e-10)


def test_the_host_does_not_wait():
    x, _ = make_pair("float64")
    residual = x - make_model("float64")
    factors = [cupy.asarray(factor) for factor in make_model("float64", seed=1).factors]
    residual.mttkrp(factors, 0)  # loads the kernels
    cupy.cuda.Device().synchronize()
    work = cupy.ones((8192, 8192))
    for _ in range(20):  # longer than the launches
        work = work @ work * 0
    end = cupy.cuda.get_current_stream().record()
    residual.mttkrp(factors, 0)
    assert not end.done
    cupy.cuda.Device().synchronize()
