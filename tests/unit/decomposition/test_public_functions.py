"""The public decompositions: TensorLy's signatures, dense tensors, and other backends."""

import inspect
import pickle
import re

import numpy as np
import pytest
import sparse
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, cp_fit, decomposition
from tensorly_flycoo.loop.guarding import tensorly_loop
from tensorly_flycoo.testing import random_tensor

SHAPE = (6, 7, 8, 6)
OPTIONS = {"n_iter_max": 3, "random_state": 0}

#: Functions with their own loop, and their arguments besides the tensor.
OWN_LOOPS = {
    "parafac": {"rank": 2, "mask": True, **OPTIONS},
    "non_negative_parafac": {"rank": 2, "mask": True, **OPTIONS},
    "non_negative_parafac_hals": {"rank": 2, **OPTIONS},
    "parafac2": {"rank": 2, **OPTIONS},
}
#: Functions that need the backend: they run TensorLy's loop, or its proximal operators.
TENSORLY_LOOPS = {
    "parafac": {"rank": 2, **OPTIONS},
    "constrained_parafac": {"rank": 2, "non_negative": True, **OPTIONS},
    "tucker": {"rank": [2, 2, 2, 2], **OPTIONS},
    "non_negative_tucker": {"rank": [2, 2, 2, 2], **OPTIONS},
    "non_negative_tucker_hals": {"rank": [2, 2, 2, 2], **OPTIONS},
}
#: Parameters that TensorLy 0.10 does not have come last.
ADDED = {
    "constrained_parafac": ["callback", "prox", "linesearch"],
    "non_negative_parafac": ["callback", "linesearch"],
    "non_negative_parafac_hals": ["callback", "linesearch", "smoothness"],
    "parafac": ["smoothness"],
    "parafac2": [
        "center",
        "sparsity_coefficients",
        "callback",
        "smoothness",
        "l1_reg",
        "group_lasso",
    ],
    "tucker": ["callback", "l1_reg", "group_lasso"],
    "non_negative_tucker": ["callback", "mask"],
    "non_negative_tucker_hals": ["callback", "linesearch"],
}
NAMES = sorted(set(OWN_LOOPS) | set(TENSORLY_LOOPS))


@pytest.fixture(scope="module")
def x():
    return random_tensor(SHAPE, 400, random_state=0)


def decompose(name, x, options, home=decomposition):
    options = dict(options)
    if options.pop("mask", False):
        options["mask"] = sparse.COO([[1, 2]] * 4, [0.0, 0.0], SHAPE, fill_value=1.0)
    if name == "parafac2":
        x = [x[n, 0] for n in range(3)]
    return getattr(home, name)(x, **options)


def list_arrays(result):
    """Return the weights and factors, or the cores, of any decomposition."""
    if hasattr(result, "factors"):
        first = getattr(result, "weights", getattr(result, "core", None))
        return [first, *result.factors] if first is not None else list(result.factors)
    return list(result)


def assert_same(found, expected):
    for array, other in zip(list_arrays(found), list_arrays(expected), strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.mark.skipif(
    not tl.__version__.startswith("0.10."), reason="signatures are those of TensorLy 0.10"
)
@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_tensorlys(name):
    ours = inspect.signature(getattr(decomposition, name)).parameters
    theirs = inspect.signature(tensorly_loop(name)).parameters
    known = [p for p in ours.values() if p.name in theirs]
    assert [(p.name, p.default) for p in known] == [(p.name, p.default) for p in theirs.values()]
    assert list(ours)[len(known) :] == ADDED.get(name, [])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["numpy", "flycoo"])
def test_dense_tensors_give_tensorlys_results(backend, name):
    dense = np.random.RandomState(0).random_sample((6, 7, 8, 6))
    options = OWN_LOOPS.get(name) or TENSORLY_LOOPS[name]
    options = {key: value for key, value in options.items() if key != "mask"}
    with tl.backend_context(backend):
        np.random.seed(0)
        expected = decompose(name, dense, options, home=tl.decomposition)
        np.random.seed(0)
        assert_same(decompose(name, dense, options), expected)


@pytest.mark.parametrize("name", OWN_LOOPS)
def test_own_loops_run_under_any_backend(name, x):
    with tl.backend_context("flycoo"):
        expected = decompose(name, x, OWN_LOOPS[name])
    with tl.backend_context("numpy"):
        for kind in (lambda x: x, FlycooTensor.to_coo):
            assert_same(decompose(name, kind(x), OWN_LOOPS[name]), expected)


