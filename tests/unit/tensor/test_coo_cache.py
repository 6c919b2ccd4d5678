"""The FlycooTensor of a raw COO: built once, rebuilt if the COO changes, dropped when it dies."""

import gc
import threading

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl
from problems import make_factors, make_problem

from tensorly_flycoo import (
    FlycooTensor,
    engines,
    load,
    mttkrp,
    open_slabs,
    read_tns,
    save,
    save_slabs,
    write_tns,
)
from tensorly_flycoo.tensor import coo_cache
from tensorly_flycoo.tensor.converters import find_converter, is_raw_sparse
from tensorly_flycoo.tensor.coo_cache import as_flycoo
from tensorly_flycoo.tensor.entrance import is_sparse

PROBLEM = make_problem((30, 20, 10), 500)


@pytest.fixture
def coo():
    return sparse.COO(PROBLEM.coords, PROBLEM.values, PROBLEM.shape)


@pytest.fixture
def num_built(monkeypatch):
    """Count the FlycooTensors that are built."""
    built = []
    original = FlycooTensor.__init__

    def init(self, *args, **kwargs):
        built.append(self)
        original(self, *args, **kwargs)

    monkeypatch.setattr(FlycooTensor, "__init__", init)
    return lambda: len(built)


def check(coo, x):
    np.testing.assert_array_equal(x.nonzeros()[0], coo.coords)
    np.testing.assert_array_equal(x.nonzeros()[1], coo.data)


def test_built_once(coo, num_built):
    x = as_flycoo(coo)
    assert as_flycoo(coo) is x
    assert as_flycoo(coo, check_coords=True) is x
    for mode in (0, 1, 2, 0):
        PROBLEM.check(mttkrp(coo, PROBLEM.factors, mode), mode)
    assert num_built() == 1


def test_a_flycoo_tensor_is_itself(num_built):
    x = PROBLEM.tensor()
    assert as_flycoo(x) is x
    assert num_built() == 1


def test_equal_coos_do_not_share(coo):
    other = coo.copy()
    assert as_flycoo(other) is not as_flycoo(coo)
    other.data[0] += 1
    check(coo, as_flycoo(coo))
    check(other, as_flycoo(other))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_])
def test_any_changed_value_is_found(dtype):
    """A change of one bit in one value."""
    coo = sparse.COO(np.arange(20)[None], np.ones(20, dtype), (20,))
    for k in range(20):
        x = as_flycoo(coo)
        as_bytes = coo.data.view(np.uint8).reshape(20, -1)
        as_bytes[k, 0] ^= 1
        assert as_flycoo(coo) is not x
        values = np.zeros(20)
        values[as_flycoo(coo).nonzeros()[0][0]] = as_flycoo(coo).nonzeros()[1]
        np.testing.assert_array_equal(values, coo.data.astype(float))


def test_changed_values_are_found_by_mttkrp(coo):
    mttkrp(coo, PROBLEM.factors, 0)
    coo.data *= 2
    np.testing.assert_array_equal(
        mttkrp(coo, PROBLEM.factors, 0), 2 * mttkrp(PROBLEM.tensor(), PROBLEM.factors, 0)
    )


def test_swapped_values_are_found(coo):
    x = as_flycoo(coo)
    coo.data[[3, 7]] = coo.data[[7, 3]]
    assert as_flycoo(coo) is not x
    check(coo, as_flycoo(coo))


def test_flipped_signs_are_found(coo):
    """In two values at a time: changes of the highest bits must not cancel."""
    for pair in ([0, 1], [3, 7], [0, 256], [1, coo.nnz - 1]):
        x = as_flycoo(coo)
        coo.data[pair] *= -1
        assert as_flycoo(coo) is not x
        check(coo, as_flycoo(coo))


def test_replaced_data_is_found(coo):
    x = as_flycoo(coo)
    coo.data = coo.data + 1.0
    assert as_flycoo(coo) is not x
    check(coo, as_flycoo(coo))


