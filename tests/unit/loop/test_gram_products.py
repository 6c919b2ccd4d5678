"""Products of Gram matrices, with NumPy arrays and stand-ins for the kernels of a GPU."""

import inspect
import sys
import threading
import types

import numpy as np
import pytest
import sparse
import tensorly as tl

from tensorly_flycoo import FlycooTensor, Progress
from tensorly_flycoo.backend import arrays
from tensorly_flycoo.loop import gram_products, whole_tensor
from tensorly_flycoo.loop.gram_products import GramMemory, GramProduct
from tensorly_flycoo.loop.whole_tensor import WholeTensor


class Blocks:
    """One block."""

    copies = ()

    def __init__(self, array):
        self._array = array[None]
        self.shape = self._array.shape

    def to_array(self):
        return self._array


class Kernels:
    """What the CUDA engine's kernels compute, and how often."""

    MAX_GRAMS, MAX_SCALES = 3, 3

    def __init__(self):
        self.num_grams = self.num_solves = self.num_fits = self.num_inner = 0

    def suits_tensor_cores(self, x):
        return x.dtype == np.float32

    def suits_rank(self, rank, dtype):
        return dtype == np.float32

    def gram_blocks(self, x):
        self.num_grams += 1
        return Blocks(x.astype(float).T @ x)

    def invert_product(self, grams, scales, rank, dtype):
        return Blocks(np.linalg.pinv(multiply(grams, scales, rank)))

    def solve_rows(self, x, inverse):
        self.num_solves += 1
        y = np.zeros((x.shape[0], x.shape[1] + 1), np.float32)
        y[:, :-1] = x @ inverse.to_array()[0]
        y = y[:, :-1]
        return y, Blocks(y.astype(float).T @ y), Blocks(np.vdot(x, y))

    def inner_blocks(self, a, b):
        self.num_inner += 1
        return Blocks(np.vdot(a, b))

    def compute_fit(self, grams, scales, rank, dtype, inner, norm_square, meanwhile):
        self.num_fits += 1
        meanwhile()
        model_square = multiply(grams, scales, rank).sum()
        return np.sqrt(abs(norm_square + model_square - 2 * inner.to_array().sum()))


def multiply(grams, scales, rank):
    product = np.ones((rank, rank))
    for gram in grams:
        product *= gram.to_array().sum(axis=0)
    for array, row, column in scales:
        strides = (row * array.itemsize, column * array.itemsize)
        product *= np.lib.stride_tricks.as_strided(array, product.shape, strides)
    return product


@pytest.fixture
def kernels(monkeypatch):
    """Let NumPy's float32 arrays pass for CuPy's, with their kernels."""
    made = Kernels()
    is_cupy = lambda x: isinstance(x, np.ndarray)  # noqa: E731
    for module in (gram_products, arrays):
        monkeypatch.setattr(module, "is_cupy", is_cupy)
    monkeypatch.setattr(arrays, "check_place", lambda *_: None)
    monkeypatch.setattr(gram_products, "_is_on_gpu", is_cupy)
    monkeypatch.setattr(gram_products, "gpu_kernels", lambda: made)
    monkeypatch.setattr(gram_products, "_address", lambda array: array.ctypes.data)
    cupy = types.ModuleType("cupy")
    vars(cupy).update(ones=np.ones, zeros=np.zeros, eye=np.eye, lib=np.lib)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    yield made
    gram_products.stop()


@pytest.fixture
def memories(kernels, monkeypatch):
    """Let operands of parafac be on a GPU; list what they remember."""
    made, original = [], WholeTensor.__init__

    def init(self, x):
        original(self, x)
        self.device = "cuda"
        made.append(self.memory)

    monkeypatch.setattr(WholeTensor, "__init__", init)
    return made


def draw(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).random(shape).astype(dtype)


def test_a_product_keeps_what_it_is_made_of(kernels):
    factors, weights = [draw((9, 4)), draw((8, 4), seed=1)], draw(4)
    product = gram_products.start_product(GramMemory(), 4, np.float32, True)
    for factor in factors:
        product = product * GramProduct.of(factor)
    product += 0
    product = weights[:, None] * product * weights[None]
    assert isinstance(product, GramProduct)
    assert (product.shape, product.ndim, product.dtype) == ((4, 4), 2, np.float32)
    expected = np.outer(weights, weights)
    for factor in factors:
        expected = expected * (factor.T @ factor)
    np.testing.assert_allclose(product.to_array(), expected, rtol=1e-5)
    assert product.to_array().dtype == np.float32


