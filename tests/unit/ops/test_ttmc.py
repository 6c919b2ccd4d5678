"""TTMc of nonempty rows, and singular vectors of products, against NumPy's."""

import numpy as np
import pytest
from mode_products import make_dense, make_product, multiply
from problems import make_problem

from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.format.layout import Layout
from tensorly_flycoo.ops import ttmc
from tensorly_flycoo.ops.mode_product import ModeProduct, ProductUnfolding
from tensorly_flycoo.ops.ttmc import (
    check_free_modes,
    count_nonempty_rows,
    find_nonempty_rows,
    merge_modes,
    multiply_nonempty_rows,
    separate_modes,
)
from tensorly_flycoo.svd import eigen


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("nnz", [0, 1, 40])
def test_some_rows_are_empty(nnz, layout):
    problem = make_problem((50, 60, 7), nnz)
    x = problem.tensor(layout=layout)
    for mode in range(2):
        expected = np.unique(problem.coords[mode])
        assert count_nonempty_rows(x, mode) == expected.size
        numbers, slots = find_nonempty_rows(x, mode)
        np.testing.assert_array_equal(numbers, expected)
        np.testing.assert_array_equal(slots[numbers], np.arange(expected.size))
        assert slots.shape == (x.shape[mode],)


def test_no_row_is_empty():
    x = make_problem((5, 4, 3), 500).tensor()
    assert count_nonempty_rows(x, 0) == 5
    assert find_nonempty_rows(x, 0) == (slice(None), None)


def test_non_empty_rows():
    dense = make_dense((9, 3, 4))
    dense[[2, 5]] = 0
    product = make_product(dense, (1, 2))
    rows, numbers = multiply_nonempty_rows(product.tensor, 0, product.factors)
    assert numbers.tolist() == [0, 1, 3, 4, 6, 7, 8]
    expected = multiply(dense, product).reshape(9, -1)[numbers]
    np.testing.assert_allclose(rows, expected, rtol=1e-13, atol=1e-13)


def test_leading_pairs_are_of_non_empty_rows():
    dense = make_dense((9, 3, 4))
    dense[[2, 5]] = 0
    product = make_product(dense, (1,))
    unfolding = ProductUnfolding(product, 0)
    vectors, values, numbers, _ = unfolding._find_leading_pairs(3)
    assert numbers.tolist() == [0, 1, 3, 4, 6, 7, 8]
    left, expected = unfolding.svd(3)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_allclose(np.abs(left[numbers]), np.abs(vectors), atol=1e-12)
    vectors, values, *_ = unfolding._find_leading_pairs(100)
    assert (vectors.shape, values.shape) == ((7, 7), (7,))


def test_more_cells_than_nonzeros():
    x = make_product(make_dense((4, 5, 6), density=0.2), ()).tensor
    check_free_modes(x, [2])
    check_free_modes(x, [])
    with pytest.raises(DensifyError, match="factors of all modes but 1 and 2 would make"):
        check_free_modes(x, [1, 2])


def test_modes_are_merged_once_for_each_tensor():
    dense = make_dense((3, 4, 5, 2))
    x = make_product(dense, ()).tensor
    merged, mode, places = merge_modes(x, (1, 3), np.float64)
    expected = dense.transpose(1, 3, 0, 2).reshape(8, 3, 5)
    np.testing.assert_array_equal(merged.to_coo().todense(), expected)
    assert (mode, places) == (0, {0: 1, 2: 2})
    assert merge_modes(x, (1, 3), np.float64)[0] is merged
    assert merge_modes(x, (1, 3), np.float32)[0].dtype == np.float32
    assert merge_modes(x, (2,), np.float64) == (separate_modes(x), 2, {0: 0, 1: 1, 3: 3})
    assert separate_modes(x) is separate_modes(x)


@pytest.fixture(params=["direct", "Lanczos on the Gram matrix", "Lanczos"])
def path(request, monkeypatch):
    """Use each of the three methods for singular vectors, whatever the size."""
    if request.param != "direct":
        monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
        monkeypatch.setattr(eigen, "_MOST", 1)
    if request.param == "Lanczos":
        for matrix in (ttmc.Matrix, ttmc.Operator):
            monkeypatch.setattr(matrix, "is_gram_cheap", lambda *_: False)
    monkeypatch.setattr(ttmc, "_BLOCK_SIZE", 40)  # several blocks


