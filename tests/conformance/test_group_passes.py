"""Decompositions make one pass over the nonzeros for each group of modes, and give the same."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from problems import make_factors, make_problem

from tensorly_flycoo import best_of, mttkrp, mttkrps
from tensorly_flycoo.format.layout import Layout
from tensorly_flycoo.loop.whole_tensor import WholeTensor

SHAPE, NNZ, RANK = (6, 5, 4, 7, 3), 800, 3
GROUPS = [(0, 1, 2), (3, 4)]

MASK = sparse.COO([[1], [2], [3], [4], [0]], [0.0], SHAPE, fill_value=1.0)

LOOPS = {
    "parafac": ("parafac", {}),
    "parafac, weights": ("parafac", {"normalize_factors": True}),
    "parafac, mask": ("parafac", {"mask": MASK}),
    "parafac, callback": ("parafac", {"callback": lambda model, error: None}),
    "non-negative": ("non_negative_parafac", {}),
    "non-negative, weights": ("non_negative_parafac", {"normalize_factors": True}),
    "non-negative, mask": ("non_negative_parafac", {"mask": MASK}),
    "HALS": ("non_negative_parafac_hals", {}),
    "HALS, weights": ("non_negative_parafac_hals", {"normalize_factors": True}),
    "ADMM": ("constrained_parafac", {"non_negative": True}),
}


def make(groups=GROUPS, dtype="float64"):
    problem = make_problem(SHAPE, NNZ, dtype=dtype)
    return abs(problem.tensor(groups=groups, layout="indexed")), make_factors(SHAPE, RANK, dtype)


@pytest.fixture
def count_passes(monkeypatch):
    """Return a function that counts the passes over all nonzeros which a call makes."""
    passes, step = [], Layout.step

    def counted(layout, *args):
        passes.append(layout.nnz)
        return step(layout, *args)

    monkeypatch.setattr(Layout, "step", counted)

    def count(function):
        passes.clear()
        function()
        return sum(nnz > NNZ // 2 for nnz in passes)  # without those over missing entries

    return count


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("groups", [GROUPS, None], ids=["groups", "plain"])
@pytest.mark.parametrize(("name", "options"), LOOPS.values(), ids=LOOPS)
def test_passes_of_a_sweep(name, options, groups, dtype, count_passes):
    x, _ = make(groups, dtype)

    def run(n_iter_max):
        options_ = {"init": "random", "random_state": 0, "return_errors": True, **options}
        options_ |= {"tol_outer": 0} if name == "constrained_parafac" else {"tol": 1e-30}
        with tl.backend_context("flycoo"):
            getattr(tl.decomposition, name)(x, RANK, n_iter_max=n_iter_max, **options_)

    assert count_passes(lambda: run(7)) - count_passes(lambda: run(4)) == 3 * len(x.groups)


def test_starts_together(count_passes):
    x, _ = make()
    options = {"n_starts": 3, "random_state": 0, "tol": 0}
    with tl.backend_context("flycoo"):
        run = lambda n: best_of(tl.decomposition.parafac, x, 2, n_iter_max=n, **options)  # noqa: E731
        assert count_passes(lambda: run(7)) - count_passes(lambda: run(4)) == 3 * 2


@pytest.mark.parametrize("groups", [GROUPS, None], ids=["groups", "plain"])
def test_all_modes_from_one_set_of_factors(groups, count_passes):
    x, factors = make(groups)
    assert count_passes(lambda: mttkrps(x, factors)) == len(x.groups)
    assert count_passes(lambda: [mttkrp(x, factors, mode) for mode in range(5)]) == 5


def test_what_the_last_pass_serves(count_passes):
    """Later modes of its group in the same sweep, while no factor outside of the group changes."""
    x, factors = make()
    whole = WholeTensor(x)

    def multiply(mode):
        found = []
        number = count_passes(lambda: found.append(whole.mttkrp(None, factors, mode)))
        assert found[0].tobytes() == mttkrp(x, factors, mode).tobytes()
        return number

    assert [multiply(mode) for mode in (0, 1, 2, 3, 4)] == [1, 0, 0, 1, 0]
    factors[1][0] = 7  # as a callback may do between sweeps
    factors[4][0] = 7
    assert [multiply(mode) for mode in (0, 2)] == [1, 0]
    factors[0] = 2 * factors[0]
    assert multiply(2) == 1
    assert multiply(1) == 1
    factors[3] = 2 * factors[3]
    assert multiply(2) == 1
    assert [multiply(mode) for mode in (3, 3, 4, 4)] == [1, 1, 0, 1]
    assert not whole.last_pass._pieces


def test_a_failed_pass_is_no_last_pass(monkeypatch):
    x, factors = make()
    whole = WholeTensor(x)

    def fail(*args, **options):
        raise RuntimeError

    whole.mttkrp(None, factors, 0)
    with monkeypatch.context() as patch:
        patch.setattr(type(x._engine), "mttkrp", fail)
        with pytest.raises(RuntimeError):
            whole.mttkrp(None, factors, 0)
        with pytest.raises(RuntimeError):
            whole.mttkrp(None, factors, 1)
    found = whole.mttkrp(None, factors, 2)
    assert found.tobytes() == mttkrp(x, factors, 2).tobytes()


@pytest.mark.parametrize("wrong", [np.ones((5, RANK + 1)), np.ones((4, RANK)), [[1.0]]])
def test_factors_of_a_loop_that_do_not_fit_are_refused(wrong):
    """A callback may put anything there, and kernels would read past its end."""
    x, factors = make()
    whole = WholeTensor(x)
    whole.mttkrp(None, factors, 0)
    factors[1] = wrong
    with pytest.raises((TypeError, ValueError), match=r"factors\[1\]"):
        whole.mttkrp(None, factors, 0)
