"""Singular vectors of unfoldings, against NumPy's of small dense ones.

Computed from the Gram matrix, a squared singular value has an error of about ``size * eps`` times
the largest square; bounds below have that form, with the sizes of the dense unfolding.
"""

import numpy as np
import pytest
import sparse
from unfoldings import check_orthonormal, make_dense, make_unfolding

from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.svd import eigen
from tensorly_flycoo.svd.gram import UnfoldingGram
from tensorly_flycoo.svd.unfolding import Unfolding

EPS = np.finfo(np.float64).eps


@pytest.fixture(params=["direct", "Lanczos on the Gram matrix", "Lanczos"])
def path(request, monkeypatch):
    """Use each of the three methods for singular vectors, whatever the size."""
    if request.param != "direct":
        monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
        monkeypatch.setattr(eigen, "_MOST", 1)
    if request.param == "Lanczos":
        monkeypatch.setattr(eigen, "_MOST", 3)
        monkeypatch.setattr(UnfoldingGram, "is_cheap_to_form", lambda gram: False)


SHAPES = pytest.mark.parametrize(
    "shape",
    [
        pytest.param((6, 5, 7), id="wide"),
        pytest.param((60, 3, 4), id="tall"),
        pytest.param((12, 4, 3), id="square"),
        pytest.param((9, 8), id="a matrix"),
        pytest.param((7, 2, 3, 2, 2), id="five modes"),
    ],
)


def make_low_rank(shape, rank):
    """Make a dense array whose unfoldings have `rank`, with empty rows and columns."""
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((size, rank)) for size in shape]
    for factor in factors:
        factor[-1] = 0
    letters = "abcdef"[: len(shape)]
    return np.einsum(",".join(f"{a}r" for a in letters) + f"->{letters}", *factors)


def unfold(dense, mode):
    return np.moveaxis(dense, mode, 0).reshape(dense.shape[mode], -1)


def check_values(found, matrix):
    """Compare singular values with NumPy's."""
    expected = np.linalg.svd(matrix, compute_uv=False)[: found.size]
    bound = 4 * max(matrix.shape) * EPS * expected[0] ** 2
    assert (np.abs(found**2 - expected**2) <= bound).all()
    assert (np.diff(found) <= 0).all()


def check_subspace(left, matrix):
    """Compare the span of the vectors with NumPy's: up to rounding over the gap of the squares."""
    rank = left.shape[1]
    vectors, values, _ = np.linalg.svd(matrix)
    values = np.append(values, np.zeros(matrix.shape[0]))
    gap = values[rank - 1] ** 2 - values[rank] ** 2
    assert gap > 0
    bound = 8 * max(matrix.shape) * EPS * values[0] ** 2 / gap
    cosines = np.linalg.svd(vectors[:, :rank].T @ left, compute_uv=False)
    sine = np.linalg.norm(left - vectors[:, :rank] @ (vectors[:, :rank].T @ left), 2)
    assert sine <= bound
    assert cosines.min() >= 1 - bound


@pytest.mark.usefixtures("path")
@SHAPES
def test_leading_vectors_and_values(shape):
    dense = make_dense(shape)
    for mode in range(len(shape)):
        matrix = unfold(dense, mode)
        for rank in range(1, min(matrix.shape)):
            left, values = make_unfolding(dense, mode).svd(rank)
            assert left.shape == (matrix.shape[0], rank)
            assert values.shape == (rank,)
            check_values(values, matrix)
            check_orthonormal(left)
            check_subspace(left, matrix)


@pytest.mark.usefixtures("path")
@SHAPES
def test_all_vectors(shape):
    """`rank` may be up to ``min(shape)``."""
    dense = make_dense(shape)
    matrix = unfold(dense, 0)
    left, values = make_unfolding(dense).svd(min(matrix.shape))
    check_values(values, matrix)
    check_orthonormal(left)


