"""Each option of each solver acts, and every stage knows it: start, loop, error and checkpoint.

`OPTIONS` lists them by name; one that nobody listed fails. Each has a value, alone or with what it
needs, or is a refusal.
"""

import contextlib
import functools
import inspect
import io
import itertools

import numpy as np
import pytest
import sparse
import tensorly as tl
from model_cells import read_cells
from slow_cases import thin_out

from tensorly_flycoo import DensifyError, FlycooTensor, Progress, decomposition
from tensorly_flycoo.decomposition import adam, coupled_parafac
from tensorly_flycoo.io.checkpoint import copy_model

SHAPE = (6, 5, 4)
_RANDOM = np.random.RandomState(0)
X = _RANDOM.random_sample(SHAPE) * (_RANDOM.random_sample(SHAPE) < 0.6)
X[0, 0, 0] = X[5, 4, 3] = 2.0
CELLS = [[0, 5, 2], [0, 4, 2], [0, 3, 2]]
MASK = sparse.COO(CELLS, [0.0] * 3, SHAPE, fill_value=1.0)
GUESS = [_RANDOM.random_sample((size, 2)) for size in SHAPE]
CORE = _RANDOM.random_sample((2, 2, 2))
WEIGHTS = FlycooTensor.from_dense(1.0 + 3 * X)  # above 0 everywhere
HELD_OUT = FlycooTensor(CELLS, [1.0, 2.0, 3.0], SHAPE)


class Refused:
    """A value of an option that no sparse tensor takes, or with which no run resumes."""

    def __init__(self, **options):
        self.options = options


def acts(name, value, **needed):
    """An option that changes the result of a run with what it needs."""
    return {name: value}, needed


_SVD = Refused(svd="symeig_svd", init="svd")
_CRITERION = Refused(cvg_criterion="error", tol=0.1)
_COMMON = {
    "n_iter_max": acts("n_iter_max", 1),
    "init": acts("init", "svd"),
    "random_state": acts("random_state", 1),
    "return_errors": acts("return_errors", True),
    "tol": acts("tol", 10.0),
    "callback": acts("callback", lambda *_: True),
}
_LOOP = _COMMON | {"svd": _SVD, "verbose": acts("verbose", 1, tol=1e-30)}
_FIXED = {"fixed_modes": acts("fixed_modes", [1]), "cvg_criterion": _CRITERION}
_NORMALIZED = {"normalize_factors": acts("normalize_factors", True)}
_MODEL = (None, GUESS)
_TUCKER = (CORE, GUESS)

