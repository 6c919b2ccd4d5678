"""A sparse tensor minus a CP model against dense NumPy, with bounds on the error."""

import copy
import pickle

import numpy as np
import pytest
from numpy_devices import NumpyDevices
from problems import make_problem
from tensorly.cp_tensor import CPTensor
from tensorly.tucker_tensor import TuckerTensor
from threadpoolctl import threadpool_limits

from tensorly_flycoo import DensifyError, FlycooTensor, LabelledTensor, ResidualTensor, center
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.ops import residual as residual_module

SHAPE = (5, 6, 7)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
LAYOUTS = ("remap", "replicated", "indexed")


def make_model(dtype="float64", rank=3, seed=0, shape=SHAPE):
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((size, rank)).astype(dtype) for size in shape]
    return CPTensor((rng.standard_normal(rank).astype(dtype), factors))


def make_tensor(dtype="float64", seed=0, **options):
    return make_problem(SHAPE, 60, dtype=dtype, seed=seed).tensor(**options)


def form(x):
    """Form a tensor or a model in float64, and a bound of the sums of magnitudes in it."""
    if isinstance(x, FlycooTensor):
        dense = x.to_coo().todense().astype(float)
        return dense, np.abs(dense)
    if isinstance(x, CPTensor):
        terms = [np.asarray(array, float) for array in (x.weights, *x.factors)]
        return (np.einsum("r,ar,br,cr", *arrays) for arrays in (terms, map(np.abs, terms)))
    (tensor, most), (model, most_of_model) = form(x.tensor), form(CPTensor((x.weights, x.factors)))
    return tensor - model, most + most_of_model


def check(found, compute, *operands, dtype):
    """Compare with a function of dense arrays; so many roundings as in the tests of contractions.

    The terms of the tensor and of the model are added in magnitude: their difference may cancel.
    """
    values, magnitudes = zip(*map(form_operand, operands), strict=True)
    count = np.prod(SHAPE) + 12  # of the longest sum, and the products and sums in each term
    assert found.dtype == dtype
    error = np.abs(found - compute(*values))
    assert (error <= count * np.finfo(dtype).eps * compute(*magnitudes)).all()


def form_operand(operand):
    if isinstance(operand, np.ndarray):
        return operand.astype(float), np.abs(operand.astype(float))
    return form(operand)


@DTYPES
@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_mttkrp(mode, has_weights, dtype):
    residual = make_tensor(dtype) - make_model(dtype)
    weights, factors = make_model(dtype, rank=4, seed=1)
    if not has_weights:
        weights = np.ones_like(weights)
    found = residual.mttkrp(factors, mode, weights if has_weights else None)
    letters = "abc"
    names = ",".join(f"{letter}r" for letter in letters.replace(letters[mode], ""))
    others = [factor for n, factor in enumerate(factors) if n != mode]

    def compute(*arrays):
        return np.einsum(f"abc,r,{names}->{letters[mode]}r", *arrays)

    check(found, compute, residual, weights, *others, dtype=dtype)


@DTYPES
def test_norm_and_inner_products(dtype):
    x, y = make_tensor(dtype), make_tensor(dtype, seed=3)
    model = make_model(dtype)
    residual = x - model
    dense, magnitude = form(residual)
    square_error = abs(float(residual.norm()) ** 2 - (dense**2).sum())
    # The norm itself is rounded to the dtype.
    bound = np.prod(SHAPE) + 12
    eps = np.finfo(float).eps
    allowed = bound * eps * (magnitude**2).sum() + 4 * np.finfo(dtype).eps * (dense**2).sum()
    assert square_error <= allowed
    for other in (y, make_model(dtype, rank=2, seed=2), y - make_model(dtype, seed=4), residual):
        check(residual.inner(other), lambda a, b: (a * b).sum(), residual, other, dtype=dtype)
    check(residual.inner(y.to_coo()), lambda a, b: (a * b).sum(), residual, y, dtype=dtype)


