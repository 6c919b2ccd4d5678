"""TTMc of the CUDA engine against the executable specification, and Tucker against dense TensorLy.

Tolerances are those of MTTKRP: ``(row_nnz + ndim) * eps`` times the same sum of magnitudes, plus
the effect of flushing subnormals.
"""

import cupy
import numpy as np
import pytest
import reference
import sparse
import tensorly as tl
from error_bounds import bound_ttmc
from sides import fetch

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines.cuda import engine as cuda
from tensorly_flycoo.engines.cuda import launch, tuning
from tensorly_flycoo.format import primitives, remap
from tensorly_flycoo.format.primitives import TTMC
from tensorly_flycoo.ops.mode_product import ModeProduct, ProductUnfolding

LAYOUTS = ("remap", "replicated", "indexed")
DTYPES = ("float32", "float64")

#: Shapes for 1 to 8 modes, with modes of size 1 and 2, empty rows and rows over many tiles; and
#: ranks for them, with 1 to 4096 columns.
PROBLEMS = (
    ((3000,), (4,)),
    ((2, 9000), (3, 200)),
    ((70, 1, 5000), (1, 1, 1)),
    ((70, 1, 5000), (3, 5, 7)),
    ((300, 200, 400), (16, 16, 16)),
    ((300, 200, 400), (64, 33, 64)),
    ((300, 200, 400), (1, 64, 700)),
    ((2, 300, 3, 40), (2, 9, 3, 11)),
    ((100, 89, 2, 7, 11), (4, 3, 2, 5, 6)),
    ((5, 4, 3, 2, 6, 7), (2, 3, 3, 2, 2, 3)),
    ((2**20, 2, 3, 2**20, 2, 3, 2, 2**20), (1, 2, 3, 2, 1, 2, 2, 2)),
)


def make_problem(shape, ranks, nnz=20000, dtype="float32", skew=2.0, seed=0):
    rng = np.random.default_rng(seed)
    sizes = np.array(shape)[:, None]
    coords = (sizes * rng.random((len(shape), nnz)) ** skew).astype(np.int64)
    coords = np.unique(coords, axis=1)
    values = rng.standard_normal(coords.shape[1]).astype(dtype)
    factors = [rng.standard_normal(size).astype(dtype) for size in zip(shape, ranks, strict=True)]
    return coords, values, shape, factors


def compute(x, factors, mode, slots=None, num_rows=None):
    """Compute one mode into memory full of nan."""
    inputs = {n: cupy.asarray(factor) for n, factor in enumerate(factors) if n != mode}
    num_columns = int(np.prod([factor.shape[1] for factor in inputs.values()]))
    out = cupy.full((num_rows or x.shape[mode], num_columns), np.nan, x.dtype)
    options = {} if slots is None else {"slots": slots}
    x._layout.apply(TTMC, cuda.CUDA, inputs, mode, out, **options)
    return out.get()


def check(result, x, coords, values, shape, factors, mode):
    """Compare the non-empty rows with the oracle."""
    used, rows = np.unique(coords[mode], return_inverse=True)
    short, sizes = coords.copy(), list(shape)
    short[mode], sizes[mode] = rows, used.size
    expected = reference.ttmc(short, values, sizes, factors, mode)
    bound = bound_ttmc(x, short, values, sizes, factors, mode)
    assert (np.abs(result[used] - expected) <= bound).all()
    is_empty = np.ones(shape[mode], bool)
    is_empty[used] = False
    assert (result[is_empty] == 0).all()


def check_problem(problem, modes=None, layout_names=LAYOUTS):
    """Compare all layouts with the oracle, and with each other bit by bit."""
    coords, values, shape, factors = problem
    tensors = [
        FlycooTensor(coords, values, shape, layout=name, device="cuda", groups=None)
        for name in layout_names
    ]
    for mode in range(len(shape)) if modes is None else modes:
        results = [compute(x, factors, mode) for x in tensors]
        check(results[0], tensors[0], coords, values, shape, factors, mode)
        assert len({result.tobytes() for result in results}) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "ranks"), PROBLEMS, ids=str)
