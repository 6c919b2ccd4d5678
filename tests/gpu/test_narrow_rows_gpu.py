"""Narrow rows on a GPU: their bits, and MTTKRP of them with the bits of whole rows."""

import cupy
import narrow_row_statements
import numpy as np
import pytest
import reference

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines.cuda import tuning
from tensorly_flycoo.engines.cuda.engine import CUDA
from tensorly_flycoo.engines.narrow_rows import NARROW_DTYPES
from tensorly_flycoo.format import group_passes
from tensorly_flycoo.format.primitives import MTTKRP

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
    """Return what the engine stores, and whole rows of the numbers that these stand for."""
    stored = [CUDA.narrow_rows(cupy.asarray(factor)) for factor in factors]
    widened = [cupy.asarray(narrow_row_statements.widen(copy.rows.get())) for copy in stored]
    return stored, [copy.rows for copy in stored], widened


def compute(x, factors, mode, weights=None):
    """Compute one mode into memory full of nan."""
    inputs = {n: factor for n, factor in enumerate(factors) if n != mode}
    out = cupy.full((x.shape[mode], factors[0].shape[1]), np.nan, x.dtype)
    x._layout.apply(MTTKRP, CUDA, inputs, mode, out, weights=weights)
    return out.get()


def check_same_bits(x, rows, widened, weights=None):
    """Compare narrow rows with whole ones of the same numbers."""
    for mode in range(x.ndim):
        expected = compute(x, widened, mode, weights)
        assert not np.isnan(expected).any()
        assert compute(x, rows, mode, weights).tobytes() == expected.tobytes()


def check_copy(found, factor, scales=None):
    """Compare with the statement to the bit; columns whose scale is nan hold arbitrary numbers."""
    rows, expected_scales = narrow_row_statements.narrow_rows(factor, scales)
    np.testing.assert_array_equal(found.scales.get(), expected_scales)
    assert found.scales.dtype == factor.dtype
    assert found.rows.dtype == NARROW_DTYPES[factor.dtype]
    is_usable = ~np.isnan(expected_scales)
    assert found.rows.get()[:, is_usable].tobytes() == rows[:, is_usable].tobytes()
    pitch = tuning.choose_row_nbytes(rows.shape[1] * rows.itemsize)
    assert factor.size == 0 or found.rows.strides == (pitch, rows.itemsize)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("num_rows", [0, 1, 2, 129, 300_000])
def test_copies_have_the_bits_of_the_statement(num_rows, rank, dtype):
    """Columns of zeros, of subnormal numbers, with inf and nan, ties of rounding."""
    if num_rows * rank > 10_000_000:
        num_rows //= 10
    factor = narrow_row_statements.draw_factor(max(num_rows, 100), rank, np.dtype(dtype))[:num_rows]
    on_gpu = cupy.asarray(factor)
    check_copy(CUDA.narrow_rows(on_gpu), factor)
    assert on_gpu.get().tobytes() == factor.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_lie_apart(dtype):
    factor = narrow_row_statements.draw_factor(1000, 13, np.dtype(dtype))
    check_copy(CUDA.narrow_rows(cupy.asarray(factor)[:, :10]), factor[:, :10])


@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_that_are_given(dtype):
    """Those of more rows than are narrowed."""
    factor = narrow_row_statements.draw_factor(1000, 13, np.dtype(dtype))
    scales = narrow_row_statements.find_scales(factor)
    found = CUDA.narrow_rows(cupy.asarray(factor[:300]), cupy.asarray(scales))
    check_copy(found, factor[:300], scales)


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
    """Compare bits, and the error with the bound of what narrow rows lose."""
    coords, values, factors = draw(shape, rank, dtype)
    stored, rows, widened = narrow(factors)
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda", groups=None)
    check_same_bits(x, rows, widened)
    on_host = [copy._replace(scales=copy.scales.get()) for copy in stored]
    for mode in range(len(shape)):
        scales = narrow_row_statements.find_column_scales(on_host, mode)
        found = compute(x, rows, mode).astype(float) * scales
        expected = reference.mttkrp(coords, values, shape, factors, mode)
        bound = narrow_row_statements.bound_mttkrp(coords, values, shape, factors, mode)
        assert (np.abs(found - expected) <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slabs", [1, 3])
def test_weights_and_slabs(slabs, layout, dtype):
    shape = (300, 20, 5000)
    coords, values, factors = draw(shape, 10, dtype)
    _, rows, widened = narrow(factors)
    options = {"layout": layout, "device": "cuda", "groups": None, "slabs": slabs}
    x = FlycooTensor(coords, values, shape, **options)
    check_same_bits(x, rows, widened, cupy.linspace(-2, 3, 10, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [1, 3, 10, 25, 32])
def test_rows_that_are_not_aligned(monkeypatch, rank, layout, dtype):
    """Rows without padding, whether they are copied or not."""
    shape = (30, 400, 500)
    coords, values, factors = draw(shape, rank, dtype)
    _, rows, widened = narrow(factors)
    tight = [cupy.ascontiguousarray(matrix) for matrix in rows]
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda", groups=None)
    for pays in (True, False):
        monkeypatch.setattr(tuning, "pays_to_align", lambda *_, pays=pays: pays)
        check_same_bits(x, tight, widened)


@pytest.mark.usual_limits("groups", "prefixes")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups(layout, dtype):
    """The product of the factors of a group is narrowed as any factor is."""
    shape = (40, 8, 30)
    coords, values, factors = draw(shape, 16, dtype)
    groups = ((0,), (1, 2))
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda", groups=groups)
    on_gpu = dict(enumerate(map(cupy.asarray, factors)))
    merged = group_passes._merge_all(x._layout, CUDA, on_gpu)
    _, rows, widened = narrow(list(merged.values()))
    for number, other in ((0, 1), (1, 0)):
        results = []
        for matrices in (rows, widened):
            out = cupy.full((x._layout.merged.shape[number], 16), np.nan, dtype)
            CUDA.mttkrp(x._layout, {other: matrices[other]}, number, out)
            results.append(out.get().tobytes())
        assert results[0] == results[1]