@pytest.mark.usefixtures("path")
def test_each_vector():
    """Each equals NumPy's up to its sign if the singular values are distinct."""
    dense = make_dense((6, 5, 7))
    vectors, values, _ = np.linalg.svd(unfold(dense, 0))
    left, _ = make_unfolding(dense).svd(4)
    squares = np.append(values, 0) ** 2
    for k in range(4):
        gap = np.abs(np.delete(squares, k) - squares[k]).min()
        cosine = abs(left[:, k] @ vectors[:, k])
        assert abs(cosine - 1) <= 8 * 35 * EPS * squares[0] / gap


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_that_of_the_tensor(dtype):
    dense = make_dense((6, 5, 7)).astype(dtype).astype("float64")
    left, values = make_unfolding(dense, dtype=dtype).svd(3)
    assert left.dtype == values.dtype == dtype
    check_orthonormal(left, dtype)
    expected = np.linalg.svd(unfold(dense, 0), compute_uv=False)[:3]
    assert (np.abs(values - expected) <= 4 * np.finfo(dtype).eps * expected[0]).all()


@pytest.mark.parametrize(("shape", "tensor_rank"), [((9, 8, 7), 3), ((30, 3, 4), 2)])
def test_rank_deficient(shape, tensor_rank):
    """Values below rounding are zero, but their vectors are still orthonormal."""
    dense = make_low_rank(shape, tensor_rank)
    for mode in range(3):
        matrix = unfold(dense, mode)
        rank = min(matrix.shape)
        left, values = make_unfolding(dense, mode).svd(rank)
        check_orthonormal(left)
        check_values(values, matrix)
        true_rank = np.linalg.matrix_rank(matrix)
        assert np.count_nonzero(values) == true_rank
        check_subspace(left[:, :true_rank], matrix)


def test_rank_deficient_by_lanczos(monkeypatch):
    monkeypatch.setattr(UnfoldingGram, "is_cheap_to_form", lambda gram: False)
    dense = make_low_rank((30, 8, 7), 3)
    matrix = unfold(dense, 0)
    left, values = make_unfolding(dense).svd(6)
    check_orthonormal(left)
    check_values(values, matrix)
    check_subspace(left[:, :3], matrix)
    assert values[3:].tolist() == [0, 0, 0]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("shape", "coords"),
    [
        pytest.param((6, 5, 7), np.zeros((3, 0), int), id="no nonzeros"),
        pytest.param((6, 5, 7), [[3], [4], [0]], id="one nonzero"),
        pytest.param((6, 5, 7), [[3, 2], [4, 1], [0, 0]], id="two nonzeros"),
        pytest.param((1, 5, 7), [[0, 0], [4, 1], [0, 0]], id="one row"),
        pytest.param((6, 1, 1), [[0, 4], [0, 0], [0, 0]], id="one column"),
        pytest.param((6,), [[0, 4]], id="one mode"),
        pytest.param((1,), [[0]], id="one cell"),
    ],
)
def test_few_nonzeros(shape, coords):
    coords = np.array(coords)
    values = np.arange(2.0, 2.0 + coords.shape[1])
    dense = np.zeros(shape)
    dense[tuple(coords)] = values
    x = FlycooTensor(coords, values, shape)
    for mode in range(len(shape)):
        unfolding = Unfolding(x, mode)
        left, found = unfolding.svd(min(unfolding.shape))
        assert left.shape == (shape[mode], min(unfolding.shape))
        check_orthonormal(left)
        check_values(found, unfold(dense, mode))
        assert np.count_nonzero(found) == np.linalg.matrix_rank(unfold(dense, mode))


def test_values_of_very_different_sizes():
    """The Gram matrix loses values below ``sqrt(eps)`` times the largest."""
    diagonal = np.array([1e6, 1e3, 1.0, 1e-1])
    x = FlycooTensor(np.stack([np.arange(4)] * 2), diagonal, (4, 4))
    left, values = Unfolding(x, 0).svd(4)
    assert (np.abs(values**2 - diagonal**2) <= 4 * 4 * EPS * diagonal[0] ** 2).all()
    check_orthonormal(left)