@pytest.mark.parametrize("name", TENSORLY_LOOPS)
def test_tensorlys_loops_need_the_backend(name, x):
    for kind in (lambda x: x, FlycooTensor.to_coo):
        with (
            tl.backend_context("numpy"),
            pytest.raises(RuntimeError, match=r"is 'numpy', call tl\.set_backend\(\"flycoo\"\)"),
        ):
            decompose(name, kind(x), TENSORLY_LOOPS[name])


@pytest.mark.parametrize("name", TENSORLY_LOOPS)
def test_tensorlys_loops_give_the_same_under_tensorlys_names(name, x):
    with tl.backend_context("flycoo"):
        expected = decompose(name, x, TENSORLY_LOOPS[name], home=tl.decomposition)
        assert_same(decompose(name, x, TENSORLY_LOOPS[name]), expected)


@pytest.mark.parametrize("name", [name for name in ADDED if "callback" in ADDED[name]])
def test_a_callback_needs_a_sparse_tensor(name):
    """TensorLy's own functions, which decompose dense tensors, have no callback."""
    with pytest.raises(TypeError, match=rf"callback= of {name} works for sparse tensors only"):
        getattr(decomposition, name)(np.ones((4, 5, 6)), 2, callback=print)


def test_a_decorated_name_is_unwrapped():
    assert tensorly_loop("parafac").__name__ == "parafac"
    assert not hasattr(tensorly_loop("parafac"), "__wrapped__")


@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac"])
def test_verbose_prints_each_error(name, x, capsys):
    decompose(name, x, OWN_LOOPS[name] | {"verbose": 1})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"iteration {n}" for n in range(3)]


@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac"])
def test_the_last_mode_is_not_fixed(name, x):
    rng = np.random.RandomState(0)
    guess = [rng.random_sample((size, 2)) for size in SHAPE]
    options = OWN_LOOPS[name] | {"init": (None, guess), "fixed_modes": [1, 3]}
    with pytest.warns(UserWarning, match="the last one"):
        found = decompose(name, x, options)
    is_same = [np.array_equal(f, g) for f, g in zip(found.factors, guess, strict=True)]
    assert is_same == [False, True, False, False]


@pytest.mark.parametrize("kind", [np.array, tuple, iter])
@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac", "generalized_parafac"])
def test_fixed_modes_of_any_kind(name, kind, x):
    """An array has no truth value, and an iterator can be read once."""
    guess = [np.random.default_rng(0).random((size, 2)) for size in SHAPE]
    options = {"init": (None, guess), "fixed_modes": kind([1]), "n_iter_max": 2}
    with tl.backend_context("flycoo"):
        found = getattr(decomposition, name)(abs(x), 2, **options)
    is_same = [np.array_equal(f, g) for f, g in zip(found.factors, guess, strict=True)]
    assert is_same == [False, True, False, False]


def test_with_all_modes_fixed_the_guess_is_returned(x):
    rng = np.random.RandomState(0)
    guess = [rng.random_sample((size, 2)) for size in SHAPE]
    options = OWN_LOOPS["parafac"] | {"init": (None, guess), "fixed_modes": [0, 1, 2, 3]}
    for factor, other in zip(decompose("parafac", x, options).factors, guess, strict=True):
        np.testing.assert_array_equal(factor, other)
        assert factor is not other


@pytest.mark.parametrize("fixed_modes", [[2], [0, 2], [0, 1, 2]])
def test_the_error_of_hals_with_the_last_mode_fixed(fixed_modes):
    """It is the model's; TensorLy's takes the MTTKRP of another mode."""
    x = random_tensor((20, 20, 20), 300, random_state=0)
    init = CPTensor((None, [np.random.RandomState(n).random_sample((20, 3)) for n in range(3)]))
    cp_tensor, errors = decomposition.non_negative_parafac_hals(
        x, 3, 4, init=init, fixed_modes=fixed_modes, return_errors=True
    )
    assert errors[-1] == pytest.approx(cp_fit(x, cp_tensor).relative_error, rel=1e-9)


@pytest.mark.parametrize("name", decomposition.__all__)
def test_docstrings_describe_every_parameter(name):
    function = getattr(decomposition, name)
    text = inspect.getdoc(function).partition("Parameters\n----------\n")[2]
    headings = re.findall(r"^\w[\w, ]*", text.partition("\n\nReturns\n")[0], re.MULTILINE)
    described = ", ".join(heading.strip() for heading in headings).split(", ")
    assert sorted(described) == sorted(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", decomposition.__all__)
def test_a_decomposition_is_pickled_by_its_public_name(name):
    function = getattr(decomposition, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__name__ == name