def test_replaced_coords_are_found(coo):
    x = as_flycoo(coo)
    coo.coords = coo.coords.copy()
    coo.coords[2] = 9 - coo.coords[2]
    y = as_flycoo(coo)
    assert y is not x
    np.testing.assert_array_equal(
        mttkrp(coo, PROBLEM.factors, 0),
        mttkrp(FlycooTensor(coo.coords, coo.data, coo.shape), PROBLEM.factors, 0),
    )


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_changed_coords_are_found_at_the_start_of_a_computation(coo, mode):
    for k in (0, 250, coo.nnz - 1):
        x = as_flycoo(coo)
        size = coo.shape[mode]
        coo.coords[mode, k] = (coo.coords[mode, k] + 1) % size
        y = as_flycoo(coo, check_coords=True)
        assert y is not x
        assert as_flycoo(coo) is y


def test_changed_coords_are_found_by_mttkrp(coo):
    """`mttkrp` documents that it keeps the tensor of a COO only while the COO is unchanged."""
    mttkrp(coo, PROBLEM.factors, 0)
    coo.coords[0] = 29 - coo.coords[0]
    PROBLEM.check(mttkrp(coo, PROBLEM.factors, 0)[::-1], 0)


def _save(path, x):
    save(path, x)
    return load(path)


def _write_tns(path, x):
    write_tns(path, x)
    return read_tns(path)


def _save_slabs(path, x):
    save_slabs(path, x)
    return open_slabs(path)


@pytest.mark.parametrize("copy", [_save, _write_tns, _save_slabs])
def test_changed_coords_are_written(coo, copy, tmp_path):
    as_flycoo(coo)
    coo.coords[0] = 29 - coo.coords[0]
    written = copy(tmp_path / "x.npz", coo)
    np.testing.assert_array_equal(written.to_coo().todense(), coo.todense())


def test_a_bad_change_is_an_error_and_can_be_undone(coo):
    mttkrp(coo, PROBLEM.factors, 0)
    value = coo.data[5]
    coo.data[5] = np.nan
    with pytest.raises(ValueError, match=r"values\[5\] is nan"):
        mttkrp(coo, PROBLEM.factors, 0)
    coo.data[5] = value
    PROBLEM.check(mttkrp(coo, PROBLEM.factors, 0), 0)


def test_a_change_of_device_is_noticed(coo, monkeypatch):
    """An unknown device is an error even if a plan exists."""
    as_flycoo(coo)
    monkeypatch.setattr(engines, "_chosen_device", None)
    monkeypatch.setenv("TENSORLY_FLYCOO_DEVICE", "nonsense")
    with pytest.raises(ValueError, match="TENSORLY_FLYCOO_DEVICE is 'nonsense'"):
        as_flycoo(coo)


def test_forgotten_when_the_coo_dies(coo):
    gc.collect()
    num_plans = len(coo_cache._cached_coos)
    other = coo.copy()
    as_flycoo(other)
    assert len(coo_cache._cached_coos) == num_plans + 1
    other.data[0] = 7
    as_flycoo(other)  # rebuilt: the old plan must neither stay nor take the new one with it
    assert len(coo_cache._cached_coos) == num_plans + 1
    del other
    gc.collect()
    assert len(coo_cache._cached_coos) == num_plans


def test_many_short_lived_coos(coo):
    """Python reuses the ids of dead objects."""
    factors = make_factors((3, 3), 3)
    for k in range(200):
        short_lived = sparse.COO([[k % 3], [0]], [1.0 + k], (3, 3))
        result = mttkrp(short_lived, factors, 0)
        assert result[k % 3, 0] == (1.0 + k) * factors[1][0, 0]


def test_built_once_by_many_threads(coo, num_built):
    start, found = threading.Barrier(8), []

    def work():
        start.wait()
        found.append(as_flycoo(coo))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert num_built() == 1
    assert all(x is found[0] for x in found)


def test_two_threads_convert_two_coos_at_the_same_time(coo, monkeypatch):
    """Each waits, while it builds, until the other one builds too."""
    meeting, original = threading.Barrier(2, timeout=30), FlycooTensor.from_coo

    def meet(coo):
        meeting.wait()
        return original(coo)

    monkeypatch.setattr(FlycooTensor, "from_coo", meet)
    coos, found = [coo, coo.copy()], {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: as_flycoo(coos[n])})) for n in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(coos[0], found[0])
    check(coos[1], found[1])


