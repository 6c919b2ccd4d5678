"""Products of tall matrices on the engine's threads."""

import numba
import numpy as np
import pytest
import reference
import tensorly as tl

from tensorly_flycoo.engines import tall as tall_skinny
from tensorly_flycoo.engines.cpu import products
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.testing import random_tensor

#: Rows: a single block, blocks that are full, and one that is not.
ROWS = (1, 63, 2048, 5000)

#: Columns of both matrices: the last step overlaps the one before, with few lanes and many; rows
#: that fill the lanes. Other numbers of lanes would compile other kernels.
COLUMNS = ((3, 5), (33, 47), (1, 64))


def draw(*shape, dtype):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def check_columns(found, a, b):
    """Compare ``a.T @ b`` entry by entry: few rows are added in the dtype, the rest in float64."""
    assert found.dtype == a.dtype
    bound = reference.columns_error_bound(a, b, a.dtype, in_dtype=products.CACHED_ROWS)
    assert (np.abs(found - reference.product_of_columns(a, b)) <= bound).all()


def check_rows(found, a, b):
    """Compare ``a @ b``, which is computed in float64 and rounded, entry by entry."""
    assert found.dtype == a.dtype
    exact, size = a.astype("f8") @ b.astype("f8"), np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))
    bound = reference.rounding_bound(1, size, a.dtype)
    bound += reference.rounding_bound(2 * a.shape[1], size, np.float64)
    assert (np.abs(found - exact) <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("num_rows", ROWS)
def test_products_are_within_the_bound(num_rows, columns, dtype):
    a, b = (draw(num_rows, count, dtype=dtype) for count in columns)
    small = draw(*columns, dtype=dtype)
    check_columns(products.multiply_transposed(a, b), a, b)
    check_rows(products.multiply_rows(a, small), a, small)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [5, 33])
def test_a_solution_comes_with_its_sums(rank, dtype):
    rows, small = draw(5000, rank, dtype=dtype), draw(rank, rank, dtype="float64")
    y, gram, inner = products.solve_rows(rows, small)
    check_rows(y, rows, small)
    check_columns(gram, y, y)
    assert np.array_equal(gram, products.multiply_transposed(y, y))
    terms = rows.astype("f8") * y
    bound = reference.rounding_bound(products.CACHED_ROWS + 2, np.abs(terms).sum(), dtype)
    bound += reference.rounding_bound(terms.size, np.abs(terms).sum(), np.float64)
    assert abs(inner - terms.sum()) <= bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [5, 33])
@pytest.mark.parametrize("size", [1, 2.0**100, np.nan])
def test_a_solution_is_rounded_on_the_way(size, rank, dtype):
    """One column has a usual scale, or another, or none."""
    rows, small = draw(5000, rank, dtype=dtype), draw(rank, rank, dtype="float64")
    small[:, 1] *= size
    y, gram, inner, narrow = products.solve_and_round(rows, small)
    expected = products.multiply_rows(rows, small)
    scales = CPU.find_scales(expected)
    narrow_rows, _ = CPU.round_rows(expected, scales)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(narrow.scales, scales)
    is_certain = ~np.isnan(scales)
    assert narrow.rows[:, is_certain].tobytes() == narrow_rows[:, is_certain].tobytes()
    np.testing.assert_array_equal(gram, products.multiply_transposed(y, y))
    terms = rows.astype("f8") * y
    bound = 65 * np.finfo(dtype).eps * np.abs(terms).sum()
    assert np.isnan(inner) if np.isnan(size) else abs(inner - terms.sum()) <= bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_number_of_threads_changes_no_bit(dtype, monkeypatch):
    a, small = draw(30_000, 5, dtype=dtype), draw(5, 5, dtype=dtype)
    found = []
    for count in (1, 2, 4):
        monkeypatch.setattr(numba, "get_num_threads", lambda count=count: count)
        products_of_rows = products.solve_rows(a, small.astype("f8"))
        y, gram, inner, narrow = products.solve_and_round(a, small.astype("f8"))
        rounded = (y, gram, inner, *narrow)
        found.append((products.multiply_transposed(a, a), *products_of_rows, *rounded))
    for others in found[1:]:
        assert all(map(np.array_equal, found[0], others))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_combined_and_contracted(dtype):
    """A group of modes of 3, 5 and 6 indices; rows that stand for no indices are zero."""
    sizes, bits = (3, 5, 6), (6, 3, 0)
    factors = [draw(size, 7, dtype=dtype) for size in sizes]
    combined = products.combine_rows(factors, bits).reshape(3, 8, 8, 7)
    expected = np.einsum("ar,br,cr->abcr", *factors)
    np.testing.assert_allclose(combined[:, :5, :6], expected, rtol=4 * np.finfo(dtype).eps)
    assert not combined[:, 5:].any()
    assert not combined[:, :, 6:].any()
    some = np.array([0, 9, 130], np.uint32)
    some_rows = products.combine_rows(factors, bits, some)[some]
    np.testing.assert_array_equal(some_rows, combined.reshape(-1, 7)[some])
    rows = np.zeros((3, 8, 8, 7), dtype)
    rows[:, :5, :6] = draw(3, 5, 6, 7, dtype=dtype)
    for place, subscripts in enumerate(("abcr,br,cr->ar", "abcr,ar,cr->br", "abcr,ar,br->cr")):
        given = [None if n == place else factor for n, factor in enumerate(factors)]
        out, weights = np.empty((sizes[place], 7), dtype), draw(7, dtype=dtype)
        products.contract_rows(rows.reshape(-1, 7), given, bits, out, weights)
        others = [factor for factor in given if factor is not None]
        exact = np.einsum(subscripts, rows[:, :5, :6].astype("f8"), *others) * weights
        most = np.einsum(subscripts, *map(np.abs, (rows[:, :5, :6], *others))) * np.abs(weights)
        assert (np.abs(out - exact) <= (30 + 4) * np.finfo(dtype).eps * most).all()