OPTIONS = {
    "constrained_parafac": (_LOOP | _FIXED | {
        "tol_outer": acts("tol_outer", 10.0, non_negative=True),
        "tol_inner": acts("tol_inner", 0.9, non_negative=True),
        "n_iter_max_inner": acts("n_iter_max_inner", 1),
        "cvg_criterion": Refused(cvg_criterion="error", tol_outer=1e-9, non_negative=True),
        "verbose": acts("verbose", 1),
        **{name: acts(name, True) for name in ("non_negative", "unimodality", "monotonicity")},
        **{name: acts(name, 0.1) for name in ("l1_reg", "group_lasso", "l2_reg", "l2_square_reg")},
        "normalize": acts("normalize", True),
        "simplex": acts("simplex", 1.0),
        "normalized_sparsity": acts("normalized_sparsity", 2),
        "soft_sparsity": acts("soft_sparsity", 1.0),
        "smoothness": acts("smoothness", 0.1),
        "hard_sparsity": acts("hard_sparsity", 3),
        "prox": acts("prox", np.tanh),
        "linesearch": acts("linesearch", "nesterov", non_negative=True),
    }),
    "coupled_parafac": {
        "n_iter_max": acts("n_iter_max", 1),
        "random_state": acts("random_state", 1),
        "tol": acts("tol", 10.0),
        "callback": acts("callback", lambda *_: True),
        "init": acts("init", dict(zip("abc", GUESS, strict=True)) | {"d": GUESS[2]}),
        "block_weights": acts("block_weights", [1.0, 9.0]),
        "nn_modes": acts("nn_modes", "all"),
        "missing": None,  # of labels: tests/unit/decomposition/test_coupled_parafac.py
        "l2_reg": acts("l2_reg", 0.3),
        "linesearch": acts("linesearch", "nesterov"),
    },
    "generalized_parafac": _COMMON | {
        "svd": _SVD,
        "mask": acts("mask", MASK),
        "loss": acts("loss", "gamma", method="auto"),
        "method": acts("method", "adam"),
        "samples": acts("samples", (20, 20), method="adam"),
        "fixed_modes": acts("fixed_modes", [2]),
    },
    "non_negative_parafac": _LOOP | _FIXED | _NORMALIZED | {
        "mask": acts("mask", MASK),
        "linesearch": acts("linesearch", "nesterov"),
    },
    "non_negative_parafac_hals": _LOOP | _FIXED | _NORMALIZED | {
        "sparsity_coefficients": acts("sparsity_coefficients", 0.3),
        "nn_modes": acts("nn_modes", [0]),
        "exact": acts("exact", True),
        "linesearch": acts("linesearch", "nesterov"),
        "smoothness": acts("smoothness", 2.0),
    },
    "non_negative_tucker": {name: _LOOP[name] for name in _LOOP if name != "svd"} | _NORMALIZED | {
        "mask": acts("mask", MASK),
    },
    "non_negative_tucker_hals": _LOOP | _NORMALIZED | {
        "sparsity_coefficients": acts("sparsity_coefficients", 0.3),
        "core_sparsity_coefficient": acts("core_sparsity_coefficient", 0.3),
        "exact": acts("exact", True),
        "algorithm": acts("algorithm", "active_set"),
        "fixed_modes": acts("fixed_modes", [1], init=_TUCKER),
        "linesearch": acts("linesearch", "nesterov"),
    },
    "observed_parafac": _COMMON | {
        "init": acts("init", _MODEL),
        "l2_reg": acts("l2_reg", 0.5),
        "confidence": acts("confidence", WEIGHTS),
        "unobserved": acts("unobserved", 0.5, confidence=WEIGHTS),
        "non_negative": acts("non_negative", True),
        "biases": acts("biases", True),
        "cg_steps": acts("cg_steps", 1),
        "validation": acts("validation", HELD_OUT, return_errors=True),
    },
    "parafac": _LOOP | _FIXED | _NORMALIZED | {
        "orthogonalise": acts("orthogonalise", True),
        "sparsity": Refused(sparsity=0.1),
        "l2_reg": acts("l2_reg", 0.5),
        "mask": acts("mask", MASK),
        "svd_mask_repeats": acts("svd_mask_repeats", 0, mask=MASK, init="svd"),
        "linesearch": acts("linesearch", "nesterov"),
        "smoothness": acts("smoothness", {1: 2.0}),
    },
    "parafac2": _LOOP | _NORMALIZED | {
        "verbose": acts("verbose", True),
        "nn_modes": acts("nn_modes", [0, 2]),
        "n_iter_parafac": acts("n_iter_parafac", 1),
        "linesearch": acts("linesearch", True, n_iter_max=8),
        "mask": acts("mask", MASK),
        "center": acts("center", True, init="svd"),
        "sparsity_coefficients": acts(
            "sparsity_coefficients", 0.3, nn_modes=[2], normalize_factors=True
        ),
        "smoothness": acts("smoothness", {0: 2.0}),
        "l1_reg": acts("l1_reg", {2: 0.1}),
        "group_lasso": acts("group_lasso", {0: 0.1}),
    },
    "shared_parafac": _LOOP | {
        "modes": None,  # of one size: tests/unit/decomposition/test_shared_parafac.py
        "l2_reg": acts("l2_reg", 0.5),
    },
    "shared_tucker": {name: _LOOP[name] for name in _LOOP if name != "svd"} | {
        "modes": None,  # of one size: tests/unit/decomposition/test_shared_tucker.py
        "init": acts("init", (CORE, [GUESS[2], GUESS[1], GUESS[2]])),
        "l2_reg": acts("l2_reg", 0.5),
    },
    "tucker": _LOOP | {
        "init": acts("init", "svd", n_iter_max=1),
        "fixed_factors": acts("fixed_factors", [1], init=_TUCKER, callback=None),
        "mask": acts("mask", MASK),
        "l1_reg": acts("l1_reg", 0.1),
        "group_lasso": acts("group_lasso", {0: 0.1}),
    },
}  # fmt: skip

