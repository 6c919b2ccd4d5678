"""Batches on a GPU, with NumPy in place of kernels and of graphs."""

import inspect
import sys
import types

import numpy as np
import pytest
from compared_runs import assert_same

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.loop import recording
from tensorly_flycoo.loop.masks import MissingEntries
from tensorly_flycoo.models import gpu_batch, many_starts
from tensorly_flycoo.models.many_starts import Stopping, run_together
from tensorly_flycoo.testing import planted_tensor, random_tensor

SEEDS = [3, 1, 4, 15, 9]

pytestmark = pytest.mark.usefixtures("flycoo_backend")


class Kernels:
    """The functions of `engines.cuda.tall` that a batch calls."""

    def solve_side_by_side(self, x, grams, y, gram, rounds):
        assert not rounds
        inverses = np.linalg.pinv(np.prod(grams, axis=0))
        rows = split(x, len(gram))
        np.copyto(split(y, len(gram)), rows @ inverses)
        self.gram_side_by_side(y, gram)
        return (rows * split(y, len(gram))).sum(axis=1, dtype=float), None

    def gram_side_by_side(self, x, gram):
        rows = split(x.astype(float), len(gram))
        gram[...] = rows.swapaxes(1, 2) @ rows

    def fit_side_by_side(self, grams, inner, norm_square, dtype):
        squares = np.prod(grams, axis=0).sum(axis=(1, 2)) - 2 * inner.sum(axis=1)
        return np.sqrt(abs(norm_square + squares))


def split(columns, num_models):
    """Return a view (n, I, R) of columns."""
    return columns.reshape(len(columns), num_models, -1).swapaxes(0, 1)


class Graphs:
    """Records a function, whose arrays must be the same ones at each launch."""

    RECORDING_ERRORS = (MemoryError,)

    def __init__(self):
        self.launches = []

    def make_pool(self):
        return None

    def record(self, work, others, pool):
        names = inspect.getclosurevars(work).nonlocals
        batch, layout = names["work"].__self__, names["layout"]
        start, arrays = layout.get_state(), self.list_arrays(batch, layout)
        saved = [array.copy() for array in arrays]
        results = work()
        for array, numbers in zip(arrays, saved, strict=True):
            array[...] = numbers  # a recording launches nothing

        def launch():
            vars(layout).update(start)
            for array, now in zip(arrays, self.list_arrays(batch, layout), strict=True):
                assert array.ctypes.data == now.ctypes.data
            results[...] = work()
            self.launches.append(work)

        return types.SimpleNamespace(launch=launch, note_end=lambda: None), results

    def list_arrays(self, batch, layout):
        own = [] if batch.imputed is None else [batch.imputed._values]
        own += [] if batch._steps is None else [batch._steps]
        records = [layout.records, *([layout.spare] if hasattr(layout, "spare") else [])]
        return [*batch.columns, *batch.before, *batch.grams, *own, *records]


@pytest.fixture
def launches(monkeypatch):
    """Make batches use the stand-ins; return the list of what graphs launch."""
    graphs = Graphs()
    monkeypatch.setitem(sys.modules, "tensorly_flycoo.engines.cuda.graphs", graphs)
    monkeypatch.setattr(many_starts, "find_kernels", lambda *_: Kernels())
    monkeypatch.setattr(many_starts, "is_cupy", lambda _: True)
    monkeypatch.setattr(gpu_batch, "suits", lambda *_: True)
    monkeypatch.setattr(gpu_batch, "copy_parts", lambda source, out: np.copyto(out, source))
    return graphs.launches


def run_without(monkeypatch, name, *arguments, **options):
    """Run together without what a name of a module decides."""
    module, attribute = name
    with monkeypatch.context() as context:
        context.setattr(module, attribute, lambda *_: None)
        return run_together(*arguments, **options)


@pytest.mark.parametrize("has_momentum", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_are_those_of_array_functions(dtype, has_momentum, launches, monkeypatch):
    x = random_tensor((30, 40, 50), 3000, random_state=0, dtype=dtype)
    arguments = (x, 3, SEEDS, Stopping(8, 0), has_momentum)
    runs = run_together(*arguments)
    expected = run_without(monkeypatch, (many_starts, "find_kernels"), *arguments)
    bound = 1e-9 if dtype == "float64" else 1e-3  # iterations amplify rounding errors
    for run, other in zip(runs, expected, strict=True):
        np.testing.assert_allclose(run.errors, other.errors, rtol=bound)
        for factor, array in zip(run.cp_tensor.factors, other.cp_tensor.factors, strict=True):
            assert factor.dtype == array.dtype
            assert np.abs(factor - array).max() <= bound * np.abs(array).max()


@pytest.mark.parametrize("has_momentum", [False, True])
@pytest.mark.parametrize(
    ("layout", "groups", "num_turns"),
    [("remap", None, 2), ("remap", ((0, 1), (2,)), 1), ("replicated", None, 1)],
    ids=str,
)
def test_recorded_iterations_have_the_same_bits(
    layout, groups, num_turns, has_momentum, launches, monkeypatch
):
    """Runs are dropped, and take steps back; where records move, two graphs may take turns."""
    shape = (12, 15, 18)
    x, _ = planted_tensor(shape, 3, 400, noise=0.5, random_state=0)
    x = FlycooTensor(*x.nonzeros(), shape, layout=layout, groups=groups)
    arguments = (x, 2, range(9), Stopping(50, 1e-7), has_momentum)
    expected = run_without(monkeypatch, (gpu_batch, "suits"), *arguments, keep_all=False)
    assert not launches
    for _ in range(2):  # the second call starts where the first has left the records
        assert_same(run_together(*arguments, keep_all=False), expected)
    assert len({len(run.errors) for run in expected}) > 1
    num_graphs = len(set(map(id, launches)))
    assert num_graphs % (2 * num_turns) == 0
    assert len(launches) > 3 * num_graphs > 0


@pytest.mark.parametrize("groups", ["auto", None, ((0, 1), (2,))], ids=str)
def test_missing_entries(groups, launches, monkeypatch):
    full = random_tensor((12, 15, 18), 700, random_state=0)
    x = FlycooTensor(*full.nonzeros(), full.shape, groups=groups)
    missing = MissingEntries(x, np.argwhere(np.ones((3, 4, 5))).T)
    arguments = (x, 2, SEEDS, Stopping(25, 0))
    expected = run_without(monkeypatch, (gpu_batch, "suits"), *arguments, missing=missing)
    assert_same(run_together(*arguments, missing=missing), expected)
    assert launches
    arrays = run_without(monkeypatch, (many_starts, "find_kernels"), *arguments, missing=missing)
    for run, other in zip(expected, arrays, strict=True):
        np.testing.assert_allclose(run.errors, other.errors, rtol=1e-6)


def test_a_recording_that_fails(launches, monkeypatch):
    x = random_tensor((12, 15, 18), 700, random_state=0)
    arguments = (x, 2, SEEDS, Stopping(25, 0), True)
    expected = run_without(monkeypatch, (gpu_batch, "suits"), *arguments)

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(Graphs, "record", fail)
    assert_same(run_together(*arguments), expected)
    assert not launches


def test_few_iterations_are_not_recorded(launches):
    x = random_tensor((12, 15, 18), 700, random_state=0)
    run_together(x, 2, SEEDS, Stopping(recording._LEAST_LEFT_OF_BATCH, 0))
    assert not launches