@DTYPES
def test_the_norm_of_nothing_is_rounding(dtype):
    model = CPTensor((None, [np.arange(1, size + 1, dtype=dtype)[:, None] for size in SHAPE]))
    residual = FlycooTensor.from_dense(np.einsum("ar,br,cr->abc", *model.factors)) - model
    assert residual.norm() <= 1e-7 * residual.tensor.norm()
    np.testing.assert_array_equal(residual.entries(np.indices(SHAPE).reshape(3, -1)), 0)


@DTYPES
def test_entries(dtype):
    residual = make_tensor(dtype) - make_model(dtype)
    cells = np.indices(SHAPE).reshape(3, -1)
    coords = np.concatenate([cells[:, ::-1], cells[:, :20]], axis=1)
    check(residual.entries(coords), lambda a: a[tuple(coords)], residual, dtype=dtype)
    with pytest.raises(ValueError, match="is 9"):
        residual.entries([[9], [0], [0]])


def test_entries_without_nonzeros():
    x = FlycooTensor(np.zeros((3, 0), int), np.zeros(0), SHAPE)
    model = make_model()
    found = (x - model).entries([[1], [2], [3]])
    check(found, lambda dense: dense[[1], [2], [3]], x - model, dtype="float64")


@DTYPES
@pytest.mark.parametrize("modes", [[0], [1], [-1], [2, 0], [1, 2], [0, 1, 2]], ids=str)
def test_vectors(modes, dtype):
    residual = make_tensor(dtype) - make_model(dtype)
    rng = np.random.default_rng(1)
    vectors = [rng.standard_normal(SHAPE[mode]).astype(dtype) for mode in modes]
    found = residual.contract(dict(zip(modes, vectors, strict=True)))
    names = ["abc"[mode] for mode in modes]
    kept = "".join(letter for letter in "abc" if letter not in names)

    def compute(*arrays):
        return np.einsum(f"abc,{','.join(names)}->{kept}", *arrays)

    if len(kept) == 2:
        assert isinstance(found, ResidualTensor)
        shape = found.shape
        found = found.entries(np.indices(shape).reshape(2, -1)).reshape(shape)
    check(found, compute, residual, *vectors, dtype=dtype)


@DTYPES
def test_models_are_subtracted_one_after_the_other(dtype):
    x = make_tensor(dtype)
    first, second = make_model(dtype), make_model(dtype, rank=1, seed=2)
    residual = x - first - second
    assert residual.weights.size == 4
    cells = np.indices(SHAPE).reshape(3, -1)
    check(residual.entries(cells), lambda a: a.reshape(-1), residual, dtype=dtype)


@DTYPES
@pytest.mark.parametrize("axis", [None, (1, 2), (0, -1), [0, 1]], ids=str)
def test_center(axis, dtype):
    x = make_tensor(dtype)
    centred = center(x, axis)
    check_centred(centred, form(x)[0], axis, dtype)


def check_centred(centred, dense, axis, dtype):
    expected = dense - dense.mean(axis=axis if axis is None else tuple(axis), keepdims=True)
    found = centred.entries(np.indices(dense.shape).reshape(dense.ndim, -1))
    eps = np.finfo(dtype).eps
    bound = (dense.size + 12) * eps * np.abs(dense).max()
    assert np.abs(found - expected.reshape(-1)).max() <= bound
    return expected


def test_center_again():
    x = make_tensor()
    expected = check_centred(center(x, (1, 2)), form(x)[0], (1, 2), "float64")
    check_centred(center(center(x, (1, 2)), (0, 2)), expected, (0, 2), "float64")


def test_center_a_matrix_and_names():
    dense = np.arange(12.0).reshape(3, 4)
    x = LabelledTensor(FlycooTensor.from_dense(dense), {"row": [*"abc"], "column": [*"defg"]})
    check_centred(center(x, "row"), dense, (0,), "float64")
    check_centred(center(x.tensor.to_coo(), 1), dense, (1,), "float64")


def test_unknown_cells_are_no_zeros():
    x = FlycooTensor.from_dense(np.eye(3))
    labelled = LabelledTensor(x, [[0, 1, 2]] * 2, "all")
    with pytest.raises(ValueError, match="unknown"):
        center(labelled, 0)
    with pytest.raises(ValueError, match="unknown"):
        labelled - make_model(shape=(3, 3))


