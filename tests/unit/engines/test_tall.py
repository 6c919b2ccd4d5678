"""Small matrices are decomposed without the threads of the BLAS, which wait for each other."""

import threading

import numpy as np
import pytest
import tensorly as tl
from problems import make_problem
from threadpoolctl import threadpool_info, threadpool_limits

from tensorly_flycoo import decomposition, fold_in
from tensorly_flycoo.engines import tall
from tensorly_flycoo.engines.tall import call_lapack, eigh, solve
from tensorly_flycoo.svd import eigen
from tensorly_flycoo.svd.unfolding import Unfolding


def count_threads(*_):
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(2, "blas"):
        yield


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (512, 1), (513, 2)])
def test_small_matrices_take_one_thread(size, expected):
    assert call_lapack(count_threads, np.empty((size, size))) == {expected}
    assert count_threads() == {2}


def test_an_error_restores_the_threads():
    with pytest.raises(np.linalg.LinAlgError):
        call_lapack(np.linalg.inv, np.zeros((3, 3)))
    assert count_threads() == {2}


def test_calls_of_several_threads_restore_them():
    matrix = np.diag(np.arange(40.0))
    threads = [threading.Thread(target=lambda: [eigh(matrix) for _ in range(50)]) for _ in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count_threads() == {2}


def test_the_largest_of_each_row():
    x = np.array([[1.0, 3, 3, -np.inf], [2, 2, 2, 5], [np.nan, 1, 4, 4]])
    for n, expected in (
        (1, [[1], [3], [2]]),
        (3, [[1, 2, 0], [3, 0, 1], [2, 3, 0]]),
        (4, [[1, 2, 0, 3], [3, 0, 1, 2], [2, 3, 1, 0]]),
    ):
        assert tall.find_largest(x, n).tolist() == expected


@pytest.mark.parametrize("kind", ["normal", "few values", "descending", "infinite"])
def test_the_largest_of_long_rows(kind):
    x = np.random.default_rng(0).standard_normal((5, 3001))
    if kind == "few values":
        x = np.rint(x)
    if kind == "descending":
        x = -np.sort(-x)
    if kind == "infinite":
        x[:, 5:2900] = -np.inf
    expected = np.argsort(-x, axis=1, kind="stable")
    for n in (1, 10, 100):
        np.testing.assert_array_equal(tall.find_largest(x, n), expected[:, :n])


def test_stacks():
    stack = np.random.default_rng(0).standard_normal((5, 4, 4))
    stack += stack.swapaxes(1, 2)
    for found, expected in zip(eigh(stack), np.linalg.eigh(stack), strict=True):
        np.testing.assert_array_equal(found, expected)


def start_by_svd(x):
    Unfolding(x, 0).svd(3)
    Unfolding(x, 1).randomized_svd(3, np.random.RandomState(0))


USES = {
    "svd start": start_by_svd,
    "tucker": lambda x: decomposition.tucker(x, [2, 2, 2], svd="randomized_svd", n_iter_max=1),
    "solve": lambda x: solve(np.eye(64), np.ones((64, 300))),
    "fold_in": lambda x: fold_in(
        (None, [f[:, :2] for f in make_problem(x.shape, 1).factors]), x, 0
    ),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_iterated", [False, True])
def test_every_use(use, is_iterated, monkeypatch):
    """Whatever calls LAPACK for small matrices, in a loop of TensorLy's or of ours."""
    numbers = []
    for module, name in ((np.linalg, "eigh"), (tall.lapack, "dgesv"), (np.linalg, "pinv")):
        function = getattr(module, name)

        def noting(a, *args, function=function, **options):
            if len(a) >= tall._MIN_INVERTED_SIZE or function.__name__ == "eigh":
                numbers.append(count_threads())
            return function(a, *args, **options)

        monkeypatch.setattr(module, name, noting)
    if is_iterated:
        monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
        monkeypatch.setattr("tensorly_flycoo.svd.gram.is_cheap_to_form", lambda *_: False)
    x = make_problem((60, 50, 40), 3000).tensor()
    with tl.backend_context("flycoo"):
        USES[use](x)
    assert all(number == {1} for number in numbers)
    assert numbers or not is_iterated


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_rows", [2, 100])
def test_a_component_that_vanishes_gets_zeros(num_rows, dtype):
    """Its row of a Gram matrix is what underflow left: its inverse would be noise of any size."""
    rng, limits = np.random.default_rng(0), np.finfo(dtype)
    tiny = float(limits.smallest_normal) ** 0.5
    gram = np.array([[0, -tiny, 0], [-tiny, 8, 1], [0, 1, 2]], dtype)
    for diagonal in (0, limits.smallest_subnormal, 0.5 * limits.smallest_normal / limits.eps):
        gram[0, 0], rows = diagonal, rng.standard_normal((num_rows, 3)).astype(dtype)
        rows[:, 0] *= tiny
        expected = np.linalg.solve(gram[1:, 1:].astype(float), rows[:, 1:].T).T
        found = solve(gram, rows.T).T
        assert np.abs(found[:, 1:] - expected).max() <= 100 * limits.eps * np.abs(rows).max()
        assert np.abs(found[:, 0]).max() <= 100 * tiny * np.abs(rows).max()


@pytest.mark.parametrize(
    ("number", "shape"),
    [(np.inf, (4, 3)), (np.inf, (4, 100)), (np.nan, (4,)), (np.nan, (4, 3)), (np.nan, (4, 100))],
)
def test_what_is_not_finite_is_refused(number, shape):
    """LAPACK's SVD of such a matrix may never end."""
    matrix = np.eye(4)
    matrix[1, 1] = number
    matrix[1, 2] = matrix[2, 1] = -54.0
    with pytest.raises(np.linalg.LinAlgError, match=r"holds inf or nan, .* normalize_factors=True"):
        solve(matrix, np.ones(shape))
