"""Which argument is the tensor; and results mirror the input, with a stand-in for CuPy's arrays."""

import copy
import inspect
import pickle
import sys
import types
from collections import namedtuple

import numpy as np
import pytest
import scipy.sparse
import tensorly as tl
from numpy.testing import assert_array_equal
from sparse_problems import random_coo
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, LabelledTensor
from tensorly_flycoo.engines.cpu.engine import CpuEngine
from tensorly_flycoo.ops.views import permute
from tensorly_flycoo.tensor import entrance
from tensorly_flycoo.tensor.entrance import Call, find_sparse, map_arrays, mirror

COO = random_coo((4, 5, 6), 20)


class GpuArray:
    """An array that NumPy functions refuse, as they refuse CuPy's."""

    num_copies = 0

    def __init__(self, array):
        self.array = np.asarray(array)
        self.shape, self.ndim, self.dtype = self.array.shape, self.array.ndim, self.array.dtype
        self.nbytes = self.array.nbytes

    def get(self):
        GpuArray.num_copies += 1
        return self.array.copy()

    def set(self, array):
        self.array[...] = array

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")


@pytest.fixture
def gpu(monkeypatch):
    """Make the chosen device a GPU, whose engine no test uses; tensors stay where they are."""
    cupy = types.ModuleType("cupy")
    cupy.ndarray = GpuArray
    cupy.asarray = lambda x: x if isinstance(x, GpuArray) else GpuArray(x)
    cupy.empty = lambda shape, dtype: GpuArray(np.empty(shape, dtype))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    engine = CpuEngine()
    engine.xp = cupy
    monkeypatch.setattr(entrance, "select_engine", lambda: engine)
    monkeypatch.setattr(GpuArray, "num_copies", 0)
    return engine


def on_gpu(*shape):
    return GpuArray(np.ones(shape))


@mirror
def decompose(x, init=None, callback=None, modes=None):
    """Return a model on the GPU, of the same shape as a COO, and what the function got."""
    model = CPTensor.__new__(CPTensor)
    factors = [on_gpu(size, 2) for size in x.shape]
    vars(model).update(weights=on_gpu(2), factors=factors, shape=x.shape, rank=2)
    if callback is not None:
        callback(model, on_gpu())
    return model, [on_gpu(), 0.5], init, modes


def kinds_of(x):
    kinds = []
    map_arrays(lambda array: kinds.append(type(array)), x)
    return set(kinds)


@pytest.mark.usefixtures("gpu")
class TestOnAGpu:
    def test_results_of_a_coo_are_numpys(self):
        model, errors, *_ = decompose(COO)
        assert kinds_of(model) == {np.ndarray}
        assert type(errors[0]) is np.float64
        assert errors == [1, 0.5]
        assert_array_equal(model.factors[1], np.ones((5, 2)))

    def test_companions_go_to_the_gpu(self):
        init = np.ones(2), [np.ones((size, 2)) for size in COO.shape]
        inside = []

        @mirror
        def look(x, init, mask, ids):
            inside.extend([kinds_of(init), type(mask), type(ids)])

        look(COO, init, np.ones(COO.shape, bool), np.arange(3))
        assert inside == [{GpuArray}, GpuArray, np.ndarray]
        assert kinds_of(init) == {np.ndarray}

    def test_cupy_beside_a_coo_gives_cupy(self):
        model, errors, *_ = decompose(COO, init=[on_gpu(4, 2)])
        assert kinds_of(model) == {GpuArray}
        assert GpuArray.num_copies == 0
        assert kinds_of(errors[0]) == {GpuArray}

    def test_a_labelled_tensor_is_on_the_host(self, gpu):
        tensor = FlycooTensor.from_coo(COO, device="cpu")
        tensor._engine = gpu
        labels = [list(map(str, range(size))) for size in COO.shape]
        assert kinds_of(decompose(LabelledTensor(tensor, labels))[0]) == {np.ndarray}

    def test_a_lent_tensor_is_on_the_host(self, gpu):
        tensor = FlycooTensor.from_coo(COO, device="cpu")
        tensor._engine = gpu
        gpu.name = "cuda"
        lent = entrance.lend(tensor)
        assert kinds_of(decompose(lent)[0]) == {np.ndarray}
        assert (lent * 2)._is_callers
        assert not tensor._is_callers

    def test_a_lent_tensor_keeps_its_class(self, gpu):
        class HeldElsewhere(FlycooTensor):
            """As a tensor on a cluster, which remembers how it was made."""

        tensor = HeldElsewhere(COO.coords, COO.data, COO.shape, device="cpu")
        tensor._engine, tensor.history, gpu.name = gpu, ["made"], "cuda"
        lent = entrance.lend(tensor)
        assert (type(lent), lent.history) == (HeldElsewhere, ["made"])
        assert lent._layout is tensor._layout

        @mirror
        def look(x):
            assert not x._is_callers
            return x

        assert look(lent)._is_callers

    def test_results_of_a_flycoo_tensor_stay(self, gpu):
        tensor = FlycooTensor.from_coo(COO, device="cpu")
        tensor._engine = gpu
        model, _, init, _ = decompose(tensor, init=np.ones((4, 2)))
        assert kinds_of(model) == kinds_of(init) == {GpuArray}

    def test_an_array_for_the_result_stays_where_it_is(self):
        @mirror
        def write(x, *, out):
            assert isinstance(out, GpuArray)
            out.array[...] = 3
            return out

        out = np.zeros((4, 2))
        assert write(COO, out=out) is out
        assert (out == 3).all()

    def test_a_callback_copies_what_it_looks_at(self):
        seen = []

        def look(model, error):
            assert GpuArray.num_copies == 1  # the error
            assert error == 1
            assert isinstance(model, CPTensor)
            assert model.rank == 2
            seen.append(model)

        decompose(COO, callback=look)
        (model,), before = seen, GpuArray.num_copies
        weights, factors = model
        assert kinds_of([weights, factors]) == {np.ndarray}
        assert model.factors is factors
        assert GpuArray.num_copies == before + 4

    def test_a_shown_model_is_copied_as_a_plain_one(self):
        seen = []
        decompose(COO, callback=lambda model, error: seen.append(model))
        for twin in (
            copy.copy(seen[0]),
            copy.deepcopy(seen[0]),
            pickle.loads(pickle.dumps(seen[0])),
        ):
            assert type(twin) is CPTensor
            assert kinds_of(twin) == {np.ndarray}