def test_the_transpose_swaps_the_axes_of_scales(kernels):
    column = draw((4, 1))
    product = GramProduct.of(draw((9, 4))) * column
    np.testing.assert_array_equal(product.T.to_array(), product.to_array().T)
    assert (product.T.to_array() != product.to_array()).any()


@pytest.mark.parametrize(
    "other", [2.0, np.float32(2), np.ones((4, 4)), np.ones(4, np.float32), np.ones((1, 1))]
)
def test_other_factors_turn_it_into_an_array(kernels, other):
    product = GramProduct.of(draw((9, 4)))
    plain = product.to_array()
    for found, expected in [
        (product * other, plain * other),
        (other * product, other * plain),
        (product + other, plain + other),
    ]:
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_too_many_factors_turn_it_into_an_array(kernels):
    product = GramProduct.of(draw((9, 4)))
    third = product * product * product
    assert isinstance(third, GramProduct)
    np.testing.assert_allclose(third * product, product.to_array() ** 4, rtol=1e-5)
    scale = draw((4, 4))
    assert isinstance(product * scale * scale * scale, GramProduct)
    assert isinstance(product * scale * scale * scale * scale, np.ndarray)


@pytest.mark.parametrize("rank", [1, 4])
def test_only_weights_are_left_out_where_they_are_one(kernels, rank):
    """Gram matrices that no kernel suits are arrays too; a cluster's are never left out."""
    memory = GramMemory()
    memory.has_unit_weights = True
    product = gram_products.start_product(memory, rank, np.float32, True)
    gram = draw((rank, rank), seed=2)
    ones = np.ones(rank, np.float32)
    for found in (product * gram, gram * product, ones[:, None] * (product * gram) * ones[None]):
        np.testing.assert_array_equal(found.to_array(), gram)


def test_functions_and_methods_see_an_array(kernels):
    product = GramProduct.of(draw((9, 4)))
    assert np.linalg.norm(product) == pytest.approx(np.linalg.norm(product.to_array()))
    assert product.sum() == product.to_array().sum()


def test_what_the_kernels_do_not_suit_is_solved_with_as_an_array(kernels):
    product, b = GramProduct.of(draw((9, 4))), draw((4, 30), float)
    np.testing.assert_allclose(product.to_array() @ product.solve(b), b, rtol=1e-3)
    assert kernels.num_solves == 0


def test_ones_that_are_no_product(kernels):
    assert gram_products.start_product(GramMemory(), 4, np.float64, True) is None
    assert gram_products.start_product(GramMemory(), 4, np.float32, False) is None


def test_a_gram_matrix_is_remembered_while_its_factor_lives(kernels):
    factor, memory = draw((9, 4)), GramMemory()
    GramProduct.of(factor, memory), GramProduct.of(factor.T.T, memory)
    assert kernels.num_grams == 1
    GramProduct.of(factor[:, :3], memory), GramProduct.of(factor[1:], memory)
    assert kernels.num_grams == 3
    memory.grams.clear()
    factor[0] = 7
    found = GramProduct.of(factor, memory).to_array()
    np.testing.assert_allclose(found, factor.T @ factor, rtol=1e-6)


def test_memory_that_another_factor_got_is_not_taken_for_the_first(kernels, monkeypatch):
    """Nor is the same memory in another shape; what is known of a factor goes with it."""
    memory, first = GramMemory(), draw((9, 4))
    monkeypatch.setattr(gram_products, "_address", lambda array: 0)  # all get the same memory
    GramProduct.of(first, memory)
    second = draw((9, 4), seed=1)
    for factor in (second, second.reshape(4, 9).T, second[:, :3]):
        found = GramProduct.of(factor, memory).to_array()
        np.testing.assert_allclose(found, factor.T @ factor, rtol=1e-6)
    assert kernels.num_grams == 4
    del first, second, factor, found
    third = draw((8, 4), seed=2)
    monkeypatch.setattr(gram_products, "_address", lambda array: 1)
    GramProduct.of(third, memory)
    assert list(memory.grams) == [1]


