"""Numeric options of public functions given nan, infinity, text and so on are refused by name.

The options are those in signatures: a new one is in the table by itself.
"""

import inspect
import math

import numpy as np
import pytest
import scipy.sparse

import tensorly_flycoo
from tensorly_flycoo import (
    FlycooCP,
    FlycooTensor,
    LabelledTensor,
    Progress,
    best_of,
    center,
    decomposition,
    estimate_memory,
    evaluate,
    fold_in,
    mttkrp,
    recommend,
    replicability,
    save_slabs,
    select_rank,
    uncertainty,
)
from tensorly_flycoo.decomposition.methods import METHODS
from tensorly_flycoo.testing import random_tensor

BAD = [math.nan, math.inf, -math.inf, -7, 2.5, "x", None, []]

pytestmark = [
    pytest.mark.usefixtures("flycoo_backend"),
    pytest.mark.filterwarnings("ignore"),
]

_PLAIN = random_tensor((6, 7, 8), 120, random_state=0)
X = FlycooTensor(_PLAIN.nonzeros()[0], np.ones(_PLAIN.nnz), _PLAIN.shape)
LABELLED = LabelledTensor(X, {"a": range(6), "b": range(7), "c": range(8)})
FACTORS = [np.random.default_rng(n).random((size, 2)) for n, size in enumerate(X.shape)]
SLICES = [scipy.sparse.random_array((5, 4), density=0.7, rng=n) for n in range(3)]
_CP = {"rank": 2, "n_iter_max": 1, "init": "random", "random_state": 0}
_TUCKER = _CP | {"rank": [2, 2, 2]}


def run_progress(**options):
    with Progress(**{"n_iter_max": 1, "show": None} | options) as progress:
        decomposition.parafac(X, callback=progress, **_CP)


#: Each public function with numeric options: how it is called, and options that suffice.
CALLS = {
    **{name: (X, _CP) for name, method in METHODS.items() if method.model == "CP"},
    **{name: (X, _TUCKER) for name, method in METHODS.items() if method.model == "Tucker"},
    "constrained_parafac": (X, _CP | {"non_negative": True}),
    "shared_parafac": (X, _CP | {"modes": []}),
    "shared_tucker": (X[:, :, :6], _CP),
    "coupled_parafac": ([LABELLED], _CP),
    "parafac2": (SLICES, _CP),
    "FlycooCP": (lambda **options: FlycooCP(**options).fit(X), {**_CP, "n_starts": 1}),
    "best_of": (
        lambda **options: best_of(decomposition.parafac, X, **options), _CP | {"n_starts": 1},
    ),
    "select_rank": (lambda **options: select_rank(X, **options), {"ranks": [1], "n_runs": 1}),
    "replicability": (
        lambda **options: replicability(X, **options),
        {"rank": 1, "mode": 0, "n_folds": 2, "n_starts": 1},
    ),
    "uncertainty": (
        lambda **options: uncertainty(X, (None, FACTORS), **options), {"mode": 0, "n": 2},
    ),
    "recommend": (lambda **options: recommend((None, FACTORS), **options), {"mode": 0}),
    "evaluate": (lambda **options: evaluate((None, FACTORS), X, **options), {}),
    "fold_in": (lambda **options: fold_in((None, FACTORS), X, **options), {"mode": 0}),
    "center": (lambda **options: center(X, **options), {"axis": (0, 1)}),
    "mttkrp": (lambda **options: mttkrp(X, FACTORS, **options), {"mode": 0}),
    "estimate_memory": (estimate_memory, {"shape": (5, 6, 7), "nnz": 10}),
    "Progress": (run_progress, {}),
    "FlycooTensor": (lambda **options: FlycooTensor(*X.nonzeros(), **options), {"shape": X.shape}),
}  # fmt: skip