del OPTIONS["constrained_parafac"]["tol"]

_BASE = {"rank": 2, "n_iter_max": 4, "init": "random", "random_state": 0}
_BASES = {
    "generalized_parafac": {"init": "random", "n_iter_max": 4},
    "observed_parafac": {"l2_reg": 0.1},  # to choose one takes ten times as long
    "parafac2": {"linesearch": False},
    "shared_parafac": {"modes": []},
}
ACTING = [
    pytest.param(name, option, id=f"{name}-{option}")
    for name, options in OPTIONS.items()
    for option, value in options.items()
    if isinstance(value, tuple)
]


@pytest.fixture(autouse=True, scope="module")
def flycoo():
    with tl.backend_context("flycoo"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(adam, "_NUM_STEPS", 20)
        yield


@pytest.mark.parametrize("name", decomposition.__all__)
def test_every_option_is_listed(name):
    parameters = inspect.signature(getattr(decomposition, name)).parameters
    assert {*OPTIONS[name], "rank", next(iter(parameters))} == {*parameters}


def run(name, options):
    """Return what a decomposition returns, and (model, error) of each call of the callback."""
    known = inspect.signature(getattr(decomposition, name)).parameters
    given = _BASE | _BASES.get(name, {}) | options
    given.setdefault("tol_outer" if "tol_outer" in known else "tol", 1e-30)
    given = {key: value for key, value in given.items() if key in known}
    calls, stops = [], given.get("callback", lambda *_: False)

    def note(model, *error):
        calls.append((copy_model(model), *map(float, error)))
        return stops(model, *error)

    if "callback" in known and stops is not None:
        given["callback"] = note
    if name == "coupled_parafac":
        blocks = [(X, tuple("abc")), (X[:, :4, 0], tuple("ad"))]
        return coupled_parafac(blocks, **given), calls
    data = X[:4] if name == "shared_tucker" else X  # whose first and last modes have one size
    return getattr(decomposition, name)(FlycooTensor.from_dense(data), **given), calls


@functools.cache
def run_with(name, option):
    """Return the options of a test of one option, their result, calls and printed text."""
    own, needed = OPTIONS[name][option]
    return needed | own, *run_and_read(name, needed | own)


@functools.cache
def run_plain(name):
    """Return the result of a run with no option, its calls and printed text."""
    return run_and_read(name, {})


def run_and_read(name, options):
    """Run a decomposition; return its result, its calls and what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        result, calls = run(name, options)
    return result, calls, text.getvalue()


def list_arrays(result):
    """Return all numbers of a result, and of its errors."""
    model, *errors = result if isinstance(result, tuple) else (result,)
    if hasattr(model, "cp_tensors"):
        return [*model.factors.values(), *(cp.weights for cp in model.cp_tensors)]
    first = [getattr(model, key) for key in ("core", "weights") if hasattr(model, key)]
    return [*first, *model.factors, *map(np.asarray, errors)]


@pytest.mark.parametrize(("name", "option"), ACTING)
def test_an_option_acts(name, option):
    _, needed = OPTIONS[name][option]
    without, before, printed = run_and_read(name, needed) if needed else run_plain(name)
    _, result, after, text = run_with(name, option)
    a, b = list_arrays(without), list_arrays(result)
    is_same = len(a) == len(b) and all(map(np.array_equal, a, b))
    assert not (is_same and len(before) == len(after) and printed == text)


#: Options that no run can resume with, and runs whose results depend on when they end.
_UNRESUMED = {
    "parafac": ("mask", "svd_mask_repeats", "orthogonalise"),
    "parafac2": ("linesearch",),
    "tucker": ("fixed_factors",),
}
_ENDS = ("n_iter_max", "tol", "tol_outer", "callback")


@pytest.mark.parametrize(("name", "option"), ACTING)
def test_a_run_resumes_with_an_option(name, option, tmp_path):
    own, needed = OPTIONS[name][option]
    options = {**needed, **own}
    known = inspect.signature(getattr(decomposition, name)).parameters
    if "callback" not in known or name == "coupled_parafac" or option in _ENDS:
        return
    whole, _ = run(name, options | {"n_iter_max": 4, "callback": None})
    path = tmp_path / "run.npz"
    with Progress(4, show=None, checkpoint=path, every=1) as progress:
        stop = {"callback": lambda *call: progress(*call) or progress.iteration == 2}
        if option in _UNRESUMED.get(name, ()):
            return
        run(name, options | {"n_iter_max": 4} | stop)
    with Progress(4, show=None, checkpoint=path) as progress:
        rest = {"init": progress.resume(), "callback": progress, "n_iter_max": 2}
        resumed, _ = run(name, options | rest)
    count = len(list_arrays(whole)) - isinstance(whole, tuple)  # without the errors
    for a, b in zip(list_arrays(resumed)[:count], list_arrays(whole)[:count], strict=True):
        np.testing.assert_array_equal(a, b)


def find_errors(name, options, model):
    """Return the error that a solver should report of a model, from dense arrays."""
    if name == "coupled_parafac":
        weights = options.get("block_weights", [1.0, 1.0])
        blocks = [X, X[:, :4, 0]]
        rests = [x - read_cells(cp) for x, cp in zip(blocks, model.cp_tensors, strict=True)]
        sums = [
            sum(w * (x**2).sum() for w, x in zip(weights, group, strict=True))
            for group in (rests, blocks)
        ]
        return (sums[0] / sums[1]) ** 0.5
    cells = read_cells(model)
    x, counts = X[: len(cells)], np.ones(cells.shape)
    if "mask" in options:
        counts = MASK.todense()
        x = np.where(counts == 0, cells, x)  # imputed: the residual there is 0
    if name == "generalized_parafac":
        return ((cells - np.where(X > 0, X * np.log(cells), 0)) * counts).sum()
    if name == "observed_parafac":
        counts = (X > 0).astype(float)
        if "confidence" in options:
            counts = WEIGHTS.to_coo().todense()
        if "validation" in options:
            x, counts = HELD_OUT.to_coo().todense(), 1.0 - MASK.todense()
    whole = x**2 if "mask" in options else counts * x**2
    return (np.sum(counts * (x - cells) ** 2) / np.sum(whole)) ** 0.5


@pytest.mark.parametrize(("name", "option"), ACTING)
def test_errors_are_those_of_the_model(name, option):
    is_adam = option in ("loss", "method", "samples")
    if name == "parafac2" or is_adam or ("tucker" in name and option == "mask"):
        return  # see below; another loss; of the tensor imputed before, see test_sparse_masks.py
    options, _, calls, _ = run_with(name, option)
    for model, error in calls:
        expected = find_errors(name, options, model)
        np.testing.assert_allclose(error, expected, atol=2e-7)


REFUSED = [
    pytest.param(name, value.options, id=f"{name}-{option}")
    for name, options in OPTIONS.items()
    for option, value in options.items()
    if isinstance(value, Refused)
]


@pytest.mark.parametrize(("name", "options"), REFUSED)
def test_a_value_is_refused(name, options):
    with pytest.raises((DensifyError, TypeError)):
        run(name, {"tol": 0.1} | options)


@pytest.mark.parametrize(
    ("sizes", "width", "dtype"),  # 300 columns by Lanczos iteration
    thin_out(itertools.product([(30, 4, 9), (3, 4, 2)], [6, 300], ["float64", "float32"]), 3),
    ids=str,
)
def test_the_svd_start_of_centred_slices_is_that_of_tensorly(sizes, width, dtype):
    random = np.random.RandomState(1)
    slices = [random.random_sample((n, width)) * (random.random_sample((n, width)) < 0.5)
              for n in sizes]  # fmt: skip
    slices = [array.astype(dtype) for array in slices]
    options = {"init": "svd", "n_iter_max": 3, "linesearch": False, "tol": 1e-30}
    ours = [FlycooTensor.from_dense(array) for array in slices]
    _, errors = decomposition.parafac2(ours, 2, center=True, return_errors=True, **options)
    mean = np.concatenate(slices).mean(axis=0, dtype=np.float64)
    with tl.backend_context("numpy"):
        _, expected = decomposition.parafac2(
            [(array - mean).astype(dtype) for array in slices], 2, return_errors=True, **options
        )
    tolerance = 1e-8 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(errors, expected, rtol=tolerance)
