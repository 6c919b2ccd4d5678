"""Each solver that iterates: progress, Ctrl-C, and resuming to the same bits."""

import functools
import signal

import numpy as np
import pytest
import sparse

from tensorly_flycoo import FlycooTensor, Progress, decomposition
from tensorly_flycoo.io.checkpoint import load_checkpoint, save_checkpoint

STOP, END = 3, 7
SHAPE = (9, 20, 30)
_MASK = sparse.COO([[0, 1, 2]] * 3, [0.0, 0.0, 0.0], SHAPE, fill_value=1.0)

#: The decomposition and its options; those that only differ in options share a name.
SOLVERS = {
    "parafac": ("parafac", {}),
    "parafac smooth normalized": ("parafac", {"smoothness": {2: 5.0}, "normalize_factors": True}),
    "mu": ("non_negative_parafac", {}),
    "mu normalized": ("non_negative_parafac", {"normalize_factors": True}),
    "mu masked": ("non_negative_parafac", {"mask": _MASK}),
    "hals": ("non_negative_parafac_hals", {}),
    "hals normalized": ("non_negative_parafac_hals", {"normalize_factors": True, "init": "svd"}),
    "constrained": ("constrained_parafac", {"non_negative": True}),
    "constrained fixed": ("constrained_parafac", {"l1_reg": 1e-3, "fixed_modes": [1]}),
    "observed": ("observed_parafac", {}),
    "observed cg": ("observed_parafac", {"cg_steps": 2, "l2_reg": 0.1}),
    "observed biases": ("observed_parafac", {"biases": True, "l2_reg": 0.1}),
    "generalized": ("generalized_parafac", {}),
    "generalized masked": ("generalized_parafac", {"mask": _MASK}),
    "hals smooth": ("non_negative_parafac_hals", {"smoothness": [0, 1.0, 5.0]}),
    "parafac2 smooth": ("parafac2", {"linesearch": False, "smoothness": {0: 2.0}}),
    "parafac2": ("parafac2", {"linesearch": False}),
    "parafac2 normalized": ("parafac2", {"linesearch": False, "normalize_factors": True}),
    "parafac2 rows": ("parafac2", {"linesearch": False, "l1_reg": {2: 0.1}}),
    "shared": ("shared_parafac", {"modes": []}),
    "tucker": ("tucker", {"rank": [2, 3, 4], "init": "svd"}),
    "tucker random": ("tucker", {"rank": [2, 3, 4]}),
    "tucker rows": ("tucker", {"rank": [2, 3, 4], "l1_reg": {2: 0.1}}),
    "nn tucker": ("non_negative_tucker", {"rank": [2, 3, 4]}),
    "nn tucker normalized": ("non_negative_tucker", {"rank": [2, 3, 4], "normalize_factors": True}),
    "nn tucker hals": ("non_negative_tucker_hals", {"rank": [2, 3, 4]}),
}
BY_SOLVER = pytest.mark.parametrize("solver", SOLVERS)
#: One set of options of each.
BY_NAME = pytest.mark.parametrize(
    "solver",
    ["mu", "hals", "constrained", "observed", "generalized", "tucker", "nn tucker"],
)

pytestmark = pytest.mark.usefixtures("flycoo_backend")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.npz"


@functools.cache
def make_tensor(dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, size, 600) for size in SHAPE])
    return FlycooTensor(coords, rng.random(600), SHAPE, dtype=dtype)


def run(solver, x, n_iter_max, callback, **options):
    name, own = SOLVERS[solver]
    # Penalties may be met exactly, which is below any tolerance but 0.
    tol = {"tol_outer": 0} if name == "constrained_parafac" else {"tol": 1e-300}
    given = {"rank": 3, "init": "random", "random_state": 0, **tol, **own, **options}
    return getattr(decomposition, name)(x, n_iter_max=n_iter_max, callback=callback, **given)


def run_in_two(solver, x, path, stop=STOP, end=END, **options):
    with Progress(stop, show=None, checkpoint=path) as progress:
        if solver == "nn tucker hals":  # as in TensorLy, n_iter_max limits the core's updates too
            run(solver, x, end, lambda *call: progress(*call) or progress.iteration == stop)
        else:
            run(solver, x, stop, progress, **options)
    with Progress(end, show=None, checkpoint=path) as progress:
        init = progress.resume()
        return run(solver, x, progress.n_iter_left, progress, **options | {"init": init}), progress


def assert_same_bits(a, b):
    for ours, expected in zip(list_arrays(a), list_arrays(b), strict=True):
        np.testing.assert_array_equal(ours, expected, strict=True)


def list_arrays(model):
    return [model.core if hasattr(model, "core") else model.weights, *model.factors]


@BY_SOLVER
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_resumed_is_the_same_to_the_bit(path, solver, dtype):
    x = make_tensor(dtype)
    with Progress(END, show=None) as whole:
        expected = run(solver, x, END, whole)
    assert_same_bits(run(solver, x, END, None), expected)
    result, progress = run_in_two(solver, x, path)
    assert_same_bits(result, expected)
    np.testing.assert_array_equal(progress.errors, whole.errors)
    assert progress.iteration == whole.iteration  # END, unless an update changes no bit