def test_every_rank_and_number_of_modes(shape, ranks, dtype):
    large = {n for n, size in enumerate(shape) if size >= 2**20}
    modes = [n for n in range(len(shape)) if n not in large] or None
    nnz = 3000 if max(ranks) > 32 else 20000
    check_problem(make_problem(shape, ranks, nnz, dtype), modes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nnz", [0, 1, 2, 255, 256, 2047, 2048, 2049, 100000])
@pytest.mark.parametrize("skew", [1.0, 4.0])
def test_every_number_of_nonzeros(nnz, skew, dtype):
    """Numbers of nonzeros around the edges of tiles and runs; also when most rows are empty."""
    check_problem(make_problem((500, 30000, 400), (3, 2, 4), nnz, dtype, skew))


@pytest.mark.parametrize("ranks", [(1, 1, 1), (3, 2, 5), (2, 16, 16)])
@pytest.mark.parametrize("shape", [(1, 100000, 3), (1, 1, 200000), (2, 200000, 1)])
def test_one_row_over_all_tiles(shape, ranks):
    check_problem(make_problem(shape, ranks, 150000, skew=1.0))


def test_modes_out_of_turn():
    problem = make_problem((50, 60, 70, 80), (3, 4, 2, 5), 30000, "float64")
    check_problem(problem, modes=[2, 2, 0, 3, 1, 1, 0])


@pytest.mark.parametrize("max_grid", [1, 3])
def test_limits_lowered(monkeypatch, max_grid):
    """More tiles than a grid holds, many buckets, rows over many segments of runs."""
    monkeypatch.setattr(launch, "MAX_GRID", max_grid)
    monkeypatch.setattr(tuning, "choose_tile_size", lambda *_: 256)
    monkeypatch.setattr(tuning, "BUCKET_SIZE", 1024)
    monkeypatch.setattr(tuning, "SEGMENT", 2)
    check_problem(make_problem((3, 4000, 50), (4, 3, 5), 40000))


def test_64_bit_ids(monkeypatch):
    """Wide ids, as used beyond 2**32 nonzeros."""
    wide = lambda count, smallest="uint32": np.dtype(np.uint64)  # noqa: E731
    monkeypatch.setattr(remap, "index_dtype", wide)
    monkeypatch.setattr(primitives, "index_dtype", wide)
    check_problem(make_problem((30, 400, 50), (4, 3, 5), 40000))


@pytest.mark.parametrize("slot_dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_slots_keep_the_rows_that_are_not_empty(layout, slot_dtype):
    coords, values, shape, factors = make_problem((40000, 80, 70), (2, 3, 4), 5000)
    x = FlycooTensor(coords, values, shape, layout=layout, device="cuda", groups=None)
    used = np.unique(coords[0])
    slots = np.zeros(shape[0], slot_dtype)
    slots[used] = np.arange(used.size)
    rows = compute(x, factors, 0, cupy.asarray(slots), used.size)
    spread = np.zeros((shape[0], 12), values.dtype)
    spread[used] = rows
    check(spread, x, coords, values, shape, factors, 0)


def test_the_same_bits_each_time():
    coords, values, shape, factors = make_problem((2, 3000, 500), (4, 8, 16), 200000)
    x = FlycooTensor(coords, values, shape, device="cuda", groups=None)
    for mode in range(3):
        assert len({compute(x, factors, mode).tobytes() for _ in range(5)}) == 1


# Tucker decompositions


def community_coo(shape, dtype):
    """Make a noisy COO of three communities, with well-separated singular values."""
    rng = np.random.RandomState(0)
    factors = [np.where(np.arange(size)[:, None] % 3 == np.arange(3), 1.0, 0.15) for size in shape]
    probabilities = np.einsum("r,ar,br,cr->abc", [1.0, 0.7, 0.4], *factors)
    coords = np.stack(np.nonzero(rng.random_sample(shape) < probabilities))
    return sparse.COO(coords, (0.5 + rng.random_sample(coords.shape[1])).astype(dtype), shape)


def decompose(x, modes, init, dtype):
    rank, tol = [3] * len(modes), 1e-4 if dtype == "float32" else 1e-8
    options = {"init": init, "random_state": 0, "n_iter_max": 20, "tol": tol}
    if len(modes) == 3:
        (core, factors), errors = tl.decomposition.tucker(x, rank, return_errors=True, **options)
    else:
        (core, factors), errors = tl.decomposition.partial_tucker(x, rank, modes=modes, **options)
    return core, factors, errors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("non_negative_tucker", {}),
        ("non_negative_tucker", {"normalize_factors": True}),
        ("non_negative_tucker_hals", {}),
        ("non_negative_tucker_hals", {"sparsity_coefficients": [0.1, None, 0.2]}),
    ],
    ids=str,
)
def test_non_negative_tucker_does_what_it_does_on_dense_tensors(name, own, init, dtype):
    coo = community_coo((60, 50, 40), dtype)
    dense = np.zeros(coo.shape, dtype)
    dense[tuple(coo.coords)] = coo.data
    options = {"init": init, "random_state": 0, "n_iter_max": 6, "tol": 0, "return_errors": True}
    with tl.backend_context("numpy"):
        _, expected = getattr(tl.decomposition, name)(dense, [2, 3, 3], **options | own)
    x = FlycooTensor.from_coo(coo, device="cuda")
    (core, factors), errors = getattr(tl.decomposition, name)(x, [2, 3, 3], **options | own)
    assert all(isinstance(array, cupy.ndarray) for array in (core, *factors))
    assert all((array >= 0).all() for array in (core, *factors))
    close = 1e-4 if dtype == "float32" else 1e-8
    np.testing.assert_allclose(errors, [float(error) for error in expected], rtol=close)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize("modes", [[0, 1, 2], [0, 2], [1, 2]], ids=str)
