"""One tensor in many threads, and in processes of every kind: the same bits everywhere."""

import multiprocessing
import threading

import numpy as np
import pytest
import tensorly as tl
from problems import compute_all, make_problem

from tensorly_flycoo import mttkrp
from tensorly_flycoo.base.checks import LAYOUTS

_SHAPE, _NNZ = (40, 3, 50), 3000


def make_tensor(layout="remap"):
    problem = make_problem(_SHAPE, _NNZ, skew=2)
    return problem.tensor(layout=layout, device="cpu"), problem.factors


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_tensor_in_16_threads(layout):
    """All threads start together; each computes all modes five times."""
    x, factors = make_tensor(layout)
    expected, barrier, wrong = compute_all(x, factors), threading.Barrier(16), []

    def compute(number):
        barrier.wait(30)
        wrong.extend(number for _ in range(5) if compute_all(x, factors) != expected)

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_decompositions_in_16_threads():
    """They share a tensor and the backend, which holds for the whole process."""
    x, _ = make_tensor()
    errors, options = {}, {"n_iter_max": 3, "init": "random", "return_errors": True}

    def decompose(number):
        _, errors[number] = tl.decomposition.parafac(x, 2, random_state=number % 2, **options)

    with tl.backend_context("flycoo"):
        threads = [threading.Thread(target=decompose, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(errors) == 16
    for number, found in errors.items():
        np.testing.assert_array_equal(found, errors[number % 2])


def compute_here(x, factors):
    return compute_all(x, factors)


def send_result(connection, x, factors):
    connection.send(compute_here(x, factors))


@pytest.mark.usual_limits("tiles")  # new processes have the usual limits
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes(method):
    """A child inherits the tensor in memory or gets it pickled; parent and child both compute."""
    x, factors = make_tensor()
    expected = compute_all(x, factors)
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=send_result, args=(theirs, x, factors))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == expected
    child.join(30)
    assert child.exitcode == 0
    assert compute_all(x, factors) == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_computes():
    """A child must not wait for the tensor's lock, held by a thread that it does not have."""
    x, factors = make_tensor()
    expected, is_done = compute_all(x, factors), threading.Event()

    def compute():
        while not is_done.is_set():
            compute_all(x, factors)

    thread = threading.Thread(target=compute)
    thread.start()
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(20):
            ours, theirs = context.Pipe()
            child = context.Process(target=send_result, args=(theirs, x, factors))
            child.start()
            assert ours.poll(60), "the child hangs"
            assert ours.recv() == expected
            child.join(30)
    finally:
        is_done.set()
        thread.join()


@pytest.mark.usual_limits("tiles")  # new processes have the usual limits
@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_joblib(backend):
    import joblib

    x, factors = make_tensor()
    results = joblib.Parallel(n_jobs=2, backend=backend)(
        joblib.delayed(compute_here)(x, factors) for _ in range(4)
    )
    assert all(result == compute_all(x, factors) for result in results)


@pytest.mark.usual_limits("tiles")  # new processes have the usual limits
@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_dask(scheduler):
    """Several tasks share one tensor; in processes, it is pickled."""
    import dask

    x, factors = make_tensor()
    sent = dask.delayed(x)
    tasks = [dask.delayed(mttkrp)(sent, factors, mode) for mode in (0, 1, 2, 1, 0)]
    results = dask.compute(*tasks, scheduler=scheduler, num_workers=2)
    expected = [mttkrp(x, factors, mode).tobytes() for mode in (0, 1, 2, 1, 0)]
    assert [result.tobytes() for result in results] == expected