@pytest.mark.usefixtures("path")
def test_the_same_bits_each_time():
    """The initial vector is fixed."""
    dense = make_dense((12, 5, 7))
    first, second = (make_unfolding(dense).svd(4) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rank", [1, 4, 8, 20])
@pytest.mark.parametrize("copies", [1, 2, 8, 300])
def test_repeated_singular_values(copies, rank, seed):
    """Lanczos iteration alone would miss some of them."""
    squares = np.repeat(10 * np.random.default_rng(seed).random(300 // copies), copies)
    places = np.stack([np.arange(squares.size)] * 2)
    x = FlycooTensor(places, np.sqrt(squares), (300, 300))
    left, values = Unfolding(x, 0).svd(rank)
    expected = np.sort(squares)[::-1][:rank]
    assert (np.abs(values**2 - expected) <= 4 * 300 * EPS * expected[0]).all()
    check_orthonormal(left)


def test_vectors_for_zero_values_leave_the_global_seed_alone():
    np.random.seed(7)
    expected = np.random.RandomState(7).random_sample()
    make_unfolding(make_low_rank((9, 8, 7), 3)).svd(6)
    assert np.random.random_sample() == expected


def test_more_than_2_to_63_cells():
    """Two columns with the same linear index modulo 2**64 stay distinct."""
    coords = [[0, 1, 2], [0, 2**20, 0], [7, 7, 7], [3, 3, 3]]
    unfolding = Unfolding(FlycooTensor(coords, [3.0, 4.0, 5.0], (5, 2**22, 2**22, 2**22)), 0)
    assert unfolding.shape == (5, 2**66)
    left, values = unfolding.svd(3)
    assert np.abs(values**2 - [3**2 + 5**2, 4**2, 0]).max() <= 4 * 5 * EPS * 34
    check_orthonormal(left)
    assert np.abs(np.abs(left[:, 1]) - [0, 1, 0, 0, 0]).max() <= 4 * 5 * EPS * 34 / 16


@pytest.mark.parametrize(
    ("rank", "error", "message"),
    [
        (0, ValueError, "rank is 0, expected at least 1"),
        (-1, ValueError, "rank is -1, expected at least 1"),
        (7, ValueError, "rank is 7, expected at most 6"),
        (1.5, TypeError, "rank is 1.5, expected an integer"),
    ],
)
def test_bad_rank(rank, error, message):
    with pytest.raises(error, match=message):
        make_unfolding(make_dense((6, 5, 7))).svd(rank)


@pytest.mark.parametrize("mode", [-1, 3])
def test_bad_mode(mode):
    with pytest.raises(ValueError, match=f"mode is {mode}, expected 0 to 2"):
        make_unfolding(make_dense((6, 5, 7)), mode)


def test_an_unfolding_is_never_formed():
    unfolding = make_unfolding(make_dense((6, 5, 7)))
    for use in (np.asarray, np.exp, lambda matrix: np.eye(6) @ matrix):
        with pytest.raises(DensifyError, match="Unfolding: mode 0 of shape"):
            use(unfolding)
    assert repr(unfolding) == "<Unfolding: mode 0 of shape (6, 5, 7)>"
    assert (unfolding.shape, unfolding.ndim, unfolding.dtype) == ((6, 35), 2, np.float64)


def test_an_unfolding_of_a_raw_coo_finds_changes():
    coo = sparse.COO.from_numpy(make_dense((6, 5, 7)))
    before = Unfolding(coo, 0).svd(3)[1]
    coo.coords[2] = 6 - coo.coords[2]
    after = Unfolding(coo, 0).svd(3)[1]
    assert Unfolding(coo, 0).tensor is Unfolding(coo, 1).tensor
    check_values(after, unfold(make_dense((6, 5, 7))[:, :, ::-1], 0))
    assert np.abs(before - after).max() <= 1e-13 * before[0]  # only the columns moved
    coo.data *= 2
    check_values(Unfolding(coo, 0).svd(3)[1], unfold(2 * make_dense((6, 5, 7)), 0))
