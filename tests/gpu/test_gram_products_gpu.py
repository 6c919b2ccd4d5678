"""Products of Gram matrices in TensorLy's parafac: one kernel, and nothing that a user can see."""

import itertools

import cupy
import numpy as np
import pytest
import reference
import sparse
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import _cp, parafac

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines.cuda import tall
from tensorly_flycoo.loop import gram_products
from tensorly_flycoo.loop.gram_products import GramMemory, GramProduct
from tensorly_flycoo.testing import planted_tensor

RANKS = pytest.mark.parametrize("rank", [1, 2, 3, 7, 16, 25, 31, 32, 33, 50, 64, 77, 100, 128])
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def make_factors(rank, shape=(40, 30, 20), seed=0, offset=0.1, dtype=np.float32):
    rng = np.random.default_rng(seed)
    factors = [rng.random((size, rank)) - 0.5 + offset for size in shape]
    return [factor.astype(dtype) for factor in factors]


def multiply(factors, weights):
    """Multiply Gram matrices and weights in float64."""
    product = np.outer(weights, weights).astype(float)
    for factor in factors:
        product *= factor.astype(float).T @ factor.astype(float)
    return product


def make_blocks(matrix):
    """Copy a small matrix to the GPU, as one block."""
    on_gpu = cupy.ascontiguousarray(cupy.asarray(matrix, np.float64))
    return tall.BlockSums(on_gpu.data, on_gpu.data.ptr, (1, *on_gpu.shape))


def make_inverse(inverse, matrix, condition=1):
    """Copy an inverse to the GPU, as `solve_rows` takes it."""
    return make_blocks(np.concatenate([np.ravel(inverse), np.ravel(matrix), [condition]])[None])


def invert_product(grams, scales, rank, dtype=np.float32):
    """Return the inverse, the product and the condition number that are found."""
    found = tall.invert_product(grams, scales, rank, np.dtype(dtype)).to_array().get()
    inverse, product = found[:-1].reshape(2, rank, rank)
    return inverse, product, found[-1]


@RANKS
@DTYPES
def test_a_product(rank, dtype):
    """The one that is inverted, to the bit."""
    factors = make_factors(rank, offset=1, dtype=dtype)
    grams = [tall.gram_blocks(cupy.asarray(factor)) for factor in factors]
    product = tall.multiply_product(grams, [], rank, np.dtype(dtype))
    assert product.dtype == np.float64
    _, expected, _ = invert_product(grams, [], rank, dtype)
    np.testing.assert_array_equal(product.get(), expected)


def solve_rows(x, inverse):
    y, grams, inner = tall.solve_rows(x, inverse)
    return y, grams.to_array().get(), inner.to_array().get()