def test_parts_of_one_array_are_different_factors(kernels):
    both, memory = draw((18, 4)), GramMemory()
    for half in (both[:9], both[9:], both[:9]):
        found = GramProduct.of(half, memory).to_array()
        np.testing.assert_allclose(found, half.T @ half, rtol=1e-6)
    assert kernels.num_grams == 2


def test_other_products_are_no_gram_matrices(kernels):
    both, memory = draw((18, 4)), GramMemory()
    a, b, square = both[:9], both[9:], draw((4, 4))
    assert gram_products.find_gram(a.T, a) is None  # before parafac multiplies them
    gram_products.start_product(memory, 4, np.float32, True)
    known = gram_products.find_gram(a.T, a)
    assert known is gram_products.find_gram(a.T.T.T, a.T.T) is GramProduct.of(a, memory)
    pairs = [(b.T, a), (a, a), (a[:, :3].T, a), (square, square), (a[0], a[0]), (list(a.T), a)]
    for left, right in pairs:
        assert gram_products.find_gram(left, right) is None
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(gram_products.find_gram(a.T, a)))
    thread.start()
    thread.join()
    assert elsewhere == [None]
    gram_products.stop()
    assert gram_products.find_gram(a.T, a) is None


def test_a_transpose_of_a_transpose_is_the_product(kernels):
    product = GramProduct.of(draw((9, 4))) * draw((4, 1))
    assert product.T.T is product


def draw_tensor():
    coo = sparse.random((9, 8, 10), nnz=200, random_state=0).astype(np.float32)
    return FlycooTensor.from_coo(coo, device="cpu")


def decompose(**options):
    options = {"n_iter_max": 4, "tol": 0, "init": "random", "random_state": 0} | options
    with tl.backend_context("flycoo"):
        return tl.decomposition.parafac(draw_tensor(), 3, return_errors=True, **options)[1]


@pytest.mark.parametrize(
    "options", [{}, {"normalize_factors": True}, {"fixed_modes": [1]}, {"linesearch": True}]
)
def test_parafac_has_the_same_errors(request, options):
    expected = decompose(**options)
    kernels, _ = request.getfixturevalue("kernels"), request.getfixturevalue("memories")
    np.testing.assert_allclose(decompose(**options), expected, rtol=1e-4)
    assert kernels.num_solves == 4 * (2 if options.get("fixed_modes") else 3)
    assert kernels.num_fits == 4
    assert kernels.num_inner == 0  # all errors come from what the solve left
    num_old = sum(mode not in options.get("fixed_modes", []) for mode in (1, 2))
    assert kernels.num_grams <= 4 * (num_old + 3)


@pytest.fixture
def launches(kernels, memories, monkeypatch):
    """List the modes whose MTTKRPs are launched, and "wait" where the host waits for an error."""
    listed, multiply, fit = [], whole_tensor.multiply, kernels.compute_fit

    def multiply_and_list(layout, engine, factors, mode, *arguments):
        listed.append(mode)
        return multiply(layout, engine, factors, mode, *arguments)

    def fit_and_list(*arguments):
        error = fit(*arguments)
        listed.append("wait")
        return error

    monkeypatch.setattr(whole_tensor, "multiply", multiply_and_list)
    monkeypatch.setattr(kernels, "compute_fit", fit_and_list)
    return listed


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 0, "wait", 1, 2, 0, "wait", 1, 2, "wait"]),
        ({"n_iter_max": 1}, [0, 1, 2, "wait"]),
        ({"fixed_modes": [0]}, [1, 2, 1, "wait", 2, 1, "wait", 2, "wait"]),
        ({"fixed_modes": [0, 1]}, [2, "wait"] * 3),
        ({"normalize_factors": True}, [0, 1, 2, "wait"] * 3),
        ({"callback": lambda *_: None}, [2, "wait", *[0, 1, 2, "wait"] * 3]),
    ],
)
def test_a_gpu_goes_on_while_the_host_waits_for_an_error(launches, options, expected):
    """The next iteration's first MTTKRP is launched, unless factors may change before it."""
    decompose(**{"n_iter_max": 3} | options)
    assert launches == expected