def check_svd(product, dense, mode, rank, dtype="float64"):
    """Compare values, and the span of the vectors, with NumPy's."""
    matrix = np.moveaxis(multiply(dense, product), mode, 0).reshape(dense.shape[mode], -1)
    unfolding = ProductUnfolding(product, mode)
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
    """No, one or two other modes are left out too."""
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
def test_svd_of_few_nonzeros(nnz, modes):
    dense = np.zeros((9, 7, 8))
    dense.flat[:nnz] = 3.0
    left, values = ProductUnfolding(make_product(dense, modes), 0).svd(4)
    np.testing.assert_allclose(left.T @ left, np.eye(4), atol=1e-14)
    assert np.count_nonzero(values) == nnz


# The Gram matrix of a projected unfolding, if other modes are left out


@pytest.mark.parametrize("modes", [(1,), (1, 3), (3, 2)], ids=str)
@pytest.mark.parametrize("slabs", [1, 3])
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_gram_matrix_of_the_rows(layout, slabs, modes, monkeypatch):
    """In several parts, from several slabs, with an empty row; its upper triangle is arbitrary."""
    monkeypatch.setattr(ttmc, "_BLOCK_SIZE", 40)
    dense = make_dense((9, 7, 8, 5), density=0.2)
    dense[3] = 0
    product = make_product(dense, modes)
    x = FlycooTensor(*product.tensor.nonzeros(), dense.shape, slabs=slabs, layout=layout)
    others = [n for n in range(1, 4) if n not in modes]
    matrix = ttmc.Operator(x, 0, find_nonempty_rows(x, 0)[0], others, product.factors)
    rows = multiply(dense, product).reshape(9, -1)[[0, 1, 2, 4, 5, 6, 7, 8]]
    found, expected = np.tril(matrix.gram(of_rows=True)), np.tril(rows @ rows.T)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * expected.max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_flat_spectrum_takes_few_passes(dtype, monkeypatch):
    """Iterations with products took hundreds; vectors are those of dense NumPy."""
    problem = make_problem((400, 300, 60), 6000, rank=5, dtype=dtype)
    x, passes, step = problem.tensor(), [], Layout.step
    monkeypatch.setattr(Layout, "step", lambda *args: passes.append(1) or step(*args))
    unfolding = ProductUnfolding(ModeProduct(x, {2: problem.factors[2]}), 0)
    vectors, values, *_ = unfolding._find_leading_pairs(5)
    assert len(passes) <= 2
    dense = np.zeros(problem.shape)
    np.add.at(dense, tuple(problem.coords), problem.values)
    product = np.tensordot(dense, problem.factors[2].astype(float), (2, 0)).reshape(400, -1)
    left, expected, _ = np.linalg.svd(product, full_matrices=False)
    # A backward stable decomposition of n columns: n times the rounding of the largest value.
    limit = 400 * float(np.finfo(np.float64).eps) + 10 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(values, expected[:5], rtol=0, atol=limit * expected[0])
    np.testing.assert_allclose(np.abs(left[:, :5].T @ vectors), np.eye(5), atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "nnz", "rank", "is_cheap"),
    [
        ((600, 900, 4), 40_000, 2, True),
        ((3000, 900, 4), 2000, 2, False),  # the matrix is large for the nonzeros
        ((9000, 9000, 4), 200_000, 2, False),  # larger than any that is formed
        ((9000, 300, 4), 60_000, 1, True),  # of the columns, which are fewer
        ((9000, 2000, 4), 60_000, 1, False),  # a product for each column
    ],
)
def test_gram_matrices_that_cost_less_than_iterations(shape, nnz, rank, is_cheap):
    problem = make_problem(shape, nnz, rank=rank)
    x = problem.tensor()
    rows, _ = find_nonempty_rows(x, 0)
    matrix = ttmc.Operator(x, 0, rows, [1], {2: problem.factors[2]})
    assert matrix.is_gram_cheap(rank) == is_cheap