#: Values that have a meaning: a `tol` below 0 computes the errors and never stops.
FREE = {
    **dict.fromkeys(("tol", "tol_inner", "tol_outer"), (-7, 2.5)),
    **dict.fromkeys(("fixed_modes", "fixed_factors", "nn_modes", "sparsity"), ([],)),
    **dict.fromkeys(("l2_reg", "core_sparsity_coefficient", "sparsity_coefficients"), (2.5,)),
    **dict.fromkeys(("smoothness", "l1_reg", "group_lasso"), (2.5,)),
    ("observed_parafac", "unobserved"): [],
    ("coupled_parafac", "block_weights"): [2.5],
    "every_minutes": [2.5],
    "time_limit_s": [2.5],
}
#: Where TensorLy takes None, as signatures do not say.
NONE = ("tol", "rank")
#: What is no number, or names another.
OTHERS = {"return_errors", "verbose", "random_state", "init", "keep_all", "shape"}


def find_function(name):
    return getattr(tensorly_flycoo, name, None) or getattr(decomposition, name)


def list_options(name):
    """List the numeric options of a function."""
    found = []
    for parameter in inspect.signature(find_function(name)).parameters.values():
        kind, default = str(parameter.annotation), parameter.default
        is_number = "int" in kind.replace("print", "") or "float" in kind
        if is_number and "Callable" not in kind and not isinstance(default, bool):
            found.append(parameter.name)
    return [option for option in found if option not in OTHERS]


TABLE = [(name, option) for name in CALLS for option in list_options(name)]


def test_each_public_function_is_in_the_table():
    known = [*tensorly_flycoo.__all__, *decomposition.__all__]
    functions = [name for name in known if callable(find_function(name))]
    functions = [name for name in functions if name != "DensifyError" and list_options(name)]
    made_by_us = {"FitRecord", "MemoryEstimate", "ModeStats", "TensorStats"}
    elsewhere = {"read_tns", "save_slabs", "set_device", "write_tns"}
    assert {*functions} == {*CALLS} | made_by_us | elsewhere


@pytest.mark.parametrize(("name", "option"), TABLE, ids=[" ".join(pair) for pair in TABLE])
def test_bad_values_are_refused_by_name(name, option):
    call, options = CALLS[name]
    if not callable(call):
        call = lambda tensor=call, **given: find_function(name)(tensor, **given)  # noqa: E731
    free = FREE.get((name, option), FREE.get(option, []))
    kind = str(inspect.signature(find_function(name)).parameters[option].annotation)
    wrong = []
    for bad in BAD:
        if any(bad is value or bad == value for value in free):
            continue
        if bad is None and ("None" in kind or option in NONE):
            continue
        try:
            call(**options | {option: bad})
        except (TypeError, ValueError) as error:
            if option.removesuffix("s") not in str(error):
                wrong.append((bad, str(error)))
        else:
            wrong.append((bad, "no error"))
    assert wrong == []


BAD_STARTS = [[], (), [1, 2], (None, None), (None, []), (None, [1, 2, 3]), 3, None, np.eye(3)]
STARTED = [name for name, (_, options) in CALLS.items() if "init" in options and name != "FlycooCP"]


@pytest.mark.parametrize("name", STARTED)
def test_bad_starts_are_refused_by_name(name):
    call, options = CALLS[name]
    if not callable(call):
        call = lambda tensor=call, **given: find_function(name)(tensor, **given)  # noqa: E731
    for init in [*BAD_STARTS, "x", (None, [np.eye(3)] * 2)]:
        with pytest.raises((TypeError, ValueError), match=r"init|factors|Init"):
            call(**options | {"init": init})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("slabs", [None, 3])
def test_an_empty_tensor_is_saved_in_slabs(tmp_path, slabs, dtype):
    x = FlycooTensor(np.zeros((3, 0), int), np.zeros(0, dtype), (3, 4, 5))
    save_slabs(tmp_path / "x", x, slabs=slabs)
    found = tensorly_flycoo.open_slabs(tmp_path / "x", verify=True)
    assert (found.shape, found.nnz, found.dtype) == (x.shape, 0, x.dtype)
    with pytest.raises(ValueError, match="slabs is 0, expected at least 1"):
        save_slabs(tmp_path / "y", x, slabs=0)
