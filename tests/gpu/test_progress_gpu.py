"""Each solver that iterates, on a GPU: progress, checkpoints, and their digest."""

import cupy
import numpy as np
import pytest

from tensorly_flycoo import FlycooTensor, Progress, decomposition
from tensorly_flycoo.io.checkpoint import find_digest, load_checkpoint
from tensorly_flycoo.testing import random_tensor

STOP, END = 3, 6
SHAPE = (9, 40, 300)
SOLVERS = {
    "parafac": {},
    "non_negative_parafac": {"normalize_factors": True},
    "non_negative_parafac_hals": {},
    "constrained_parafac": {"non_negative": True},
    "observed_parafac": {},
    "tucker": {"rank": [2, 3, 4]},
}
BY_SOLVER = pytest.mark.parametrize("solver", SOLVERS)


def make_tensor(**options):
    return random_tensor(SHAPE, 5000, random_state=0, device="cuda", **options)


def run(solver, x, n_iter_max, callback, **options):
    tol = {"tol_outer" if solver == "constrained_parafac" else "tol": 1e-300}
    given = {"rank": 3, "init": "random", "random_state": 0, **tol, **SOLVERS[solver], **options}
    return getattr(decomposition, solver)(x, n_iter_max=n_iter_max, callback=callback, **given)


@BY_SOLVER
def test_resumed_is_the_same(tmp_path, solver):
    x, path = make_tensor(), tmp_path / "run.npz"
    with Progress(END, show=None) as whole:
        expected = run(solver, x, END, whole)
    with Progress(STOP, show=None, checkpoint=path) as progress:
        run(solver, x, STOP, progress)
    with Progress(END, show=None, checkpoint=path) as progress:
        init = progress.resume()
        result = run(solver, x, progress.n_iter_left, progress, init=init)
    assert progress.iteration == END
    assert progress.errors[1:] == pytest.approx(whole.errors[1:], rel=1e-6)
    for a, b in zip(result.factors, expected.factors, strict=True):
        assert isinstance(a, cupy.ndarray)
        assert float(abs(a - b).max()) <= 1e-8 * float(abs(b).max())
    for factor in progress.last.factors:
        assert isinstance(factor, cupy.ndarray)


def test_a_checkpoint_of_another_tensor_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    with Progress(2, show=None, checkpoint=path) as progress:
        run("non_negative_parafac_hals", make_tensor(), 2, progress)
    with pytest.raises(ValueError, match="of another tensor"):
        run("non_negative_parafac_hals", 2 * make_tensor(), 2, None, init=load_checkpoint(path))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_digest_is_the_same_on_every_device(dtype):
    x = make_tensor(dtype=dtype)
    coords, values = x.nonzeros()
    order = np.random.default_rng(0).permutation(values.size)
    for device in ("cpu", "cuda"):
        y = FlycooTensor(coords[:, order], values[order], SHAPE, device=device, layout="indexed")
        assert find_digest(y) == find_digest(x)


def test_a_run_of_the_gpu_goes_on_on_the_cpu(tmp_path):
    x, path = make_tensor(), tmp_path / "run.npz"
    with Progress(2, show=None, checkpoint=path) as progress:
        run("non_negative_parafac_hals", x, 2, progress)
    on_cpu = FlycooTensor(*x.nonzeros(), SHAPE, device="cpu")
    result = run("non_negative_parafac_hals", on_cpu, 2, None, init=load_checkpoint(path))
    expected = run("non_negative_parafac_hals", x, 4, None)
    for a, b in zip(result.factors, expected.factors, strict=True):
        np.testing.assert_allclose(a, cupy.asnumpy(b), rtol=1e-6, atol=1e-8)


def test_zeros_are_a_warning():
    with pytest.warns(UserWarning, match=r"l1_reg=100.0 is too strong"):
        run("constrained_parafac", make_tensor(), 3, None, non_negative=None, l1_reg=100.0)


@pytest.mark.parametrize("rank", [2.5, -1, True])
def test_a_wrong_rank_is_refused_at_once(rank):
    with pytest.raises((TypeError, ValueError), match=f"rank is {rank}, expected"):
        run("parafac", make_tensor(), 2, None, rank=rank)
