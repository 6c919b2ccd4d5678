"""The backend's seam with TensorLy: how it is chosen, what it leaves alone, what it accepts."""

import concurrent.futures
import os
import subprocess
import sys

import numpy as np
import pytest
import sparse
import tensorly as tl
from sparse_problems import BOTH_KINDS, densification_alarm, random_coo
from tensorly.decomposition import parafac

import tensorly_flycoo

_SHAPE = (9, 8, 10)

_OPTIONS = {"rank": 3, "init": "random", "random_state": 0, "n_iter_max": 8, "tol": 0}


def _decompose(x, **options):
    """Return parafac's weights, factors and errors as one list of arrays."""
    cp_tensor, errors = parafac(x, return_errors=True, **_OPTIONS | options)
    return [np.array(errors), cp_tensor.weights, *cp_tensor.factors]


def _check_same_bits(first, second):
    for array, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(array, other)


def _run_python(code, **variables):
    """Run `code` in a new process, with warnings as errors, and return its output."""
    environment = {name: text for name, text in os.environ.items() if "TENSORLY" not in name}
    finished = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        env=environment | variables,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


# How the backend is chosen

_DECOMPOSE_SPARSE = """
import sparse
x = sparse.random((9, 8, 10), nnz=100, random_state=0)
cp_tensor = tl.decomposition.parafac(x, 2, init="random", random_state=0, n_iter_max=3)
print(tl.get_backend(), *(factor.shape[0] for factor in cp_tensor.factors))
"""


_IMPORT_TENSORLY_FIRST = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import tensorly as tl
print(any("TENSORLY_BACKEND" in str(warning.message) for warning in caught))
print(tl.get_backend())
import tensorly_flycoo
"""


def test_the_environment_chooses_the_backend_with_the_plugin_first():
    code = "import tensorly_flycoo, os, tensorly as tl" + _DECOMPOSE_SPARSE
    code += "print(os.environ['TENSORLY_BACKEND'])"
    printed = _run_python(code, TENSORLY_BACKEND="flycoo")
    assert printed == ["flycoo", "9", "8", "10", "flycoo"]


def test_the_environment_chooses_the_backend_with_tensorly_first():
    # TensorLy warns, because it does not know the plugin yet.
    code = _IMPORT_TENSORLY_FIRST + _DECOMPOSE_SPARSE
    code += "import os; print(os.environ['TENSORLY_BACKEND'])"
    printed = _run_python(code, TENSORLY_BACKEND="flycoo")
    assert printed == ["True", "numpy", "flycoo", "9", "8", "10", "flycoo"]


def test_the_backend_holds_for_all_threads():
    coo = random_coo(_SHAPE, 100)
    with tl.backend_context("flycoo"), concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(tl.get_backend).result() == "flycoo"
        _check_same_bits(pool.submit(_decompose, coo).result(), _decompose(coo))


def test_the_context_may_be_for_one_thread():
    coo = random_coo(_SHAPE, 100)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with tl.backend_context("flycoo", local_threadsafe=True):
            assert tl.get_backend() == "flycoo"
            assert pool.submit(tl.get_backend).result() == "numpy"
            result = _decompose(coo)
        with tl.backend_context("flycoo"):
            _check_same_bits(_decompose(coo), result)
    assert tl.get_backend() == "numpy"


def test_the_context_restores_the_backend():
    before = tl.get_backend()
    with tl.backend_context("flycoo"):
        assert tl.get_backend() == "flycoo"
        with tl.backend_context("numpy"):
            assert tl.get_backend() == "numpy"
        assert tl.get_backend() == "flycoo"
    assert tl.get_backend() == before


def test_the_context_restores_the_backend_after_an_exception():
    before = tl.get_backend()
    with pytest.raises(tensorly_flycoo.DensifyError), tl.backend_context("flycoo"):
        tl.to_numpy(random_coo(_SHAPE, 10))
    assert tl.get_backend() == before


# What it leaves alone

_DECOMPOSE_DENSE = """
import hashlib, numpy as np, tensorly as tl
from tensorly.decomposition import CP, non_negative_parafac, parafac, tucker
x = np.random.RandomState(0).random_sample((9, 8, 10))
np.random.seed(0)  # up to TensorLy 0.9 a random sketch takes no seed of its own
options = {"n_iter_max": 12, "tol": 0, "random_state": 0}
keep, results = [], []
for algebra in ("core", "einsum"):
    tl.tenalg.set_backend(algebra)
    results += [
        parafac(x, 3, init="svd", **options),
        parafac(x, 3, init="svd", svd="randomized_svd", **options),
        parafac(x, 3, init="random", linesearch=True, return_errors=True, **options)[0],
        parafac(x, 3, init="random", mask=np.ones_like(x), **options),
        parafac(x, 3, init="random", sparsity=0.1, **options)[0],
        parafac(x, 3, init="random", normalize_factors=True, return_errors=True,
                callback=lambda cp, error: keep.append(cp[1][0].copy()), **options)[0],
        CP(3, init="random", orthogonalise=True, **options).fit_transform(x),
        non_negative_parafac(x, 3, init="random", **options),
        tucker(x, [2, 3, 2], **options),
    ]
for weights, factors in results:
    for array in (weights, *factors):
        print(hashlib.sha256(np.ascontiguousarray(array)).hexdigest())
for array in keep:
    print(hashlib.sha256(np.ascontiguousarray(array)).hexdigest())