def test_a_changed_fill_value_is_refused(coo):
    as_flycoo(coo)
    coo.fill_value = np.float64(1)
    with pytest.raises(ValueError, match="fill_value"):
        as_flycoo(coo)


def test_a_coo_that_cannot_be_built_is_not_remembered(coo, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(FlycooTensor, "from_coo", lambda coo: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            as_flycoo(coo)
    assert coo_cache._cached_coos[id(coo)].tensor is None
    check(coo, as_flycoo(coo))


def test_the_fingerprint_depends_on_every_word_of_many_blocks():
    words = np.arange(3 * 2**16 + 5, dtype=np.uint32)
    prints = {coo_cache._fingerprint(words)}
    for place in (0, 2**16 - 1, 2**16, 2**17, words.size - 1):
        changed = words.copy()
        changed[place] += 1
        prints.add(coo_cache._fingerprint(changed))
    prints.add(coo_cache._fingerprint(np.roll(words, 2**16)))
    assert len(prints) == 7


@pytest.mark.parametrize("kind", ["gcxs", "dok"])
def test_formats_that_are_built_each_time(coo, kind):
    x = coo.asformat(kind)
    assert is_raw_sparse(x)
    np.testing.assert_array_equal(as_flycoo(x).nonzeros()[1], as_flycoo(coo).nonzeros()[1])


def test_sparse_types(coo):
    x = PROBLEM.tensor()
    assert is_raw_sparse(coo)
    assert not is_raw_sparse(x)
    assert is_sparse(coo)
    assert is_sparse(x)
    for other in (np.eye(3), [[1.0]], None, sparse):
        assert not is_sparse(other)


# Sparse tensors of other libraries


class Tensor:
    """A stand-in for a sparse torch.Tensor."""

    layout = "torch.sparse_coo"


Tensor.__module__ = "torch"


@pytest.mark.parametrize("kind", ["csr_array", "coo_matrix", "dok_array"])
def test_scipy_sparse_is_named(kind):
    x = getattr(scipy.sparse, kind)((3, 4))
    assert find_converter(x) == "from_scipy"
    message = rf"x is a sparse scipy\.sparse\.{kind}, .*: pass FlycooTensor\.from_scipy\(x\)"
    with pytest.raises(TypeError, match=message):
        as_flycoo(x)


def test_torch_sparse_is_named():
    assert find_converter(Tensor()) == "from_torch"
    with pytest.raises(TypeError, match=r"sparse torch\.Tensor, .*FlycooTensor\.from_torch\(x\)"):
        as_flycoo(Tensor())


class BCOO:
    """A stand-in for a sparse array of JAX."""

    shape, indices, data = (3, 4), np.array([[0, 3], [2, 1]]), np.array([1.0, 2.0])


BCOO.__module__ = "jax.experimental.sparse.bcoo"


@pytest.mark.parametrize("use", [as_flycoo, lambda x: tl.decomposition.parafac(x, 2)])
def test_the_error_for_a_sparse_array_of_jax_says_what_converts_it(use):
    x = BCOO()
    with tl.backend_context("flycoo"), pytest.raises(TypeError, match="x is a BCOO") as caught:
        use(x)
    found = eval(str(caught.value).partition("pass ")[2], {"FlycooTensor": FlycooTensor, "x": x})
    np.testing.assert_array_equal(found.to_coo().todense()[[0, 2], [3, 1]], x.data)


def test_other_things_need_no_converter():
    operator = scipy.sparse.linalg.aslinearoperator(np.eye(2))
    for x in (np.ones(2), sparse.eye(2), operator, "csr", None):
        assert find_converter(x) is None
    with pytest.raises(
        TypeError, match=r"x is a ndarray, expected a FlycooTensor or a sparse\.COO$"
    ):
        as_flycoo(np.ones(2))