def test_a_call_on_the_cpu_is_left_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(entrance, "map_arrays", None)
    model = mirror(lambda x: x)(COO)
    assert model is COO
    assert mirror(lambda x: x)(3) == 3


def test_objects_without_changes_are_themselves():
    x = {"a": [CPTensor((None, [np.ones((2, 1))] * 2)), (1, "text")]}
    assert map_arrays(lambda array: array, x) is x


# Which argument is the tensor


def test_the_first_sparse_argument():
    """Also in containers of any class, and after dense arguments of the same classes."""
    x = FlycooTensor.from_coo(COO)
    view, coo = permute(x, (1, 0, 2)), COO
    Pair = namedtuple("Pair", ["first", "second"])
    dense = [np.ones(2), 3, "text", None, (2, 3), [np.ones(2), 1.0], Pair(1, 2), {"a": 1}]
    assert find_sparse(dense) is None
    for sparse_one in (x, view, coo):
        assert find_sparse([*dense, sparse_one, x]) is sparse_one
        assert find_sparse([*dense, [1, sparse_one]]) is sparse_one
        assert find_sparse([Pair(np.ones(2), sparse_one)]) is sparse_one
        assert find_sparse([{"a": 1, "b": [sparse_one]}]) is sparse_one


def test_other_libraries_are_found_under_the_backend():
    matrix = scipy.sparse.eye_array(2)
    with tl.backend_context("numpy"):
        assert find_sparse([np.ones(2), [matrix]]) is None
    with tl.backend_context("flycoo"):
        with pytest.raises(TypeError, match="from_scipy"):
            find_sparse([np.ones(2), matrix])
        with pytest.raises(TypeError, match=r"sparse\.stack"):
            find_sparse([np.ones(2), [matrix]])


def test_arguments_get_their_names_and_lose_their_labels():
    def decompose(tensor, rank, mode=0):
        """A signature."""

    labels = {name: range(size) for name, size in zip("abc", COO.shape, strict=True)}
    labelled = LabelledTensor(FlycooTensor.from_coo(COO), labels)
    call = Call((labelled, 3), {"mode": "b"})
    assert call.is_on_host
    call.name_arguments(inspect.signature(decompose), "decompose", lambda kwargs: ": a hint")
    assert call.drop_labels() is labelled
    assert call.kwargs == {"tensor": labelled.tensor, "rank": 3, "mode": 1}
    assert call.tensor is labelled.tensor
    assert call.give_back(call) is call
    wrong = Call((labelled,), {"size": 3})
    with pytest.raises(TypeError, match=r"^decompose .*argument.*: a hint$"):
        wrong.name_arguments(inspect.signature(decompose), "decompose", lambda kwargs: ": a hint")


def test_a_list_of_scipys_matrices_is_accepted_on_request():
    matrix = scipy.sparse.eye_array(2)
    call = Call(([matrix, matrix],), {})
    assert call.tensor is None
    call.accept_scipy_slices()
    assert call.tensor is matrix
    assert call.foreign is None
    with tl.backend_context("flycoo"), pytest.raises(TypeError, match=r"sparse\.stack"):
        entrance.refuse_foreign(Call(([matrix, matrix],), {}).foreign)
