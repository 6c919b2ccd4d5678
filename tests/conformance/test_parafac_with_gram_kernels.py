"""TensorLy's parafac on a GPU multiplies, solves and remembers Gram matrices by few kernels.

NumPy's float32 arrays pass for CuPy's, and NumPy computes what the kernels do.
"""

import inspect

import numpy as np
import pytest
import sparse
import tensorly as tl
from gram_kernels import draw, list_launches, stand_in_kernels

from tensorly_flycoo import FlycooTensor, Progress, decomposition, set_precision
from tensorly_flycoo.engines.cpu.engine import CpuEngine
from tensorly_flycoo.loop import gram_products
from tensorly_flycoo.loop.gram_products import GramProduct
from tensorly_flycoo.loop.precision import NarrowFactors
from tensorly_flycoo.loop.whole_tensor import WholeTensor


@pytest.fixture
def kernels(monkeypatch):
    with stand_in_kernels(monkeypatch) as kernels:
        yield kernels


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
    return list_launches(kernels, monkeypatch)


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


@pytest.mark.parametrize("linesearch", [False, "nesterov"])
def test_a_run_in_mixed_precision_goes_on_as_well(launches, linesearch, monkeypatch):
    """But not with momentum, which may move factors."""
    monkeypatch.setattr(CpuEngine, "narrow_pays", lambda *arguments: True)
    options = {"init": "random", "random_state": 0, "n_iter_max": 3, "tol": 0}
    with tl.backend_context("flycoo"), set_precision("mixed"):
        decomposition.parafac(draw_tensor(), 3, linesearch=linesearch, **options)
    expected = [0, 1, 2, 0, "wait", 1, 2, 0, "wait", 1, 2, "wait"]
    if linesearch:
        expected = [0, 1, 2, "wait"] * 3
    assert launches == expected


def test_factors_are_rounded_as_they_are_solved_for(kernels, memories, monkeypatch):
    """Nothing is rounded by itself, or computed anew."""
    monkeypatch.setattr(CpuEngine, "narrow_pays", lambda *arguments: True)
    monkeypatch.setattr(NarrowFactors, "has_served", lambda *arguments: False)
    monkeypatch.setattr(NarrowFactors, "round", None)
    with tl.backend_context("flycoo"), set_precision("mixed"):
        options = {"init": "random", "random_state": 0, "tol": 0, "n_iter_max": 4}
        decomposition.parafac(draw_tensor(), 3, **options)
    assert kernels.num_solves == 12
    assert kernels.num_rounded == 9  # not in the last iteration
    assert kernels.num_grams == 2  # of the initial factors that are read
    assert kernels.num_inner == 3  # as in float32


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
