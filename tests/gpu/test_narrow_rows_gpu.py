"""Narrow rows on a GPU: their bits, and MTTKRP of them with the bits of whole rows."""

import functools

import cupy
import narrow_row_statements
import numpy as np
import pytest
import tensorly as tl

from tensorly_flycoo import FlycooTensor, set_precision
from tensorly_flycoo.decomposition import parafac
from tensorly_flycoo.engines.cuda import tall, tuning
from tensorly_flycoo.engines.cuda.engine import CUDA, CudaEngine
from tensorly_flycoo.engines.narrow_rows import NARROW_FORMATS
from tensorly_flycoo.format.primitives import MTTKRP
from tensorly_flycoo.loop.precision import NarrowFactors

LAYOUTS = ("remap", "replicated", "indexed")
RANKS = (1, 2, 3, 16, 25, 32, 33, 64, 100, 200)
DTYPES = ("float32", "float64")
THREE_MODES = (70, 1, 5000)
OTHER_SHAPES = (
    (3000,),
    (2, 9000),
    (90, 300, 3, 40),
    (100, 89, 2, 7, 11),
    (5, 4, 3, 2, 6, 7),
)


def draw(shape, rank, dtype, nnz=20_000, seed=0):
    """Draw distinct nonzeros, crowded into low rows, and factors."""
    rng = np.random.default_rng(seed)
    sizes = np.array(shape)[:, None]
    coords = np.unique((sizes * rng.random((len(shape), nnz)) ** 2).astype(np.int64), axis=1)
    values = rng.standard_normal(coords.shape[1]).astype(dtype)
    factors = [rng.standard_normal((size, rank)).astype(dtype) for size in shape]
    return coords, values, factors


def narrow(factors):
    """Return narrow rows, their scales, and the rounded factors as whole rows, on the GPU."""
    rounded = [cupy.asarray(factor) for factor in factors]
    copies = [CUDA.round_rows(factor, CUDA.find_scales(factor)) for factor in rounded]
    return [copy.rows for copy in copies], [copy.scales for copy in copies], rounded


def compute(x, factors, mode, weights=None):
    """Compute one mode into memory full of nan."""
    inputs = {n: factor for n, factor in enumerate(factors) if n != mode}
    out = cupy.full((x.shape[mode], factors[0].shape[1]), np.nan, x.dtype)
    x._layout.apply(MTTKRP, CUDA, inputs, mode, out, weights=weights)
    return out.get()


def check_same_bits(x, factors, weights=None):
    """Compare narrow rows, times their scales, with whole rows of the rounded factors."""
    rows, scales, rounded = narrow(factors)
    compare(x, rows, scales, rounded, weights)


def compare(x, rows, scales, rounded, weights=None):
    for mode in range(x.ndim):
        expected = compute(x, rounded, mode, weights)
        assert not np.isnan(expected).any()
        of_others = [scale for n, scale in enumerate(scales) if n != mode]
        product = functools.reduce(cupy.multiply, of_others, cupy.ones_like(scales[0]))
        if weights is not None:
            product *= weights
        assert compute(x, rows, mode, product).tobytes() == expected.tobytes()


def check_rounding(factor, scales=None):
    """Compare with the statement to the bit; columns whose scale is nan hold arbitrary numbers."""
    on_gpu = cupy.asarray(factor)
    if scales is None:
        scales = CUDA.find_scales(on_gpu).get()
        np.testing.assert_array_equal(scales, narrow_row_statements.find_scales(factor))
        assert scales.dtype == factor.dtype
    expected, rounded = narrow_row_statements.round_rows(factor, scales)
    found = CUDA.round_rows(on_gpu, cupy.asarray(scales))
    assert found.rows.dtype == NARROW_FORMATS[factor.dtype].dtype
    is_usable = ~np.isnan(scales)
    assert found.rows.get()[:, is_usable].tobytes() == expected[:, is_usable].tobytes()
    np.testing.assert_array_equal(on_gpu.get(), rounded)
    pitch = tuning.choose_row_nbytes(expected.shape[1] * expected.itemsize)
    assert found.rows.strides == (pitch, expected.itemsize)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("num_rows", [1, 2, 129, 300_000])