@BY_NAME
@pytest.mark.parametrize("before", [1, 0])
def test_resumed_stops_where_the_whole_run_stops(path, solver, before):
    """The first run ends before the iteration at which the whole run stops, or in it."""
    x, end = make_tensor(), 60
    tol = {"mu": 1e-3, "hals": 1e-3, "constrained": 1e-4}
    tol = (tol | {"generalized": 1e-3}).get(solver, 1e-2)
    options = {"tol_outer" if solver == "constrained" else "tol": tol}
    with Progress(end, show=None) as whole:
        expected = run(solver, x, end, whole, **options)
    assert 2 < whole.iteration < end
    result, progress = run_in_two(solver, x, path, whole.iteration - before, end, **options)
    assert progress.iteration == whole.iteration
    assert_same_bits(result, expected)


@BY_NAME
def test_ctrl_c_returns_the_factors_so_far(path, solver):
    x = make_tensor()

    def interrupt(model, *error):
        if progress.iteration == STOP - 1 and progress.errors:
            signal.raise_signal(signal.SIGINT)
        return progress(model, *error)

    with Progress(100, show=None, checkpoint=path) as progress:
        result = run(solver, x, 100, interrupt)
    assert progress.iteration == load_checkpoint(path).iteration == STOP
    assert_same_bits(result, run(solver, x, STOP, None))
    if solver != "observed":  # whose result is rounded from float64
        assert_same_bits(result, progress.last)


@BY_SOLVER
def test_each_call_of_a_callback_gets_arrays_of_its_own(solver):
    x, seen = make_tensor(), []

    def keep(model, error=None):
        seen.append((model, [array.copy() for array in list_arrays(model)]))

    result = run(solver, x, 4, keep)
    for model, copies in seen[1:] if solver == "parafac" else seen:
        if solver != "parafac":  # TensorLy's own loop changes its list of factors
            for array, copy in zip(list_arrays(model), copies, strict=True):
                np.testing.assert_array_equal(array, copy)
    assert len(seen) == 5
    if "normalized" not in solver:  # TensorLy normalises after the last callback
        for array, copy in zip(list_arrays(result), seen[-1][1], strict=True):
            np.testing.assert_array_equal(array, copy)


@BY_SOLVER
def test_a_checkpoint_of_another_tensor_is_refused(path, solver):
    with Progress(2, show=None, checkpoint=path) as progress:
        run(solver, make_tensor(), 2, progress)
    init = load_checkpoint(path)
    options = {"mask": None} if solver == "mu masked" else {}
    with pytest.raises(ValueError, match=r"of another tensor of shape \(9, (20|3), 30\)"):
        run(solver, make_tensor(seed=1), 2, None, init=init, **options)
    one_bit = make_tensor().nonzeros()
    one_bit[1][5] = np.nextafter(one_bit[1][5], 1)
    with pytest.raises(ValueError, match="of another tensor"):
        run(solver, FlycooTensor(*one_bit, SHAPE), 2, None, init=init, **options)


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_a_checkpoint_fits_the_same_tensor_however_it_was_made(path, layout):
    x = make_tensor()
    with Progress(2, show=None, checkpoint=path) as progress:
        run("hals", x, 2, progress)
    coords, values = x.nonzeros()
    order = np.random.default_rng(0).permutation(values.size)
    same = FlycooTensor(coords[:, order], values[order], SHAPE, layout=layout)
    expected = run("hals", x, 2, None, init=load_checkpoint(path))
    for y in (same, same.to_coo()):
        assert_same_bits(run("hals", y, 2, None, init=load_checkpoint(path)), expected)


@BY_NAME
def test_a_checkpoint_of_another_solver_is_refused(path, solver):
    x, other = make_tensor(), "parafac" if "tucker" in solver else "tucker"
    with Progress(2, show=None, checkpoint=path) as progress:
        run(other, x, 2, progress)
    for solver_of_file in (other, ""):
        init = load_checkpoint(path)
        init.solver, init.digest, init.state = solver_of_file, "", {}
        with pytest.raises(ValueError, match=rf"written by .*, expected {SOLVERS[solver][0]}:"):
            run(solver, x, 2, None, init=init)


def test_a_checkpoint_without_a_state_is_refused(path):
    x = make_tensor()
    save_checkpoint(path, run("parafac", x, 2, None), [1.0, 0.5, 0.4])
    with pytest.raises(ValueError, match="other free modes"):
        run("constrained", x, 2, None, init=load_checkpoint(path))


def test_the_best_of_a_run_that_gets_worse():
    models = [run("parafac", make_tensor(), n, None) for n in (1, 2, 3)]
    with Progress(100, show=None) as progress:
        for model, error in zip(models, (0.5, 0.4, 0.45), strict=True):
            progress(model, error)
    assert_same_bits(progress.best, models[1])
    assert_same_bits(progress.last, models[2])


def test_parafac_without_tol_takes_a_callback():
    """TensorLy's loop computes errors for a callback only if it has `tol` or `return_errors`."""
    x = make_tensor()
    with Progress(4, show=None) as progress:
        result = run("parafac", x, 4, progress, tol=0)
    assert progress.iteration == 4
    assert_same_bits(result, run("parafac", x, 4, None, tol=0))


def test_tuckers_callback_and_fixed_factors_exclude_each_other():
    x = make_tensor()
    start = run("tucker", x, 1, None)
    with pytest.raises(ValueError, match=r"fixed_factors is \[0\], expected None"):
        run("tucker", x, 1, print, init=start, fixed_factors=[0])


def test_tuckers_error_at_the_start():
    x, errors = make_tensor(), []
    run("tucker random", x, 1, lambda model, error: errors.append((model, error)))
    model, error = errors[0]
    difference = x.to_coo().todense() - model.to_tensor()
    expected = np.linalg.norm(difference) / float(x.norm())
    assert error == pytest.approx(expected, rel=1e-12)
