"""Singular vectors of unfoldings of tensors in slabs, on one device and on NumPy "devices"."""

import contextlib

import numpy as np
import pytest
import tensorly as tl
from numpy_devices import NumpyDevices
from tensorly.decomposition import non_negative_parafac, parafac
from tensorly.tenalg.svd import svd_interface
from unfoldings import check_orthonormal

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.spread.slab_layout import SlabLayout
from tensorly_flycoo.svd import columns, eigen
from tensorly_flycoo.svd import gram as gram_module
from tensorly_flycoo.svd.gram import PieceGram, UnfoldingGram
from tensorly_flycoo.svd.nndsvd import make_left_vectors_non_negative
from tensorly_flycoo.svd.unfolding import Unfolding

EPS = np.finfo(np.float64).eps
COUNTS = (1, 2, 3, 5, 8)
LAYOUTS = pytest.mark.parametrize(
    "layout", ["remap", "indexed", pytest.param("replicated", marks=pytest.mark.slow)]
)


@pytest.fixture(autouse=True)
def never_merged(monkeypatch):
    """Fail if the records of all slabs are copied to one place."""

    def fail(*arguments):
        raise AssertionError("the slabs were merged")

    monkeypatch.setattr(SlabLayout, "hold_first_order", fail)


@pytest.fixture(params=["formed at once", "formed", "iterated", "iterated by parts"])
def path(request, monkeypatch):
    """Use each of the ways to the eigenvectors, whatever the size."""
    if request.param == "formed at once":
        return
    monkeypatch.setattr(gram_module, "is_cheap_to_form", lambda *sizes: False)
    monkeypatch.setattr(UnfoldingGram, "is_cheap_to_form", lambda gram: request.param == "formed")
    monkeypatch.setattr(eigen, "_MOST", 3)
    if request.param == "iterated by parts":
        monkeypatch.setattr(columns, "_COLUMNS_AT_ONCE", 20)


