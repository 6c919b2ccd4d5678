"""Products of Gram matrices on a GPU, emulated: sums of blocks, what is formed, ADMM's inverses."""

import numpy as np
import pytest
from emulated_gpu import HAS_COMPILER, EmulatedKernel

from tensorly_flycoo.engines.cuda import structs, tuning
from tensorly_flycoo.engines.cuda.macros import products_macros

pytestmark = HAS_COMPILER

#: As `tall._FORMATS` has them.
PRODUCT = f"{2 * structs.MAX_GRAMS}Q{3 * structs.MAX_MATRICES}Q2i"
FORMATS = {"add_grams": "qi2Q", "multiply": f"{PRODUCT}iQ", "invert": f"{PRODUCT}i3Q"}
EPS = np.finfo(np.float64).eps


def run(name, grams, scales, rank, dtype, *results):
    """Run a kernel for Gram matrices in blocks (n, R, R), and for matrices (R, R) or rows (R,)."""
    macros = products_macros(rank, np.dtype(dtype))
    kernel = EmulatedKernel("products.cu", name, FORMATS[name], macros)
    members = np.zeros(2 * structs.MAX_GRAMS + 3 * structs.MAX_MATRICES, int)
    gram_members, scale_members = np.split(members, [2 * structs.MAX_GRAMS])
    for n, gram in enumerate(grams):
        gram_members[n :: structs.MAX_GRAMS] = gram.ctypes.data, len(gram)
    for n, scale in enumerate(scales):
        strides = [0, 1] if scale.ndim == 1 else [rank, 1]
        scale_members[n :: structs.MAX_MATRICES] = scale.ctypes.data, *strides
    addresses = [0 if result is None else result.ctypes.data for result in results]
    block_size = 32 * macros["NUM_WARPS"]
    kernel((1, 1), block_size, *members.tolist(), len(grams), len(scales), rank, *addresses)


def draw_grams(rank, num_blocks, seed=0):
    blocks = np.random.default_rng(seed).random((num_blocks, 5, rank))
    return np.einsum("bir,bis->brs", blocks, blocks)


@pytest.mark.parametrize("num_more", [-1, 0, 9])
def test_segments_of_blocks_are_added(num_more):
    rank = 5
    segment = tuning.GRAM_SEGMENT
    num_blocks = 2 * segment + num_more
    blocks = draw_grams(rank, num_blocks)
    sums = np.full((-(-num_blocks // segment), rank, rank), np.nan)
    macros = products_macros(rank, np.dtype(np.float64))
    kernel = EmulatedKernel("products.cu", "add_grams", FORMATS["add_grams"], macros)
    kernel((len(sums), 1), 256, num_blocks, rank, blocks.ctypes.data, sums.ctypes.data)
    expected = np.add.reduceat(blocks, range(0, num_blocks, segment))
    np.testing.assert_allclose(sums, expected, rtol=2 * segment * EPS)  # sums of positive numbers


@pytest.mark.parametrize(("rank", "dtype"), [(5, np.float32), (33, np.float64)])
def test_a_product(rank, dtype):
    grams = [draw_grams(rank, 1), draw_grams(rank, 9, seed=1), draw_grams(rank, 2, seed=2)]
    weights = np.random.default_rng(3).random(rank).astype(dtype)
    product = np.full((rank, rank), np.nan)
    run("multiply", grams, [weights], rank, dtype, product)
    expected = np.prod([gram.sum(axis=0) for gram in grams], axis=0) * weights
    np.testing.assert_allclose(product, expected, rtol=20 * EPS)  # sums of positive numbers


@pytest.mark.parametrize("rank", [1, 6, 33])
def test_an_inverse_with_the_mean_of_the_diagonal_added(rank):
    """Its condition is at most rank + 1; sums and eliminations round each number `rank` times."""
    gram = draw_grams(rank, 1)[0]
    inverse, penalty = np.full((rank, rank), np.nan), np.full(1, np.nan)
    run("invert", [], [gram], rank, np.float64, inverse, None, penalty)
    np.testing.assert_allclose(penalty, gram.trace() / rank, rtol=rank * EPS)
    expected = np.linalg.inv(gram + gram.trace() / rank * np.eye(rank))
    atol = 10 * rank * (rank + 1) * EPS * np.linalg.norm(expected, 2)
    np.testing.assert_allclose(inverse, expected, rtol=0, atol=atol)


def test_an_inverse_of_zeros_is_zero():
    inverse, penalty = np.full((3, 3), np.nan), np.full(1, np.nan)
    run("invert", [], [np.zeros((3, 3))], 3, np.float64, inverse, None, penalty)
    assert not inverse.any()
    assert penalty == 0


def test_an_inverse_of_a_product_as_it_is():
    """parafac's: with the product and its condition number."""
    rank = 4
    grams = [draw_grams(rank, 3), draw_grams(rank, 2, seed=1)]
    inverse, rest = np.full((rank, rank), np.nan), np.full(rank * rank + 1, np.nan)
    run("invert", grams, [], rank, np.float64, inverse, rest, None)
    expected = grams[0].sum(axis=0) * grams[1].sum(axis=0)
    np.testing.assert_allclose(rest[:-1].reshape(rank, rank), expected, rtol=20 * EPS)
    condition = np.linalg.cond(expected)
    np.testing.assert_allclose(inverse @ expected, np.eye(rank), atol=100 * condition * EPS)
