"""Contractions against NumPy's einsum, with bounds on the error."""

import numpy as np
import pytest
from problems import make_exact_problem, make_problem

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.ops.contraction import (
    contract_vectors,
    inner,
    khatri_rao_at,
    multiply_matricized,
)

SHAPE = (5, 6, 7)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def make_dense(x):
    if not isinstance(x, FlycooTensor):
        return x
    coords, values = x.nonzeros()
    dense = np.zeros(x.shape)
    dense[tuple(coords)] = values
    return dense


def check(found, expected, magnitude, dtype):
    """Compare with a float64 result: allow one ulp for each value added, and four more."""
    assert found.dtype == dtype
    assert np.shape(make_dense(found)) == np.shape(expected)
    bound = (np.prod(SHAPE) + 4) * np.finfo(dtype).eps * magnitude
    assert (np.abs(make_dense(found) - expected) <= bound).all()


@DTYPES
@pytest.mark.parametrize("modes", [[0], [1], [2], [-1], [2, 0], [1, 2], [0, 1, 2]], ids=str)
def test_vectors(modes, dtype):
    x = make_problem(SHAPE, 150, dtype=dtype).tensor()
    rng, letters = np.random.default_rng(0), "abc"
    vectors = [rng.standard_normal(SHAPE[mode]).astype(dtype) for mode in modes]
    names = [letters[mode] for mode in modes]
    kept = "".join(letter for letter in letters if letter not in names)
    equation = f"abc,{','.join(names)}->{kept}"
    dense = make_dense(x)
    magnitude = np.einsum(equation, np.abs(dense), *map(np.abs, vectors))
    expected = np.einsum(equation, dense, *(vector.astype("float64") for vector in vectors))
    check(contract_vectors(x, vectors, modes), expected, magnitude, dtype)


def test_vectors_in_another_dtype_are_promoted():
    x = make_problem(SHAPE, 150, dtype="float32").tensor()
    assert contract_vectors(x, [np.ones(5)], [0]).dtype == np.float64
    assert contract_vectors(x, [np.ones(5, "int8")], [0]).dtype == np.float32


@DTYPES
def test_inner(dtype):
    x = make_problem(SHAPE, 150, dtype=dtype).tensor()
    y = make_problem(SHAPE, 90, dtype=dtype, seed=5).tensor(layout="indexed")
    a, b = make_dense(x), make_dense(y)
    magnitude = np.abs(a * b).sum()
    for found in (inner(x, y), inner(y, x), inner(x, b.astype(dtype))):
        check(found, (a * b).sum(), magnitude, dtype)
    assert inner(x, FlycooTensor(np.zeros((3, 0), int), [], SHAPE)) == 0


def test_inner_of_dtypes_that_differ():
    x = make_exact_problem(SHAPE, 90, dtype="float32").tensor()
    found = inner(x, x.astype("float64"))
    check(found, (make_dense(x) ** 2).sum(), x.norm() ** 2, "float64")


@DTYPES
@pytest.mark.parametrize("columns", [(1, 2), (2, 1)])
def test_matricized_product(columns, dtype):
    x = make_problem(SHAPE, 150, dtype=dtype).tensor()
    multiplier = np.random.default_rng(0).standard_normal((42, 3)).astype(dtype)
    matrix = make_dense(x).transpose(0, *columns).reshape(5, 42)
    found = multiply_matricized(x, 0, columns, multiplier)
    check(found, matrix @ multiplier, np.abs(matrix) @ np.abs(multiplier), dtype)
    vector = multiply_matricized(x, 0, columns, multiplier[:, 0])
    np.testing.assert_array_equal(vector, found[:, 0])


def test_matricized_product_of_a_matrix():
    x = make_exact_problem((5, 8), 20).tensor()
    multiplier = np.random.default_rng(0).standard_normal((8, 3))
    assert np.allclose(multiply_matricized(x, 0, [1], multiplier), make_dense(x) @ multiplier)
    assert np.allclose(
        multiply_matricized(x, 1, [0], multiplier[:5]), make_dense(x).T @ multiplier[:5]
    )
    assert multiply_matricized(x, 0, [1], multiplier[:, :0]).shape == (5, 0)


def test_khatri_rao_at_nonzeros():
    mask = make_exact_problem(SHAPE, 40).tensor()
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((size, 3)) for size in SHAPE]
    expected = np.einsum("abc,ar,br,cr->abcr", make_dense(mask), *factors)
    found = make_dense(khatri_rao_at(mask, factors))
    assert np.abs(found - expected).max() <= 4 * np.finfo(float).eps * np.abs(expected).max()


def test_shapes_are_checked():
    x = make_exact_problem(SHAPE, 40).tensor()
    with pytest.raises(ValueError, match="vector of mode 1 has shape"):
        contract_vectors(x, [np.ones(5)], [1])
    with pytest.raises(ValueError, match=r"the shapes \(5, 6, 7\) and \(5, 6\) differ"):
        inner(x, np.ones((5, 6)))
    with pytest.raises(ValueError, match="multiplier has shape"):
        multiply_matricized(x, 0, (1, 2), np.ones((42, 1, 1)))
