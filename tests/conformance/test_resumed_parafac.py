"""A parafac that is stopped and resumed gives the same bits as one run without a stop."""

import numpy as np
import pytest
import tensorly as tl
from tensorly.decomposition import CP, parafac

from tensorly_flycoo import FlycooTensor, Progress
from tensorly_flycoo.io.checkpoint import load_checkpoint

RANK, STOP, END = 4, 4, 10
OPTIONS = [
    {},
    {"init": "svd"},
    {"normalize_factors": True},
    {"normalize_factors": True, "init": "svd", "fixed_modes": [0]},
    {"fixed_modes": [1], "l2_reg": 0.1},
    {"cvg_criterion": "rec_error"},
    {"linesearch": "nesterov"},
    {"linesearch": "gauss-newton"},
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.npz"


def make_tensor(dtype="float64", shape=(9, 40, 300)):
    """Make a tensor with a mode so short that its factor is returned in Fortran order."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 2000) for size in shape])
    return FlycooTensor(coords, rng.random(2000), shape, dtype=dtype)


def run(x, n_iter_max, progress, **options):
    options = {"init": "random", "random_state": 0, "tol": 1e-300} | options
    return parafac(x, RANK, n_iter_max=n_iter_max, callback=progress, **options)


def run_in_two(x, path, stop=STOP, **options):
    """Run to `stop`, resume to the end; return the result and the second run's `Progress`."""
    with Progress(stop, show=None, checkpoint=path) as progress:
        run(x, stop, progress, **options)
    with Progress(END, show=None, checkpoint=path) as progress:
        init = progress.resume()
        assert progress.n_iter_left == END - stop
        return run(x, progress.n_iter_left, progress, **options | {"init": init}), progress


def assert_same_bits(a, b):
    assert a.weights.tobytes() == b.weights.tobytes()
    for ours, expected in zip(a.factors, b.factors, strict=True):
        np.testing.assert_array_equal(ours, expected, strict=True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.usefixtures("flycoo_backend")
def test_resumed_is_the_same_to_the_bit(path, options, dtype):
    x = make_tensor(dtype)
    with Progress(END, show=None) as whole:
        expected = run(x, END, whole, **options)
    result, progress = run_in_two(x, path, **options)
    assert_same_bits(result, expected)
    assert progress.errors == whole.errors
    assert progress.iteration == END


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("stop", [1, 9])
def test_resumed_at_the_first_and_at_the_last_iteration(path, stop):
    x = make_tensor(shape=(30, 50, 60)).to_coo()
    expected = run(x, END, None)
    assert_same_bits(run_in_two(x, path, stop)[0], expected)


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("stop", [3, 4])
@pytest.mark.parametrize("normalize_factors", [False, True])
@pytest.mark.parametrize("criterion", ["abs_rec_error", "rec_error"])
def test_resumed_stops_where_the_whole_run_stops(path, criterion, normalize_factors, stop):
    """The first run ends before the iteration at which the whole run stops, or in it."""
    x = make_tensor()
    with Progress(END, show=None) as whole:
        run(x, END, whole)
    second, third, fourth = -np.diff(whole.errors[1:5])
    assert fourth < third < second
    options = {"tol": (third + fourth) / 2, "cvg_criterion": criterion}
    options |= {"normalize_factors": normalize_factors}
    with Progress(END, show=None) as whole:
        expected = run(x, END, whole, **options)
    assert whole.iteration == 4
    result, progress = run_in_two(x, path, stop, **options)
    assert progress.iteration == 4
    assert_same_bits(result, expected)


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_exception_in_the_callback_of_a_resumed_run(path, failing):
    """It propagates, and the checkpoint can still be resumed from."""
    x = make_tensor()
    expected = run(x, END, None)
    with Progress(STOP, show=None, checkpoint=path) as progress:
        run(x, STOP, progress)
    errors = []

    def fail(cp_tensor, error):
        errors.append(error)
        if len(errors) > failing:
            raise RuntimeError("simulated")

    with pytest.raises(RuntimeError, match="simulated"):
        run(x, END - STOP, fail, init=load_checkpoint(path))
    assert len(errors) == failing + 1
    assert_same_bits(run(x, END - STOP, None, init=load_checkpoint(path)), expected)


@pytest.mark.usefixtures("flycoo_backend")
def test_class_resumes(path):
    x = make_tensor()
    options = {"random_state": 0, "tol": 1e-300}
    with Progress(STOP, show=None, checkpoint=path) as progress:
        CP(RANK, STOP, init="random", callback=progress, **options).fit_transform(x)
    with Progress(END, show=None, checkpoint=path) as progress:
        init = progress.resume()
        n_iter = progress.n_iter_left
        result = CP(RANK, n_iter, init=init, callback=progress, **options).fit_transform(x)
    assert_same_bits(result, run(x, END, None))


def test_dense_under_numpy_resumes(path):
    with tl.backend_context("numpy"):
        x = np.random.default_rng(0).random((9, 40, 30))
        result, _ = run_in_two(x, path)
        assert_same_bits(result, run(x, END, None))


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("options", [{"linesearch": True}, {"orthogonalise": 3}], ids=str)
def test_what_cannot_be_resumed_is_refused(path, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}= cannot resume"):
        run_in_two(make_tensor(), path, **options)


@pytest.mark.usefixtures("flycoo_backend")
def test_a_mask_is_not_resumed(path):
    """The imputed values are not in the checkpoint."""
    x = make_tensor()
    with Progress(2, show=None, checkpoint=path) as progress:
        run(x, 2, progress)
    with pytest.raises(ValueError, match="mask= cannot resume"):
        parafac(x, RANK, init=load_checkpoint(path), mask=x)


@pytest.mark.usefixtures("flycoo_backend")
def test_checkpoint_of_another_problem_is_refused(path):
    x = make_tensor()
    with Progress(2, show=None, checkpoint=path) as progress:
        run(x, 2, progress)
    with Progress(END, show=None, checkpoint=path) as progress:
        init = progress.resume()
    with pytest.raises(ValueError, match=r"has shape \(9, 40, 300\).*expected \(9, 40, 301\)"):
        parafac(make_tensor(shape=(9, 40, 301)), RANK, init=init)
    with pytest.raises(ValueError, match=r"rank 4 .* rank 5"):
        parafac(x, RANK + 1, init=init)
    with pytest.raises(ValueError, match=r"float64, expected .* float32"):
        parafac(make_tensor("float32"), RANK, init=init)


@pytest.mark.usefixtures("flycoo_backend")
def test_more_than_two_to_the_63_cells(path):
    coords = np.random.default_rng(0).integers(0, 8, (4, 500)) * 2**13
    x = FlycooTensor(coords, np.linspace(1, 2, 500), (2**16,) * 4)
    result, _ = run_in_two(x, path, init="svd")
    assert_same_bits(result, run(x, END, None, init="svd"))


def test_a_coo_without_a_checkpoint_is_unchanged(path):
    x = make_tensor().to_coo()
    with tl.backend_context("flycoo"), Progress(3, show=None, checkpoint=path) as progress:
        init = progress.resume(default="random")
        assert init == "random"
        assert_same_bits(run(x, 3, progress, init=init), run(x, 3, None))