@pytest.mark.parametrize("as_coo", [True, False], ids=["COO", "FlycooTensor"])
def test_tucker_does_what_it_does_on_dense_tensors(as_coo, modes, init, dtype):
    coo = community_coo((60, 50, 40), dtype)
    dense = np.zeros(coo.shape, dtype)
    dense[tuple(coo.coords)] = coo.data
    with tl.backend_context("numpy"):
        _, expected_factors, expected_errors = decompose(dense, modes, init, dtype)
    x = coo if as_coo else FlycooTensor.from_coo(coo, device="cuda")
    core, factors, errors = decompose(x, modes, init, dtype)
    fetch(core, x)
    close = 1e-4 if dtype == "float32" else 1e-9
    if dtype == "float64":
        assert len(errors) == len(expected_errors)
    assert abs(float(errors[-1]) - float(expected_errors[-1])) <= close
    for factor, expected in zip(factors, expected_factors, strict=True):
        factor = fetch(factor, x)
        difference = factor @ factor.T - expected @ expected.T
        assert np.abs(difference).max() <= (2e-2 if dtype == "float32" else 1e-5)


@pytest.mark.parametrize("modes", [(1, 2), (1,), (0, 1, 2)])
def test_products_agree_with_the_cpu(modes):
    coords, values, shape, factors = make_problem((900, 80, 70), (3, 4, 5), 9000, "float64")
    results = []
    for device, xp in (("cpu", np), ("cuda", cupy)):
        x = FlycooTensor(coords, values, shape, device=device)
        product = ModeProduct(x, {n: xp.asarray(factors[n]) for n in modes})
        core = product.to_array() if 0 in modes or len(modes) == 2 else None
        left, singular_values = (
            ProductUnfolding(product, 0).svd(3) if 0 not in modes else (None, None)
        )
        results.append(
            [None if a is None else tl.to_numpy(a) for a in (core, left, singular_values)]
        )
    for on_cpu, on_gpu in zip(*results, strict=True):
        if on_cpu is not None:
            signs = 1 if on_cpu.ndim != 2 else np.sign((on_cpu * on_gpu).sum(axis=0))
            np.testing.assert_allclose(on_gpu * signs, on_cpu, rtol=1e-8, atol=1e-8)


def test_many_rows_are_decomposed_by_iteration():
    """TensorLy's issue 101 at a tenth: neither the unfolding nor its Gram matrix is small."""
    rng = np.random.RandomState(0)
    community = rng.randint(0, 20, 60000)
    coords = np.stack([community + 20 * rng.randint(0, 5, 60000) for _ in range(3)])
    coords[:, ::3] = np.stack([rng.randint(0, size, 20000) for size in (12000, 12000, 900)])
    coo = sparse.COO(coords, 1.0 + community, shape=(12000, 12000, 900))
    (core, factors), errors = tl.decomposition.partial_tucker(
        coo, [16, 16], modes=[0, 2], n_iter_max=3
    )
    assert core.shape == (16, 12000, 16)
    assert [factor.shape for factor in factors] == [(12000, 16), (900, 16)]
    assert float(errors[-1]) < 0.9