@RANKS
@DTYPES
@pytest.mark.parametrize("num_rows", [1, 5, 40, 128, 3 * 2**14 + 77, 200_000])
@pytest.mark.parametrize("pad", [0, 3])
def test_solving_rows(rank, dtype, num_rows, pad):
    """The product of the rows, its Gram matrix as rounded, and its inner product with them."""
    rng = np.random.default_rng(rank)
    wide = rng.standard_normal((num_rows, rank + pad)).astype(dtype)
    x, matrix = wide[:, :rank].astype(float), rng.standard_normal((rank, rank))
    blocks = make_inverse(matrix, np.zeros((rank, rank)))
    y, grams, inner = solve_rows(cupy.asarray(wide)[:, :rank], blocks)
    bound = (2 + (dtype is np.float64) * rank) * np.finfo(dtype).eps
    assert (np.abs(y.get() - x @ matrix) <= bound * (np.abs(x) @ np.abs(matrix))).all()
    exact = y.get().astype(float)
    gram = reference.product_of_columns(exact, exact)
    widths = (tall.tuning.choose_rows_per_block(num_rows), tall.tuning.GRAM_SEGMENT)
    gram_bound = reference.columns_error_bound(exact, exact, np.float64, widths)
    assert (np.abs(grams.sum(axis=0) - gram) <= gram_bound).all()
    assert abs(inner.sum() - (x * exact).sum()) <= 1e-12 * np.abs(x * exact).sum()
    found = tall.gram_blocks(y).to_array().get().sum(axis=0)
    assert (np.abs(found - gram) <= gram_bound).all()
    segment = tall.tuning.GRAM_SEGMENT
    assert len(grams) <= max(segment, -(-len(inner) // segment))
    again = solve_rows(cupy.asarray(wide)[:, :rank], blocks)
    assert all((a == b).all() for a, b in zip((y, grams, inner), again, strict=True))


@pytest.mark.parametrize("condition", [1e3, 1e9, 1e12])
@pytest.mark.parametrize("rank", [2, 20, 60, 100, 128])
def test_the_residual_of_an_ill_conditioned_system_is_small(rank, condition):
    """Below the square root of epsilon, though rows are multiplied by the inverse."""
    rng = np.random.default_rng(rank)
    vectors, _ = np.linalg.qr(rng.standard_normal((rank, rank)))
    matrix = vectors * np.geomspace(1, 1 / condition, rank) @ vectors.T
    matrix = (matrix + matrix.T) / 2
    b = rng.standard_normal((300, rank)) @ matrix
    inverse = tall.invert(cupy.asarray(matrix))
    y, grams, inner = solve_rows(cupy.asarray(b), inverse)
    y = y.get()
    eps = np.finfo(float).eps
    bound = rank * (10 * eps + min(condition * eps, 1e-8))
    assert (np.abs(y @ matrix - b) <= bound * (np.abs(y) @ np.abs(matrix) + np.abs(b))).all()
    np.testing.assert_allclose(grams.sum(axis=0), y.T @ y, rtol=0, atol=1e-12 * np.square(y).sum())
    assert abs(inner.sum() - (b * y).sum()) <= 1e-12 * np.abs(b * y).sum()


@RANKS
@DTYPES
def test_a_product_is_solved_with_and_turned_into_an_array(rank, dtype):
    factors, weights = make_factors(rank, dtype=dtype), np.linspace(1, 2, rank, dtype=dtype)
    on_gpu, w = [cupy.asarray(f) for f in factors], cupy.asarray(weights)
    product = w[:, None] * (GramProduct.of(on_gpu[0]) * GramProduct.of(on_gpu[1])) * w[None]
    assert isinstance(product, GramProduct)
    expected = multiply(factors[:2], weights)
    np.testing.assert_allclose(product.to_array().get(), expected, rtol=1e-5, atol=1e-6)
    b = np.random.default_rng(1).random((500, rank)).astype(dtype)
    found = tl.transpose(product.solve(cupy.asarray(b).T)).get()
    eps = np.finfo(dtype).eps
    exact = b @ np.linalg.pinv(expected, rcond=rank * eps)
    bound = 8 * rank * eps * min(np.linalg.cond(expected), 1 / eps) * np.abs(exact).max()
    assert np.abs(found - exact).max() <= bound


def test_a_product_that_is_not_symmetric():
    factor, rng = cupy.asarray(make_factors(5)[0]), np.random.default_rng(0)
    scale = rng.random((5, 5)).astype(np.float32) + 1
    product = GramProduct.of(factor) * cupy.asarray(scale)
    expected = multiply([factor.get()], np.ones(5)) * scale
    np.testing.assert_allclose(product.T.to_array().get(), expected.T, rtol=1e-5)
    b = rng.random((5, 9)).astype(np.float32)
    found = product.solve(cupy.asarray(b)).get()
    np.testing.assert_allclose(expected @ found, b, rtol=2e-3, atol=1e-3)


@DTYPES
@pytest.mark.parametrize("rank", [6, 33, 65, 127, 128])
def test_a_singular_product_takes_the_pseudo_inverse(rank, dtype):
    """Of ones, and of a matrix of half the rank."""
    rng = np.random.default_rng(0)
    b = rng.random((rank, 30)).astype(dtype)
    half = rng.standard_normal((90, rank // 2)) @ rng.standard_normal((rank // 2, rank))
    for factor in (np.ones((20, rank), dtype), half.astype(dtype)):
        product = GramProduct.of(cupy.asarray(factor))
        exact = factor.astype(float).T @ factor
        right = (exact @ b).astype(dtype)  # one that has a solution
        found = product.solve(cupy.asarray(right)).get()
        assert np.abs(found).max() <= 10 * rank * np.abs(b).max()
        error = np.abs(exact @ found - right).max()
        assert error <= 1e3 * rank * np.finfo(dtype).eps * np.abs(right).max()


@RANKS
def test_matrices_that_are_not_positive_definite_are_inverted(rank):
    """By their singular values: an indefinite one, and one that is not symmetric."""
    rng = np.random.default_rng(rank)
    vectors, _ = np.linalg.qr(rng.standard_normal((rank, rank)))
    signs = np.where(np.arange(rank) % 2, 1, -1)
    eps = np.finfo(float).eps
    for matrix in (vectors * signs @ vectors.T, np.eye(rank) + vectors / 2):
        found = tall.invert(cupy.asarray(matrix)).to_array().get()[: rank**2].reshape(rank, rank)
        np.testing.assert_allclose(found @ matrix, np.eye(rank), atol=100 * rank * eps)


def test_what_does_not_fit_becomes_an_array():
    product = GramProduct.of(cupy.asarray(make_factors(4)[0]))
    plain = product.to_array()
    for _ in range(3):
        product, plain = product * product, plain * plain
    assert isinstance(product, GramProduct)
    assert isinstance(product * product, cupy.ndarray)
    np.testing.assert_allclose((product * product).get(), (plain * plain).get(), rtol=1e-4)
    for other in (2.0, cupy.eye(4), cupy.ones(4, np.float32)):
        assert isinstance(product * other, cupy.ndarray)
        assert isinstance(product + other, cupy.ndarray)
    assert product + 0 is product
    assert isinstance(np.linalg.norm(product), cupy.ndarray)
    assert product.sum().shape == ()


def test_the_error_of_a_model():
    shape, rng = (40, 30, 20), np.random.default_rng(0)
    coo = sparse.random(shape, nnz=900, random_state=0).astype(np.float32)
    x, factors = FlycooTensor.from_coo(coo, device="cuda"), make_factors(5, shape)
    weights = rng.random(5).astype(np.float32)
    dense = np.einsum("r,ir,jr,kr->ijk", weights.astype(float), *factors)
    with tl.backend_context("flycoo"):
        for w in (None, cupy.asarray(weights)):
            model = dense if w is not None else np.einsum("ir,jr,kr->ijk", *factors)
            on_gpu = [cupy.asarray(factor) for factor in factors]
            error, *_ = _cp.error_calc(x, x.norm(), w, on_gpu, None, None)
            assert type(error) is np.float32
            assert error == pytest.approx(np.linalg.norm(coo.todense() - model), rel=1e-5)


def decompose(coo, device, rank=8, **options):
    options = {"n_iter_max": 8, "tol": 0, "init": "random", "random_state": 0} | options
    x = FlycooTensor.from_coo(coo, device=device)
    with tl.backend_context("flycoo"):
        cp_tensor, errors = parafac(x, rank, return_errors=True, **options)
    return cp_tensor, [float(error) for error in errors]


def draw(shape, nnz=3000):
    return sparse.random(shape, nnz=nnz, random_state=0).astype(np.float32)


@DTYPES
@pytest.mark.parametrize(
    ("shape", "rank"),
    [
        *itertools.product([(60, 50), (3, 40, 50), (16, 3, 20, 30, 5), (4,) * 9], [1, 8, 32, 33]),
        *itertools.product([(160, 150, 140)], [64, 100, 128, 129]),
    ],
)
def test_the_errors_of_the_cpu(shape, rank, dtype):
    """Also of more modes than a product has room for, and with ranks above a mode's size."""
    coo = draw(shape, 1500 if rank < 64 else 60_000).astype(dtype)
    found, expected = decompose(coo, "cuda", rank), decompose(coo, "cpu", rank)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-3, atol=1e-3)
    again = decompose(coo, "cuda", rank)
    assert again[1] == found[1]
    for first, second in zip(found[0].factors, again[0].factors, strict=True):
        assert (first == second).all()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_callback_may_change_factors_in_place(in_place):
    def double(cp_tensor, error):
        if in_place:
            cp_tensor.factors[1][...] *= 2
            cp_tensor.weights[...] *= 0.9
        else:
            cp_tensor.factors[1] = cp_tensor.factors[1] * 2

    coo = draw((60, 50, 40))
    found, expected = (decompose(coo, device, callback=double)[1] for device in ("cuda", "cpu"))
    np.testing.assert_allclose(found, expected, rtol=2e-4)


def test_a_callback_sees_arrays():
    seen = []

    def look(cp_tensor, error):
        factor = cp_tensor.factors[0]
        seen.append((type(tl.dot(tl.transpose(factor), factor)), type(error)))
        seen.append((type(tl.ones((8, 8), **tl.context(factor))), type(error)))

    decompose(draw((60, 50, 40)), "cuda", callback=look)
    assert set(seen) == {(cupy.ndarray, np.float32)}


def test_memory_that_another_factor_got_is_not_taken_for_the_first():
    block, memory = cupy.cuda.alloc(2**12), GramMemory()
    for factor in (*make_factors(8, (40, 40)), *make_factors(8, (40, 40, 30), seed=1)):
        on_gpu = cupy.ndarray(factor.shape, np.float32, memptr=block)
        on_gpu.set(factor)
        found = GramProduct.of(on_gpu, memory).to_array().get()
        np.testing.assert_allclose(found, multiply([factor], np.ones(8)), rtol=1e-5, atol=1e-6)
        del on_gpu
    assert GramProduct.of(cupy.asarray(factor), memory) is not None
    assert len(memory.grams) == 1


def test_what_is_known_is_found_through_other_views():
    both, memory = cupy.asarray(make_factors(8, (80,))[0]), GramMemory()
    first, second = both[:40], both[40:]
    gram_products.start_product(memory, 8, np.dtype(np.float32), True)
    try:
        known = [gram_products.find_gram(half.T, half) for half in (first, second)]
        assert gram_products.find_gram(first.T.T.T, both[:40]) is known[0] is not known[1]
        assert gram_products.find_gram(second.T, first) is None
        assert gram_products.find_gram(first[:, :7].T, first) is None
    finally:
        gram_products.stop()
    assert gram_products.find_gram(first.T, first) is None
    for half, product in zip((first, second), known, strict=True):
        expected = multiply([half.get()], np.ones(8))
        np.testing.assert_allclose(product.to_array().get(), expected, rtol=1e-5, atol=1e-6)


def test_a_start_of_parts_of_one_array():
    coo = draw((50, 50, 40))
    both, last = make_factors(8, (100, 40))
    found, expected = [], []
    for xp, device, errors in ((cupy, "cuda", found), (np, "cpu", expected)):
        halves = xp.asarray(both)
        guess = CPTensor((xp.ones(8, np.float32), [halves[:50], halves[50:], xp.asarray(last)]))
        errors += decompose(coo, device, init=guess)[1]
    np.testing.assert_allclose(found, expected, rtol=2e-4)


def test_after_a_call_products_are_plain_again():
    decompose(draw((60, 50, 40)), "cuda")
    assert gram_products._of_thread.memory is None


def test_weights_scale_columns_like_a_factor():
    coo, factors = draw((60, 50, 40)), make_factors(8, (60, 50, 40))
    weights = np.linspace(0.5, 2, 8, dtype=np.float32)
    guess = CPTensor((cupy.asarray(weights), [cupy.asarray(f) for f in factors]))
    x = FlycooTensor.from_coo(coo, device="cuda")
    with tl.backend_context("flycoo"):
        for mode in range(3):
            found = tl.tenalg.unfolding_dot_khatri_rao(x, guess, mode).get()
            plain = tl.tenalg.unfolding_dot_khatri_rao(x, (None, guess.factors), mode).get()
            np.testing.assert_allclose(found, plain * weights, rtol=1e-5, atol=1e-6)


def test_an_inverse_of_a_product():
    gram = cupy.asarray(multiply(make_factors(6), np.ones(6)))
    twice = cupy.stack([gram, gram])
    blocks = tall.BlockSums(twice.data, twice.data.ptr, twice.shape)
    found, product, _ = invert_product([blocks], [], 6)
    np.testing.assert_allclose(product, 2 * gram.get())
    np.testing.assert_allclose(found @ product, np.eye(6), atol=1e-6)
    ones = cupy.ones((1, 1), np.float32)
    found, product, condition = invert_product([make_blocks(gram)], [(ones, 0, 0)], 6)
    np.testing.assert_allclose(found @ gram.get(), np.eye(6), atol=1e-6)
    assert condition >= 1


@RANKS
@DTYPES
def test_a_stack_of_inverses(rank, dtype):
    """Each is that of its product alone, to the bit; one is of a singular matrix."""
    rng = np.random.default_rng(rank)
    rows = rng.standard_normal((2, 5, 40, rank))
    rows[:, 3, :, -1] = rows[:, 3, :, 0]
    stacks = [cupy.asarray(part.swapaxes(1, 2) @ part) for part in rows]
    found = tall.invert_products(stacks, np.dtype(dtype))
    for place in range(5):
        blocks = [make_blocks(stack[place]) for stack in stacks]
        alone, _, _ = invert_product(blocks, [], rank, dtype)
        assert found[place].get().tobytes() == alone.tobytes()


@DTYPES
def test_errors_near_an_exact_fit(dtype):
    """Their squares are as exact as MTTKRPs in the tensor's precision allow."""
    x, factors = planted_tensor((60, 30, 20), 3, 400, random_state=0, device="cuda", dtype=dtype)
    rng, errors, (coords, values) = np.random.default_rng(0), [], map(cupy.asnumpy, x.nonzeros())
    start = [
        cupy.asarray(f) * cupy.asarray(1 + rng.standard_normal(f.shape) / 1000) for f in factors
    ]
    dense = np.zeros(x.shape)
    dense[tuple(coords)] = values

    def compare(cp_tensor, error):
        model = np.einsum(
            "ir,jr,kr->ijk", *(cupy.asnumpy(f).astype(float) for f in cp_tensor.factors)
        )
        exact = np.linalg.norm(model - dense) / np.linalg.norm(dense)
        assert abs(float(error) ** 2 - exact**2) <= 4 * np.finfo(dtype).eps
        errors.append(exact)

    guess = (cupy.ones(3, dtype), [factor.astype(dtype) for factor in start])
    with tl.backend_context("flycoo"):
        parafac(x, 3, n_iter_max=4, tol=0, init=guess, callback=compare)
    assert errors[-1] < 1e-4 < errors[0]