@DTYPES
def test_the_same_bits_in_every_layout(dtype, monkeypatch):
    monkeypatch.setattr(residual_module, "_BLOCK_SIZE", 16)
    model, other = make_model(dtype), make_model(dtype, seed=1)
    results = []
    for layout in LAYOUTS:
        x = make_tensor(dtype, layout=layout)
        residual = x - model
        products = [residual.mttkrp(other.factors, mode) for mode in (0, 1, 2)]
        vectors = {0: other.factors[0][:, 0], 2: other.factors[2][:, 0]}
        numbers = residual.norm(), residual.inner(other), residual.inner(x)
        results.append([*products, *numbers, residual.contract(vectors)])
    for found in results[1:]:
        for array, first in zip(found, results[0], strict=True):
            np.testing.assert_array_equal(array, first)


@pytest.mark.parametrize("rank", [1, 3])
def test_the_same_bits_on_any_number_of_blas_threads(rank):
    shape = (40_000, 3)  # from 10,000 rows on OpenBLAS shares an inner product among threads
    x = FlycooTensor([[0, 39_999], [1, 2]], [3.0, 4.0], shape)
    residual = x - make_model(rank=rank, shape=shape)
    factors = make_model(rank=1, seed=1, shape=shape).factors
    found = []
    for num_threads in (1, 2):
        with threadpool_limits(num_threads):
            numbers = residual.contract({0: factors[0][:, 0]}), residual.mttkrp(factors, 1)
        found.append(np.concatenate([numbers[0], numbers[1][:, 0]]))
    np.testing.assert_array_equal(*found)


def test_several_slabs():
    x = make_tensor(slabs=3)
    model = make_model()
    expected = make_tensor() - model
    check((x - model).inner(x), lambda a, b: (a * b).sum(), expected, x, dtype="float64")


def test_it_travels():
    residual = make_tensor() - make_model()
    for twin in (
        copy.copy(residual),
        copy.deepcopy(residual),
        pickle.loads(pickle.dumps(residual)),
    ):
        assert twin.norm() == residual.norm()


def test_models_in_another_precision_are_converted():
    residual = make_tensor("float32") - make_model("float64")
    assert residual.weights.dtype == residual.factors[0].dtype == residual.dtype == np.float32


def test_refusals():
    x = make_tensor()
    residual = x - make_model()
    with pytest.raises(ValueError, match="a Tucker model"):
        x - TuckerTensor((np.ones((1, 1, 1)), [np.ones((size, 1)) for size in SHAPE]))
    with pytest.raises(ValueError, match="factors"):
        x - make_model(shape=(5, 6, 8))
    with pytest.raises(DensifyError, match="leave at most one mode"):
        center(x, 0)
    with pytest.raises(TypeError, match="ndarray"):
        center(np.ones((3, 3)), 0)
    dense = np.ones(SHAPE)
    for operation in (
        lambda: residual * 2,
        lambda: residual - dense,
        lambda: dense - residual,
        lambda: residual - x,
        lambda: np.sum(residual),
        lambda: np.asarray(residual),
    ):
        with pytest.raises(DensifyError, match=r"entries\(coords\)"):
            operation()


@DTYPES
def test_several_devices(dtype, monkeypatch):
    monkeypatch.setattr(CPU, "devices", NumpyDevices(2))
    x = make_tensor(dtype, slabs=4)
    monkeypatch.undo()
    residual = x - make_model(dtype)
    on_one = make_tensor(dtype) - make_model(dtype)
    other = make_model(dtype, rank=1, seed=1)
    vectors = {0: other.factors[0][:, 0], 2: other.factors[2][:, 0]}
    # Sums have at most as many terms as there are cells, each at most 10 times the norm.
    atol = 10 * np.prod(SHAPE) * np.finfo(dtype).eps * float(on_one.norm())
    for found, expected in (
        (residual.mttkrp(other.factors, 1), on_one.mttkrp(other.factors, 1)),
        (residual.norm(), on_one.norm()),
        (residual.inner(other), on_one.inner(other)),
        (residual.contract(vectors), on_one.contract(vectors)),
        (residual.entries([[1], [2], [3]]), on_one.entries([[1], [2], [3]])),
        (center(x).norm(), center(on_one.tensor).norm()),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
