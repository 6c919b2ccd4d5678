"""The first MTTKRP of an iteration, which begins before the last error is known."""

import numpy as np
import pytest
import tensorly as tl
from numpy_devices import NumpyDevices

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.loop import gram_products, whole_tensor
from tensorly_flycoo.testing import random_tensor

SHAPE, RANK = (9, 8, 10), 3


@pytest.fixture(params=["remap", "replicated"])
def x(request, monkeypatch):
    plain = random_tensor(SHAPE, 300, random_state=0)
    with monkeypatch.context() as patch:
        patch.setattr(CPU, "devices", NumpyDevices(2))
        options = {"slabs": 3, "layout": request.param, "groups": None}
        return FlycooTensor(*plain.nonzeros(), SHAPE, **options)


@pytest.fixture
def steps(monkeypatch):
    """List the modes of all MTTKRPs, and errors: "wait", then "error" when the host has it."""
    steps, multiply = [], whole_tensor.multiply

    def note(layout, engine, factors, mode, *others):
        steps.append(mode)
        return multiply(layout, engine, factors, mode, *others)

    def compute_fit(*_, meanwhile):
        steps.append("wait")
        meanwhile()
        steps.append("error")

    monkeypatch.setattr(whole_tensor, "multiply", note)
    monkeypatch.setattr(gram_products, "compute_fit", compute_fit)
    return steps


def decompose(x, **options):
    options = {"init": "random", "random_state": 0, "tol": -1.0, "n_iter_max": 3, **options}
    with tl.backend_context("flycoo"):
        _, factors = tl.decomposition.parafac(x, RANK, **options)
        return [tl.to_numpy(factor) for factor in factors]


def decompose_plainly(x, monkeypatch, **options):
    """Do without any MTTKRP that begins early."""
    with monkeypatch.context() as patch:
        patch.setattr(whole_tensor.WholeTensor, "begin_next", lambda *_: None)
        return decompose(x, **options)


def check_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.tobytes()


def test_the_next_iteration_begins_before_the_error_is_known(x, steps, monkeypatch):
    found = decompose(x)
    begun = ["wait", 0, "error", 1, 2]
    assert steps == [0, 1, 2, *begun, *begun, "wait", "error"]
    check_equal(found, decompose_plainly(x, monkeypatch))


@pytest.mark.parametrize("fixed_modes", [[0], [0, 1], np.array([0, 1])], ids=str)
def test_fixed_modes(x, fixed_modes, steps, monkeypatch):
    found = decompose(x, fixed_modes=fixed_modes)
    first, *others = range(len(fixed_modes), 3)
    begun = ["wait", first, "error", *others]
    assert steps == [first, *others, *begun, *begun, "wait", "error"]
    check_equal(found, decompose_plainly(x, monkeypatch, fixed_modes=fixed_modes))


def test_an_error_that_ends_the_loop(x, steps, monkeypatch):
    """The pass was for nothing, and the next call finds all nonzeros."""
    found = decompose(x, tol=1e9)
    assert steps == [0, 1, 2, "wait", 0, "error", 1, 2, "wait", 0, "error"]
    check_equal(found, decompose_plainly(x, monkeypatch, n_iter_max=2))
    check_equal(decompose(x), decompose_plainly(x, monkeypatch))


@pytest.mark.parametrize("mode", range(3))
def test_a_callback_that_replaces_a_factor(x, mode, steps, monkeypatch):
    def replace(model, _):
        model.factors[mode] = model.factors[mode] * 2

    found = decompose(x, callback=replace)
    # The error of the start is computed from an MTTKRP of its own.
    begun = ["wait", 0, "error", 0, 1, 2]
    assert steps == [2, *begun, *begun, *begun, "wait", "error"]
    check_equal(found, decompose_plainly(x, monkeypatch, callback=replace))


def test_a_callback_that_changes_weights(x, steps, monkeypatch):
    def change(model, _):
        model.weights[:] = 2

    found = decompose(x, callback=change)
    assert steps.count(0) == 4  # begun once for nothing, and never again
    check_equal(found, decompose_plainly(x, monkeypatch, callback=change))


@pytest.mark.filterwarnings("ignore:It is not recommended")
@pytest.mark.parametrize(
    "options", [{"linesearch": True}, {"orthogonalise": True}, {"normalize_factors": True}], ids=str
)
def test_factors_that_change_between_iterations(x, options, steps):
    decompose(x, **options)
    assert steps.count(0) == 3


def test_a_callback_may_change_plain_factors_in_place(steps):
    """Only without one is the next MTTKRP launched early."""
    plain = random_tensor(SHAPE, 300, random_state=0)
    decompose(plain)
    assert steps[:5] == [0, 1, 2, "wait", 0]
    steps.clear()
    decompose(plain, callback=lambda *_: None)
    assert steps == [2, *["wait", "error", 0, 1, 2] * 3, "wait", "error"]
