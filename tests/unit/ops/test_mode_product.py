"""Lazy products of a sparse tensor with factors, against einsum on small dense ones."""

import numpy as np
import pytest
import sparse
from problems import make_factors

from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.linalg import leading_pairs
from tensorly_flycoo.ops import ttmc
from tensorly_flycoo.ops.mode_product import ModeProduct
from tensorly_flycoo.ops.ttmc import merge_modes

EPS = np.finfo(np.float64).eps
RANKS = (3, 4, 3, 4)


def make_dense(shape, density=0.6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * (rng.random(shape) < density)


def make_product(dense, modes, dtype="float64"):
    x = FlycooTensor.from_coo(sparse.COO.from_numpy(dense), dtype=dtype)
    ranks = RANKS[: dense.ndim]
    rng = np.random.default_rng(2)
    factors = [rng.standard_normal(size) for size in zip(dense.shape, ranks, strict=True)]
    return ModeProduct(x, {n: factors[n].astype(dtype) for n in modes})


def multiply(dense, product):
    """Compute the product by NumPy."""
    for n, factor in product.factors.items():
        dense = np.moveaxis(np.tensordot(dense, factor, (n, 0)), -1, n)
    return dense


def check_array(array, dense, product, dtype="float64"):
    expected = multiply(dense, product)
    magnitude = multiply(np.abs(dense), ModeProduct(product.tensor, abs_factors(product)))
    assert array.shape == product.shape
    assert array.dtype == dtype
    bound = (dense.size + dense.ndim) * float(np.finfo(dtype).eps) * magnitude
    assert (np.abs(array - expected) <= bound).all()


def abs_factors(product):
    return {n: np.abs(factor) for n, factor in product.factors.items()}


@pytest.mark.parametrize("modes", [(0,), (2, 1), (0, 1, 2), (1, 3), (0, 1, 2, 3), (0, 3, 1)])
def test_to_array(modes):
    """With one mode left out, with several, and with none."""
    dense = make_dense((5, 3, 4, 6))
    product = make_product(dense, modes)
    assert product.free_modes == [n for n in range(4) if n not in modes]
    check_array(product.to_array(), dense, product)


@pytest.mark.parametrize("modes", [(1,), (0, 2), (0, 1, 2)])
def test_to_array_in_single_precision(modes):
    dense = make_dense((5, 3, 4)).astype(np.float32).astype(np.float64)
    product = make_product(dense, modes, "float32")
    check_array(product.to_array(), dense, product, "float32")


@pytest.mark.parametrize("modes", [(0,), (0, 1)])
def test_one_mode_and_two(modes):
    dense = make_dense((5, 3)[: len(modes)])
    product = make_product(dense, modes)
    check_array(product.to_array(), dense, product)


def test_empty_rows_are_zeros():
    dense = make_dense((50, 40, 30), density=0.0003)
    for modes in ((0, 1), (1, 2), (0, 1, 2)):
        product = make_product(dense, modes)
        check_array(product.to_array(), dense, product)


@pytest.mark.parametrize("modes", [(0, 1), (0, 1, 2), (0,)])
def test_norm(modes):
    dense = make_dense((5, 3, 4), density=0.9)
    product = make_product(dense, modes)
    np.testing.assert_allclose(product.norm(), np.linalg.norm(multiply(dense, product)))


@pytest.fixture(params=["direct", "Lanczos on the Gram matrix", "Lanczos"])
def path(request, monkeypatch):
    """Go each of the three ways, whatever the size."""
    if request.param != "direct":
        monkeypatch.setattr(leading_pairs, "MAX_DIRECT_SIZE", 0)
        monkeypatch.setattr(leading_pairs, "_MOST", 1)
    if request.param == "Lanczos":
        monkeypatch.setattr(ttmc._Matrix, "max_gram_size", 0)
        monkeypatch.setattr(ttmc._Operator, "max_gram_size", 0)
    monkeypatch.setattr(ttmc, "_BLOCK_SIZE", 40)  # several blocks


def check_svd(product, dense, mode, rank, dtype="float64"):
    """Hold values and the span of the vectors against NumPy's, as for `Unfolding`."""
    matrix = np.moveaxis(multiply(dense, product), mode, 0).reshape(dense.shape[mode], -1)
    unfolding = product.unfold(mode)
    assert (unfolding.shape, unfolding.dtype) == (matrix.shape, dtype)
    left, values = unfolding.svd(rank)
    vectors, expected, _ = np.linalg.svd(matrix, full_matrices=False)
    eps = float(np.finfo(dtype).eps)
    rounding = 16 * max(matrix.shape) * eps * expected[0] ** 2
    assert (np.abs(values**2 - expected[:rank] ** 2) <= rounding).all()
    np.testing.assert_allclose(left.T @ left, np.eye(rank), atol=16 * len(left) * eps)
    squares = np.append(expected, 0) ** 2
    rest = left - vectors[:, :rank] @ (vectors[:, :rank].T @ left)
    assert np.linalg.norm(rest, 2) <= rounding / (squares[rank - 1] - squares[rank])
    assert (left[np.abs(matrix).sum(axis=1) == 0] == 0).all()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("modes", [(1, 2, 3), (1, 3), (2,)])
@pytest.mark.parametrize("shape", [(9, 7, 8, 5), (90, 3, 4, 5)], ids=["wide", "tall"])
def test_svd_of_an_unfolding(shape, modes):
    """With no mode left out, with one and with two."""
    dense = make_dense(shape)
    dense[3] = 0
    check_svd(make_product(dense, modes), dense, 0, rank=2)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("mode", range(3))
def test_svd_along_every_mode(mode):
    dense = make_dense((9, 7, 8))
    others = [n for n in range(3) if n != mode]
    for modes in (others, others[:1], others[1:]):
        check_svd(make_product(dense, modes), dense, mode, rank=2)


@pytest.mark.parametrize("modes", [(1, 2), (1,)])
def test_svd_in_single_precision(modes):
    dense = make_dense((9, 7, 8)).astype(np.float32).astype(np.float64)
    check_svd(make_product(dense, modes, "float32"), dense, 0, 2, "float32")


@pytest.mark.parametrize("modes", [(1, 2), (1,)])
@pytest.mark.parametrize("nnz", [0, 1])
def test_svd_of_next_to_nothing(nnz, modes):
    dense = np.zeros((9, 7, 8))
    dense.flat[:nnz] = 3.0
    left, values = make_product(dense, modes).unfold(0).svd(4)
    np.testing.assert_allclose(left.T @ left, np.eye(4), atol=1e-14)
    assert np.count_nonzero(values) == nnz


def test_only_a_mode_without_a_factor_is_unfolded():
    with pytest.raises(ValueError, match="1 is not in list"):
        make_product(make_dense((4, 5, 6)), (1, 2)).unfold(1)


def test_more_than_2_to_63_cells():
    """Modes with more cells than nonzeros are not left out of an array; all else works."""
    coords = [[0, 1, 2, 2], [0, 2**10, 0, 1], [7, 7, 7, 7], [3, 3, 3, 2**20]]
    shape = (5, 2**21, 2**21, 2**21)
    x = FlycooTensor(coords, [3.0, 4.0, 5.0, 6.0], shape)
    factors = dict(enumerate(make_factors(shape, 1)))
    core = ModeProduct(x, factors).to_array()
    rows = [factors[n][coords[n], 0] for n in range(4)]
    np.testing.assert_allclose(core.ravel(), np.prod(rows, axis=0) @ [3.0, 4.0, 5.0, 6.0])
    left, _ = ModeProduct(x, {n: factors[n] for n in (1, 2)}).unfold(0).svd(1)
    assert left.shape == (5, 1)
    product = ModeProduct(x, {3: factors[3]})
    for use in (product.to_array, lambda: product.unfold(0).svd(1)):
        with pytest.raises(DensifyError, match=r"all modes but .*1 and 2 would make"):
            use()


def test_modes_are_merged_once_for_each_tensor():
    dense = make_dense((3, 4, 5, 2))
    x = make_product(dense, ()).tensor
    merged, mode, places = merge_modes(x, (1, 3), np.float64)
    expected = dense.transpose(1, 3, 0, 2).reshape(8, 3, 5)
    np.testing.assert_array_equal(merged.to_coo().todense(), expected)
    assert (mode, places) == (0, {0: 1, 2: 2})
    assert merge_modes(x, (1, 3), np.float64)[0] is merged
    assert merge_modes(x, (1, 3), np.float32)[0].dtype == np.float32
    assert merge_modes(x, (2,), np.float64) == (x, 2, {0: 0, 1: 1, 3: 3})


@pytest.mark.parametrize(
    ("factor", "error", "message"),
    [
        (np.ones((4, 2)), ValueError, r"factor of mode 1 has shape \(4, 2\), expected \(5, rank\)"),
        (np.ones(5), ValueError, r"has shape \(5,\), expected \(5, rank\)"),
        (np.ones((5, 0)), ValueError, r"has shape \(5, 0\)"),
        (np.ones((5, 2), np.float32), TypeError, "has dtype float32, expected float64"),
        ([[1.0]] * 5, TypeError, "is a builtins.list, expected a numpy.ndarray"),
    ],
)
def test_bad_factors(factor, error, message):
    x = make_product(make_dense((4, 5, 6)), ()).tensor
    with pytest.raises(error, match=message):
        ModeProduct(x, {1: factor})


def test_it_is_never_formed_by_accident():
    product = make_product(make_dense((4, 5, 6)), (1, 2))
    for use in (np.asarray, np.exp, lambda x: np.ones(6) * x):
        with pytest.raises(DensifyError, match=r"ModeProduct of shape \(4, 4, 3\)"):
            use(product)
    assert (product.shape, product.ndim, product.dtype) == ((4, 4, 3), 3, np.float64)
    with pytest.raises(DensifyError, match="ProductUnfolding: mode 0 of <ModeProduct"):
        np.asarray(product.unfold(0))