def make_nonzeros(shape, nnz, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    places = rng.choice(np.prod(shape), nnz, replace=False)
    return np.stack(np.unravel_index(places, shape)), rng.standard_normal(nnz).astype(dtype)


def unfold(coords, values, shape, mode):
    dense = np.zeros(shape)
    dense[tuple(coords)] = values
    return np.moveaxis(dense, mode, 0).reshape(shape[mode], -1)


def spread(coords, values, shape, count, monkeypatch, slabs=6, **options):
    """Build a tensor over `count` devices."""
    with monkeypatch.context() as patch:
        patch.setattr(CPU, "devices", NumpyDevices(count))
        return FlycooTensor(coords, values, shape, slabs=slabs, **options)


def check(x, mode, rank, matrix, tolerance=1e-7):
    left, values = Unfolding(x, mode).svd(rank)
    expected = np.linalg.svd(matrix, compute_uv=False)[:rank]
    check_orthonormal(left)
    assert np.abs(values**2 - expected**2).max() <= 4 * matrix.shape[1] * EPS * expected[0] ** 2
    norms = np.linalg.norm(left.T @ matrix, axis=1)
    assert np.abs(norms - expected).max() <= tolerance * expected[0]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("slabs", [2, 8])
@pytest.mark.parametrize("nnz", [20, 150, 1500])
@pytest.mark.parametrize("shape", [(30, 40, 12), (12, 10, 6, 25), (50, 60)])
def test_every_mode(shape, nnz, slabs):
    coords, values = make_nonzeros(shape, nnz)
    x = FlycooTensor(coords, values, shape, slabs=slabs)
    for mode in range(len(shape)):
        matrix = unfold(coords, values, shape, mode)
        assert not isinstance(Unfolding(x, mode).gram[0]._coupled, PieceGram)
        check(x, mode, 5, matrix)


@pytest.mark.parametrize("nnz", [20, 150, 1500])
def test_the_parts_are_those_of_one_piece(nnz):
    shape = (30, 40, 12)
    coords, values = make_nonzeros(shape, nnz)
    whole, x = (FlycooTensor(coords, values, shape, slabs=slabs) for slabs in (1, 4))
    for mode in range(3):
        (expected, _), (found, _) = (Unfolding(tensor, mode).gram for tensor in (whole, x))
        if isinstance(expected._coupled, PieceGram):  # as it is with lowered limits
            np.testing.assert_array_equal(found.rows, expected.rows)
            np.testing.assert_allclose(found.squares, expected.squares, rtol=4 * EPS)
            block = np.random.default_rng(0).standard_normal((found.size, 3))
            for method in ("multiply", "project"):
                a, b = (getattr(gram, method)(block) for gram in (found, expected))
                assert np.abs(a - b).max(initial=0) <= 1e3 * EPS * np.abs(b).max(initial=0)


@pytest.mark.usefixtures("path")
@LAYOUTS
@pytest.mark.parametrize("mode", range(3))
def test_bits_depend_on_the_number_of_slabs_only(mode, layout, monkeypatch):
    """Not on the devices, nor on what was computed before."""
    shape = (30, 40, 12)
    coords, values = make_nonzeros(shape, 600)
    results = set()
    for count in COUNTS:
        x = spread(coords, values, shape, count, monkeypatch, layout=layout)
        for _ in range(2):
            left, found = Unfolding(x, mode).svd(4)
            results.add((left.tobytes(), found.tobytes()))
            mttkrp(x, [np.ones((size, 2)) for size in shape], 0)
    one = FlycooTensor(coords, values, shape, slabs=6, layout=layout)
    left, found = Unfolding(one, mode).svd(4)
    assert results == {(left.tobytes(), found.tobytes())}


@pytest.mark.parametrize("shape", [(300, 3, 4), (3, 4, 300)])
def test_few_columns(shape, monkeypatch):
    """They are decomposed if they are fewer than the rows, as in one piece."""
    coords, values = make_nonzeros(shape, 2000)
    mode, results = int(np.argmax(shape)), set()
    matrix = unfold(coords, values, shape, mode)
    for count in COUNTS:
        x = spread(coords, values, shape, count, monkeypatch)
        assert Unfolding(x, mode).gram[0].transposed.record_format.shape == (12, 300)
        check(x, mode, 12, matrix)
        results.add(Unfolding(x, mode).svd(12)[0].tobytes())
    check(FlycooTensor(coords, values, shape, slabs=6), mode, 12, matrix)
    assert len(results) == 1


def test_few_columns_of_another_mode_than_the_cut_one():
    shape = (90, 100)
    coords, values = make_nonzeros((90, 5), 400)
    coords[1] *= 7
    x = FlycooTensor(coords, values, shape, slabs=4)
    assert Unfolding(x, 0).gram[0].transposed.record_format.shape == (5, 90)
    dense = np.zeros(shape)
    dense[tuple(coords)] = values
    check(x, 0, 5, dense)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_large_unfoldings_fall_short_by_less_than_the_bound(dtype, monkeypatch):
    monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
    monkeypatch.setattr(gram_module, "is_cheap_to_form", lambda *sizes: False)
    monkeypatch.setattr(gram_module, "MAX_GRAM_SIZE", 0)
    shape = (600, 40, 50)
    coords, values = make_nonzeros(shape, 6000, dtype=dtype)
    x = spread(coords, values, shape, 3, monkeypatch)
    for mode in (0, 2):
        matrix = unfold(coords, values, shape, mode)
        unfolding = Unfolding(x, mode)
        left, found = unfolding.svd(8)
        assert unfolding.gram[0].dtype == dtype
        check_orthonormal(left, dtype)
        shortfall = 1 - found**2 / np.linalg.svd(matrix, compute_uv=False)[:8] ** 2
        assert shortfall.max() <= 0.02
        assert shortfall.min() >= -100 * np.finfo(dtype).eps


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("mode", range(3))
def test_sketches_and_non_negative_vectors(mode, monkeypatch):
    shape = (60, 50, 70)
    coords, values = make_nonzeros(shape, 9000)
    x = spread(coords, values, shape, 3, monkeypatch)
    matrix = unfold(coords, values, shape, mode)
    with tl.backend_context("numpy"):
        left, known, _ = svd_interface(matrix, "randomized_svd", 8, random_state=3)
    unfolding = Unfolding(x, mode)
    found, found_values = unfolding.randomized_svd(8, np.random.RandomState(3))
    assert np.abs(found_values - known).max() <= 1e-12 * known[0]
    assert np.abs(found - left).max() <= 1e-10
    whole = Unfolding(FlycooTensor(coords, values, shape, slabs=1), mode)
    found, expected = (
        make_left_vectors_non_negative(matrix, left.copy(), known) for matrix in (unfolding, whole)
    )
    assert np.abs(found - expected).max() <= 1e-10


@pytest.mark.parametrize("nnz", [0, 1, 2])
@pytest.mark.parametrize("shape", [(9,), (9, 1), (4, 9, 3)])
def test_few_nonzeros(shape, nnz, monkeypatch):
    coords, values = make_nonzeros(shape, nnz)
    for count in (1, 3):
        x = spread(coords, values, shape, count, monkeypatch, slabs=4)
        for mode in range(len(shape)):
            unfolding = Unfolding(x, mode)
            left, found = unfolding.svd(min(unfolding.shape))
            check_orthonormal(left)
            matrix = unfold(coords, values, shape, mode)
            expected = np.linalg.svd(matrix, compute_uv=False)
            np.testing.assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("decompose", [parafac, non_negative_parafac])
@pytest.mark.parametrize("svd", ["truncated_svd", "randomized_svd"])
def test_starts_of_decompositions(decompose, svd, monkeypatch):
    shape = (30, 40, 12)
    coords, values = make_nonzeros(shape, 600)
    options = {"n_iter_max": 3, "init": "svd", "svd": svd, "random_state": 0}
    results = set()
    for count in COUNTS:
        x = spread(coords, np.abs(values), shape, count, monkeypatch)
        with tl.backend_context("flycoo"):
            found, errors = decompose(x, 3, return_errors=True, **options)
            results.add((float(errors[-1]), *(tl.to_numpy(f).tobytes() for f in found.factors)))
    assert len(results) == 1


def test_helpers_are_on_one_device_while_several_are_chosen(monkeypatch):
    """As after ``set_device("cuda", gpus=3)``."""
    shape = (30, 40, 12)
    coords, values = make_nonzeros(shape, 600)
    monkeypatch.setattr(CPU, "devices", NumpyDevices(3))
    x = FlycooTensor(coords, values, shape, slabs=6)
    for mode in range(3):
        check(x, mode, 4, unfold(coords, values, shape, mode))


@pytest.mark.parametrize("mode", range(3))
def test_slabs_that_are_streamed(mode, monkeypatch):
    """Their records are on the device while a slab's columns are found."""
    shape = (30, 40, 12)
    nonzeros = make_nonzeros(shape, 600)
    held = []

    class Stager:
        def put_aside(self, array, order=None):
            return array.copy()

        @contextlib.contextmanager
        def take(self, array, following):
            held.append(array)
            assert len(held) == 1
            try:
                yield array.copy()
            finally:
                held.pop()

    resident = FlycooTensor(*nonzeros, shape, slabs=5, layout="replicated")
    monkeypatch.setattr(CPU, "make_stager", Stager, raising=False)
    monkeypatch.setattr(CPU, "count_free_nbytes", lambda: 0)
    x = FlycooTensor(*nonzeros, shape, slabs=5, keep="host")
    assert x._layout.num_streamed == 5
    results = [Unfolding(tensor, mode).svd(4) for tensor in (x, resident)]
    for found, expected in zip(*results, strict=True):
        assert found.tobytes() == expected.tobytes()