def test_progress_only_reads(launches):
    with Progress(2, show=None) as progress:
        decompose(n_iter_max=2, callback=progress)
    assert launches == [2, "wait", 0, 1, 2, 0, "wait", 1, 2, "wait"]
    launches.clear()

    class Halving(Progress):
        def __call__(self, model, error):
            model.factors[1][...] /= 2
            return super().__call__(model, error)

    with Halving(2, show=None) as progress:
        decompose(n_iter_max=2, callback=progress)
    assert launches == [2, "wait", 0, 1, 2, "wait", 0, 1, 2, "wait"]


@pytest.mark.parametrize(
    ("options", "num_wasted"),
    [
        ({}, 0),
        ({"linesearch": True}, 0),
        ({"fixed_modes": [1]}, 0),
        ({"orthogonalise": 4}, 4),  # the next iteration replaces the factors
        ({"tol": 0.003}, 1),  # there is no next iteration
    ],
)
def test_going_on_changes_no_bit(launches, monkeypatch, options, num_wasted):
    options = {"n_iter_max": 15} | options
    found, num_launched = decompose(**options), len(launches)
    monkeypatch.setattr(WholeTensor, "look_ahead", lambda self, factors: None)
    launches.clear()
    assert decompose(**options) == found
    assert num_launched - len(launches) == num_wasted


@pytest.mark.parametrize("is_early", [False, True])
def test_a_call_on_a_gpu_solves_with_products_only(kernels, memories, monkeypatch, is_early):
    """No matrix is formed, from `tl.ones` on; a parafac imported earlier does so from its error."""
    formed, to_array = [], GramProduct.to_array
    monkeypatch.setattr(GramProduct, "to_array", lambda self: formed.append(self) or to_array(self))
    x = draw_tensor()
    function = tl.decomposition.parafac
    function = inspect.unwrap(function) if is_early else function
    with tl.backend_context("flycoo"):
        function(x, 3, n_iter_max=5, init="random", random_state=0, tol=1e-30)
    assert not formed
    assert kernels.num_solves == 3 * (4 if is_early else 5)
    assert [memory.num_solves for memory in memories if memory.num_solves] == [kernels.num_solves]
    assert not any(memory.grams for memory in memories if memory.factors_may_change)
    assert gram_products._of_thread.memory is None


@pytest.mark.parametrize("where", ["dot", "solve"])
def test_after_a_call_that_failed_products_are_plain(memories, monkeypatch, where):
    x = draw_tensor()
    name = {"dot": "of", "solve": "solve"}[where]
    monkeypatch.setattr(GramProduct, name, lambda *arguments: 1 / 0)
    with tl.backend_context("flycoo"), pytest.raises(ZeroDivisionError):
        tl.decomposition.parafac(x, 3, n_iter_max=5, init="random", random_state=0)
    assert gram_products._of_thread.memory is None
    factor = draw((9, 4))
    with tl.backend_context("flycoo"):
        assert isinstance(tl.dot(tl.transpose(factor), factor), np.ndarray)


def test_a_callback_may_change_factors_in_place(request):
    def double(cp_tensor, error):
        cp_tensor.factors[1][...] *= 2

    expected = decompose(callback=double)
    request.getfixturevalue("memories")
    np.testing.assert_allclose(decompose(callback=double), expected, rtol=1e-4)


def test_a_callback_may_change_weights_in_place(request):
    """They are left out of products only while all are 1."""
    x = draw_tensor()

    def fit(scale):
        def multiply_weights(cp_tensor, error):
            cp_tensor.weights[...] *= scale

        options = {"init": "random", "random_state": 0, "callback": multiply_weights}
        with tl.backend_context("flycoo"):
            return tl.decomposition.parafac(x, 3, 4, **options).factors[0]

    expected = [fit(1), fit(2)]
    assert not np.allclose(*expected, rtol=0.1)
    request.getfixturevalue("memories")
    np.testing.assert_allclose([fit(1), fit(2)], expected, rtol=1e-3, atol=1e-3)


def test_a_callback_gets_arrays(kernels):
    kinds = []

    def multiply_factors(cp_tensor, error):
        factor = cp_tensor.factors[0]
        kinds.append(type(tl.dot(tl.transpose(factor), factor)))

    decompose(callback=multiply_factors)
    assert set(kinds) == {np.ndarray}