"""


def test_dense_decompositions_under_numpy_have_the_same_bits_without_the_plugin():
    without = _run_python(_DECOMPOSE_DENSE, OPENBLAS_NUM_THREADS="1")
    code = "import tensorly_flycoo" + _DECOMPOSE_DENSE
    with_plugin = _run_python(code, OPENBLAS_NUM_THREADS="1")
    assert len(without) > 60
    assert with_plugin == without


def test_a_sparse_tensor_under_numpy_is_left_to_tensorly():
    # Under numpy, TensorLy multiplies the unfolding of a COO with the dense Khatri-Rao product.
    coo = random_coo(_SHAPE, 100)
    with tl.backend_context("numpy"):
        assert not tl.is_tensor(tensorly_flycoo.FlycooTensor.from_coo(coo))
        assert tl.unfold(coo, 1).shape == (8, 90)


def test_dense_tensors_give_the_same_under_flycoo_as_under_numpy():
    dense = np.random.RandomState(0).random_sample(_SHAPE)
    results = []
    for backend in ("numpy", "flycoo"):
        with tl.backend_context(backend):
            results.append(_decompose(dense, init="svd"))
    # Under flycoo, `solve` is not NumPy's: eight steps, with Gram matrices of condition below 1e3.
    for array, other in zip(*results, strict=True):
        np.testing.assert_allclose(array, other, rtol=8 * 1e3 * 100 * np.finfo(float).eps)


# What it accepts


def _change_one_value(coo):
    coo.data[7] += 1


def _double_all_values(coo):
    coo.data *= 2


def _negate_all_values(coo):
    coo.data *= -1


def _negate_two_values(coo):
    coo.data[[3, 70]] *= -1


def _swap_two_values(coo):
    coo.data[[0, 2048]] = coo.data[[2048, 0]]


def _reverse_the_values(coo):
    coo.data[:] = coo.data[::-1].copy()


def _replace_the_values(coo):
    coo.data = coo.data + 1


def _change_one_coordinate(coo):
    coo.coords[0, -1] -= 1


def _mirror_a_mode(coo):
    coo.coords[1] = coo.shape[1] - 1 - coo.coords[1]


def _replace_the_coordinates(coo):
    coo.coords = coo.shape[0] - 1 - coo.coords


_CHANGES = [
    _change_one_value, _double_all_values, _negate_all_values, _negate_two_values,
    _swap_two_values, _reverse_the_values, _replace_the_values, _change_one_coordinate,
    _mirror_a_mode, _replace_the_coordinates,
]  # fmt: skip


@pytest.mark.parametrize("init", ["random", "svd"])
@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_changed_coo_is_decomposed_anew(change, init, flycoo_backend):
    # 4096 values that are powers of two: their bits have so much in common that a fingerprint
    # that is only a weighted sum would miss many changes.
    coo = random_coo((20, 20, 20), 4096, seed=1)
    coo.data[:] = 2.0 ** (np.arange(coo.nnz) % 5 + np.arange(coo.nnz) // 2048)
    before = _decompose(coo, init=init)
    change(coo)
    after = _decompose(coo, init=init)
    fresh = sparse.COO(coo.coords.copy(), coo.data.copy(), shape=coo.shape, sorted=True)
    assert any((old != new).any() for old, new in zip(before, after, strict=True))
    _check_same_bits(after, _decompose(fresh, init=init))


def test_many_coos_come_and_go(flycoo_backend):
    # A new COO may get the address of a freed one.
    for seed in range(20):
        coo = random_coo(_SHAPE, 50 + seed % 3, seed=seed)
        expected = _decompose(tensorly_flycoo.FlycooTensor.from_coo(coo))
        _check_same_bits(_decompose(coo), expected)
        del coo


@pytest.mark.parametrize("name", ["gcxs", "dok"])
@pytest.mark.parametrize("init", ["random", "svd"])
def test_other_formats_of_pydata_sparse_work(init, name, flycoo_backend):
    coo = random_coo(_SHAPE, 100)
    other = coo.asformat(name)
    assert type(other) is not sparse.COO
    with densification_alarm():
        _check_same_bits(_decompose(other, init=init), _decompose(coo, init=init))
        _check_same_bits(_decompose(tl.tensor(other), init=init), _decompose(coo, init=init))


def test_the_order_of_nonzeros_and_duplicates_do_not_matter(flycoo_backend):
    coo = random_coo(_SHAPE, 100)
    shuffled = np.random.RandomState(1).permutation(100)
    coords = np.concatenate([coo.coords[:, shuffled], coo.coords], axis=1)
    values = np.concatenate([coo.data[shuffled], coo.data]) / 2  # halves add up exactly
    x = tensorly_flycoo.FlycooTensor(coords, values, _SHAPE)
    _check_same_bits(_decompose(x), _decompose(coo))


@BOTH_KINDS
@pytest.mark.parametrize("init", ["random", "svd"])
def test_four_threads_on_one_tensor_get_the_same_bits_as_one(init, kind, flycoo_backend):
    # Enough nonzeros for several tiles; a rank for each thread, so that launches interleave.
    x = kind(random_coo((40, 50, 60), 9000, seed=2))
    ranks = [2, 3, 4, 5]
    alone = [_decompose(x, rank=rank, init=init) for rank in ranks]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            runs = [pool.submit(_decompose, x, rank=rank, init=init) for rank in ranks]
            for run, expected in zip(runs, alone, strict=True):
                _check_same_bits(run.result(), expected)


def test_decomposing_does_not_change_the_tensor(flycoo_backend):
    x = tensorly_flycoo.FlycooTensor.from_coo(random_coo(_SHAPE, 100), layout="remap")
    before = x.nonzeros()
    first = _decompose(x)
    _decompose(x, fixed_modes=[1])  # leaves the remapping at another mode
    _check_same_bits(x.nonzeros(), before)
    _check_same_bits(_decompose(x), first)