def test_rows_that_are_apart_or_must_not_be_written():
    wide, small = draw(6000, 14, dtype="float64"), draw(7, 7, dtype="float64")
    a, expected = wide[:, ::2], np.ascontiguousarray(wide[:, ::2])
    small.flags.writeable = expected.flags.writeable = False
    assert np.array_equal(products.multiply_rows(a, small), products.multiply_rows(expected, small))
    gram = products.multiply_transposed(expected, expected)
    assert np.array_equal(products.multiply_transposed(a, np.asfortranarray(a)), gram)


def test_nan_and_inf_reach_the_product():
    a = np.ones((5000, 5))
    a[4321, 2:4] = np.nan, np.inf
    gram, product = products.multiply_transposed(a, a), products.multiply_rows(a, np.eye(5))
    assert np.isnan(gram[2]).all()
    assert np.isinf(gram[3, [0, 3]]).all()
    assert np.isnan(product[4321]).all()
    assert np.isfinite(np.delete(product, 4321, axis=0)).all()


# 8192 * 8 * 8 multiplications are more than 2**18; the matrices of each case decide.
@pytest.mark.parametrize(
    ("a", "b", "is_own"),
    [
        (np.ones((8192, 8)), np.ones((8, 8)), True),
        (np.ones((8, 8192)), np.ones((8192, 8)), True),
        (np.ones((4096, 8)), np.ones((8, 8)), False),  # no BLAS wakes a thread
        (np.ones((8, 8)), np.ones((8, 8192)), False),  # a wide product
        (np.ones((8192, 80)), np.ones((80, 8)), False),  # long rows
        (np.ones((8192, 80), "f4"), np.ones((80, 8), "f4"), True),
        (np.ones((8192, 8)), np.ones((8, 8), "f4"), False),
        (np.ones((8192, 8), complex), np.ones((8, 8), complex), False),
        (np.ones((8192, 8)), np.ones((9, 8)), False),
        (np.ones((8192, 64)), np.ones(64), False),
        ([[1.0] * 8] * 8192, np.ones((8, 8)), False),
    ],
)
def test_which_products_are_own(a, b, is_own):
    assert tall_skinny.suits_cpu_engine(a, b) == is_own


def test_the_tall_products_of_parafac_are_own(monkeypatch):
    """NumPy's BLAS gets only products that are too small to wake its threads."""
    x = random_tensor((2000, 1500, 1000), 3000, random_state=0)
    own, calls = tall_skinny.suits_cpu_engine, []

    def note(a, b):
        calls.append((np.shape(a), np.shape(b), own(a, b)))
        return calls[-1][-1]

    monkeypatch.setattr(tall_skinny, "suits_cpu_engine", note)
    with tl.backend_context("flycoo"):
        options = {"n_iter_max": 2, "init": "random", "random_state": 0, "tol": 0}
        tl.decomposition.parafac(x, 40, **options)
    tall = [own for *shapes, own in calls if max(max(shapes, key=max)) >= 1000]
    assert len(tall) >= 2 + 2 * 3  # Gram matrices of the start, and solutions
    assert all(tall)
