"""The table of methods says what they can do; here they do it."""

import functools
import inspect
import pickle
from pathlib import Path

import numpy as np
import pytest
import sparse
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.parafac2_tensor import Parafac2Tensor
from tensorly.tucker_tensor import TuckerTensor

from tensorly_flycoo import FlycooTensor, best_of, decomposition, select_rank
from tensorly_flycoo.decomposition.methods import METHODS, find_method
from tensorly_flycoo.loop.losses import LOSSES
from tensorly_flycoo.models import CoupledCP
from tensorly_flycoo.testing import random_tensor

pytestmark = pytest.mark.usefixtures("flycoo_backend")

#: What some take besides a tensor and a rank of 2.
_OPTIONS = {"constrained_parafac": {"non_negative": True}, "shared_parafac": {"modes": []}}


def run(name, x, **options):
    """Run a method on a tensor of three modes, or what it takes in place of one."""
    if name == "coupled_parafac":
        x = [(x, list("abc")), (np.ones((x.shape[0], 4)), ["a", "d"])]
    if name == "shared_tucker":  # with two modes of one size
        x = x[:, :, : x.shape[0]]
    options |= {"n_iter_max": 3, "random_state": 0, **_OPTIONS.get(name, {})}
    return METHODS[name].function(x, 2, **options)


@pytest.fixture(scope="module")
def x():
    return random_tensor((8, 9, 10), 200, random_state=0)


def test_each_decomposition_has_a_row():
    missing = {*decomposition.__all__} - {*METHODS}
    assert not missing, (
        f"{missing} is missing in METHODS of tensorly_flycoo/decomposition/methods.py, which says "
        "what best_of, select_rank, FlycooCP and the command line may do with a decomposition"
    )
    assert {*METHODS} == {*decomposition.__all__}


@pytest.mark.parametrize("name", METHODS)
def test_a_row_says_what_the_signature_does(name):
    method = METHODS[name]
    assert method.function is getattr(decomposition, name)
    assert method.loss == method.defaults.get("loss", "gaussian")
    assert method.loss in LOSSES
    assert not method.takes_mask or "mask" in method.defaults
    assert not method.has_momentum or "linesearch" in method.defaults


@pytest.mark.parametrize("name", METHODS)
def test_a_method_makes_what_its_row_says(name, x):
    model = run(name, x)
    kinds = {"CP": CPTensor, "Tucker": TuckerTensor, "PARAFAC2": Parafac2Tensor}
    assert isinstance(model, kinds.get(METHODS[name].model, CoupledCP))
    factors = model.factors if hasattr(model, "factors") else [*model]
    factors = [*factors.values()] if isinstance(factors, dict) else factors
    is_non_negative = all((factor >= 0).all() for factor in factors)
    assert is_non_negative or not METHODS[name].non_negative


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].model == "CP"])
def test_cells_that_are_not_stored_are_zeros_or_unknown(name):
    """Ones in half of the cells: a model that ignores the others is one everywhere."""
    random = np.random.RandomState(0)
    x = FlycooTensor.from_dense((random.random_sample((8, 9, 10)) < 0.5).astype(float))
    model = METHODS[name].function(x, 1, init="random", random_state=0, **_OPTIONS.get(name, {}))
    assert (tl.cp_to_tensor(model).mean() < 0.7) == METHODS[name].knows_zeros


@pytest.mark.parametrize("name", [name for name in METHODS if "mask" in METHODS[name].defaults])
def test_a_mask_is_taken_or_refused(name, x):
    mask = sparse.COO([[0], [0], [0]], [0.0], x.shape, fill_value=1.0)
    if METHODS[name].takes_mask:
        run(name, x, mask=mask)
        return
    with pytest.raises(TypeError, match="mask"):
        run(name, x, mask=mask)


def test_momentum_is_chosen_where_there_is_some(x):
    wanted = {"linesearch": "nesterov"}
    for name, method in METHODS.items():
        assert method.prefer_momentum(x, {}) == (wanted if method.has_momentum else {}), name
    prefer = METHODS["parafac"].prefer_momentum
    for options in ({"linesearch": False}, {"mask": "any"}, {"smoothness": {0: 1.0}}):
        assert prefer(x, options) == options
    for strengths in (np.zeros(3), np.array([0, 0, 1.0])):
        chosen = prefer(x, {"smoothness": strengths})
        assert ("linesearch" in chosen) == (not strengths.any())
    assert prefer(np.ones((2, 3)), {}) == {}


def test_runs_one_by_one_get_gauss_newton_steps_where_there_are_some(x):
    for name, method in METHODS.items():
        linesearch = {"parafac": "auto", "non_negative_parafac_hals": "nesterov"}.get(name)
        wanted = {} if linesearch is None else {"linesearch": linesearch}
        assert method.prefer_momentum(x, {}, one_by_one=True) == wanted, name
    given = {"orthogonalise": 2}
    found = METHODS["parafac"].prefer_momentum(x, given, one_by_one=True)
    assert found == given | {"linesearch": "nesterov"}


def own_method(tensor, rank, random_state=None, mask=None, loss="gamma"):
    raise AssertionError("this is not called")


def test_functions_have_the_row_of_their_name():
    for name, method in METHODS.items():
        assert find_method(method.function) is method
        assert pickle.loads(pickle.dumps(method.function)) is method.function, name
    # TensorLy's, whenever it was imported.
    theirs = tl.decomposition.parafac
    assert find_method(theirs) is find_method(inspect.unwrap(theirs)) is METHODS["parafac"]
    theirs = tl.decomposition.non_negative_parafac_hals
    found = find_method(theirs)
    assert found.function is theirs
    assert found.non_negative
    assert not found.has_momentum
    assert not found.is_ours


def test_other_functions_take_what_their_signature_says():
    found = find_method(own_method)
    assert (found.function, found.loss, found.error_name) == (own_method, "gamma", "loss")
    assert found.can_hold_out
    assert not found.is_ours
    partial = find_method(functools.partial(own_method, mask=None))
    assert partial.name.startswith("functools.partial")
    with pytest.raises(ValueError, match=r"method is 'tucker', expected one of .*'parafac'"):
        find_method("tucker")


def test_the_loss_is_an_option_or_the_default():
    assert METHODS["generalized_parafac"].find_loss({}) == "poisson_count"
    assert METHODS["generalized_parafac"].find_loss({"loss": "gamma"}) == "gamma"
    assert METHODS["parafac"].find_loss({"loss": "gamma"}) == "gaussian"


def test_select_rank_names_the_methods_that_hold_entries_out():
    for name in [name for name, method in METHODS.items() if method.can_hold_out]:
        assert f'"{name}"' in select_rank.__doc__


def test_best_of_names_the_methods_with_momentum():
    for name in [name for name, method in METHODS.items() if method.has_momentum]:
        assert f"`{name}`" in best_of.__doc__


def test_a_page_names_the_methods_that_take_a_callback_where_tensorlys_do_not():
    page = (Path(__file__).parents[3] / "docs" / "iterations.md").read_text()
    for name, method in METHODS.items():
        theirs = getattr(tl.decomposition, name, None)
        takes_callback = theirs is None or "callback" in inspect.signature(theirs).parameters
        if "callback" in method.defaults and not takes_callback:
            assert f"`{name}`" in page