def test_factors_are_rounded_as_stated(num_rows, rank, dtype):
    """Columns of zeros, of subnormal numbers, with inf and nan, ties of rounding."""
    if num_rows * rank > 10_000_000:
        num_rows //= 10
    factor = narrow_row_statements.draw_factor(max(num_rows, 100), rank, np.dtype(dtype))[:num_rows]
    with np.errstate(over="ignore"):
        check_rounding(factor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_lie_apart(dtype):
    factor = narrow_row_statements.draw_factor(1000, 13, np.dtype(dtype))
    whole = cupy.asarray(factor)
    part = whole[:, :10]
    CUDA.round_rows(part, CUDA.find_scales(part))
    scales = narrow_row_statements.find_scales(factor[:, :10])
    _, rounded = narrow_row_statements.round_rows(factor[:, :10], scales)
    np.testing.assert_array_equal(whole.get(), np.hstack([rounded, factor[:, 10:]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_of_more_rows(dtype):
    factor = narrow_row_statements.draw_factor(1000, 13, np.dtype(dtype))
    check_rounding(factor[:300], narrow_row_statements.find_scales(factor))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 3, 25, 32, 48, 64, 100, 128])
@pytest.mark.parametrize("num_rows", [1, 129, 100_000])
@pytest.mark.parametrize(("is_conditioned", "limit"), [(True, 1e6), (True, 1e30), (False, 1e6)])
def test_rows_are_rounded_as_they_are_solved_for(is_conditioned, limit, num_rows, rank, dtype):
    """To the bits of rounding them afterwards; in float64 also refined, and with unusual scales."""
    x = cupy.asarray(narrow_row_statements.draw_factor(num_rows, rank, np.dtype(dtype)))
    x[~(abs(x) < limit)] = 1
    matrix = cupy.diag(cupy.linspace(1, 2, rank, dtype=dtype))
    if not is_conditioned:
        matrix += cupy.linspace(0, 1e5, rank, dtype=dtype)[:, None] * cupy.ones(rank, dtype)
        matrix += matrix.T
    inverse = tall.invert(matrix)
    expected, _, _ = tall.solve_rows(x, inverse)
    scales = CUDA.find_scales(expected)
    copy = CUDA.round_rows(expected, scales)
    gram = tall.gram_blocks(expected).to_array()
    factor, grams, inner, narrow = tall.solve_and_round_rows(x, inverse)
    assert factor.get().tobytes() == expected.get().tobytes()
    assert narrow.rows.get().tobytes() == copy.rows.get().tobytes()
    assert narrow.scales.get().tobytes() == scales.get().tobytes()
    assert grams.to_array().get().tobytes() == gram.get().tobytes()
    if inner is None:
        assert dtype == "float32"
        return
    products = x.astype(float) * expected
    bound = x.size * np.finfo(float).eps * abs(products).sum()
    assert abs(inner.to_array().sum() - products.sum()) <= bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("linesearch", [False, "nesterov", "auto"])
def test_mixed_precision_has_the_bits_of_whole_rows(monkeypatch, linesearch, dtype):
    """And a run in it ends as one that rounds nothing."""
    coords, values, _ = draw((70, 60, 500), 4, dtype)
    x = FlycooTensor(coords, values, (70, 60, 500), device="cuda", groups=None)
    monkeypatch.setattr(CudaEngine, "narrow_pays", lambda *arguments: True)
    options = {"init": "random", "random_state": 0, "n_iter_max": 30, "return_errors": True}
    with tl.backend_context("flycoo"):
        _, own_errors = parafac(x, 4, linesearch=linesearch, **options)
        with set_precision("mixed"):
            expected, errors = parafac(x, 4, linesearch=linesearch, **options)
            monkeypatch.setattr(NarrowFactors, "find", lambda *arguments, **options: None)
            model, _ = parafac(x, 4, linesearch=linesearch, **options)
    for factor, other in zip(model.factors, expected.factors, strict=True):
        assert factor.get().tobytes() == other.get().tobytes()
    assert float(errors[-1]) == pytest.approx(float(own_errors[-1]), abs=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bits_of_whole_rows(layout, rank, dtype):
    check_modes(THREE_MODES, rank, dtype, layout)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [3, 25, 64, 200])
@pytest.mark.parametrize("shape", OTHER_SHAPES, ids=lambda shape: f"{len(shape)} modes")
def test_fewer_and_more_modes(shape, rank, dtype):
    check_modes(shape, rank, dtype, "remap")


def check_modes(shape, rank, dtype, layout):
    """Compare bits in all modes."""
    coords, values, factors = draw(shape, rank, dtype)
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda", groups=None)
    check_same_bits(x, factors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slabs", [1, 3])
def test_weights_and_slabs(slabs, layout, dtype):
    shape = (300, 20, 5000)
    coords, values, factors = draw(shape, 10, dtype)
    options = {"layout": layout, "device": "cuda", "groups": None, "slabs": slabs}
    x = FlycooTensor(coords, values, shape, **options)
    check_same_bits(x, factors, cupy.linspace(-2, 3, 10, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [1, 3, 10, 25, 32])
def test_rows_that_are_not_aligned(monkeypatch, rank, layout, dtype):
    """Rows without padding, whether they are copied or not."""
    shape = (30, 400, 500)
    coords, values, factors = draw(shape, rank, dtype)
    rows, scales, rounded = narrow(factors)
    tight = [cupy.ascontiguousarray(matrix) for matrix in rows]
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda", groups=None)
    for pays in (True, False):
        monkeypatch.setattr(tuning, "pays_to_align", lambda *_, pays=pays: pays)
        compare(x, tight, scales, rounded)
