"""TensorLy's tests of Tucker (decomposition/tests/test_tucker.py) for sparse tensors.

Each runs on a `sparse.COO` and on a `FlycooTensor`, under "flycoo", through TensorLy's public API,
with an alarm on anything that makes the tensor dense. Results are compared with TensorLy's "numpy".
"""

import inspect

import numpy as np
import pytest
import sparse
import tensorly as tl
from sparse_problems import BOTH_KINDS, community_coo, dense_of, densification_alarm, random_coo
from tensorly.decomposition import Tucker, partial_tucker, tucker
from tensorly.random import random_tucker
from tensorly.tenalg import multi_mode_dot
from tensorly.testing import assert_class_wrapper_correctly_passes_arguments
from tensorly.tucker_tensor import TuckerTensor, tucker_to_tensor

from tensorly_flycoo import DensifyError

_SHAPE = (9, 8, 7)
_RANK = (3, 3, 3)

#: For the well-separated singular values of `community_coo`: a few hundred rounding errors.
_CLOSE = {"rtol": 1e-9, "atol": 1e-11}

pytestmark = pytest.mark.filterwarnings("ignore:Given only one int", "ignore:No value given")


@pytest.fixture(autouse=True)
def alarmed_backend(flycoo_backend):
    with densification_alarm():
        yield


def _dense_result(function, coo, *args, **kwargs):
    """Decompose the dense twin under "numpy"."""
    with tl.backend_context("numpy"):
        dtype = np.float32 if coo.dtype == np.float32 else np.float64
        return function(dense_of(coo, dtype), *args, **kwargs)


def _check_same(found, expected, exact_signs=True):
    """Compare a core and factors with TensorLy's; without exact signs, compare projections."""
    (core, factors), (expected_core, expected_factors) = found, expected
    if exact_signs:
        np.testing.assert_allclose(core, expected_core, **_CLOSE)
        for factor, expected_factor in zip(factors, expected_factors, strict=True):
            np.testing.assert_allclose(factor, expected_factor, **_CLOSE)
    else:
        assert core.shape == expected_core.shape
        for factor, expected_factor in zip(factors, expected_factors, strict=True):
            projection, expected_projection = factor @ factor.T, expected_factor @ expected_factor.T
            np.testing.assert_allclose(projection, expected_projection, **_CLOSE)


_OPTIONS = {
    "svd": {},
    "randomized_svd": {"svd": "randomized_svd"},
    "random": {"init": "random"},
    "tol=0": {"tol": 0, "n_iter_max": 12},
    "tol": {"init": "random", "tol": 1e-8, "n_iter_max": 40},
    "one iteration": {"n_iter_max": 1},
}


@BOTH_KINDS
@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
def test_tucker_is_the_same_as_on_dense_tensors(options, kind):
    coo = community_coo(_SHAPE)
    arguments = {"rank": list(_RANK), "random_state": 3, "return_errors": True, **options}
    found, errors = tucker(kind(coo), **arguments)
    expected, expected_errors = _dense_result(tucker, coo, **arguments)
    assert isinstance(found, TuckerTensor)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-12)
    _check_same(found, expected)


#: All options for one choice of modes, and the default options for the others.
_PARTS = [([0, 2], name) for name in _OPTIONS] + [
    (modes, "svd") for modes in ([1, 2], [0, 1], [0, 1, 2])
]


@BOTH_KINDS
@pytest.mark.parametrize(("modes", "name"), _PARTS, ids=str)
def test_partial_tucker_is_the_same_as_on_dense_tensors(modes, name, kind):
    options = _OPTIONS[name]
    coo = community_coo(_SHAPE)
    arguments = {"rank": [3] * len(modes), "modes": modes, "random_state": 3, **options}
    found, errors = partial_tucker(kind(coo), **arguments)
    expected, expected_errors = _dense_result(partial_tucker, coo, **arguments)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-12)
    _check_same(found, expected)


@BOTH_KINDS
@pytest.mark.parametrize(
    ("shape", "rank"), [((8, 6), (2, 3)), ((5, 4, 6, 3), (3, 4, 3, 3)), ((4, 3, 5, 3, 3), (3,) * 5)]
)
def test_other_numbers_of_modes(shape, rank, kind):
    coo = random_coo(shape, int(np.prod(shape)) // 2, seed=3)
    arguments = {"rank": list(rank), "n_iter_max": 5, "tol": 0, "return_errors": True}
    found, errors = tucker(kind(coo), **arguments)
    expected, expected_errors = _dense_result(tucker, coo, **arguments)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-10)
    np.testing.assert_allclose(
        tucker_to_tensor(found), _dense_result(lambda _: tucker_to_tensor(expected), coo), atol=1e-8
    )


@BOTH_KINDS
@pytest.mark.parametrize("modes", [[0], [1, 3], [0, 1]], ids=str)
def test_two_or_more_modes_may_be_left_out_of_a_tensor_with_many_nonzeros(modes, kind):
    coo = random_coo((5, 4, 6, 3), 300, seed=3)
    arguments = {"rank": [3] * len(modes), "modes": modes, "n_iter_max": 5}
    found, errors = partial_tucker(kind(coo), **arguments)
    expected, expected_errors = _dense_result(partial_tucker, coo, **arguments)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-10)
    _check_same(found, expected, exact_signs=False)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_other_dtypes(dtype):
    coo = community_coo(_SHAPE, dtype)
    (core, factors), errors = tucker(coo, list(_RANK), return_errors=True, n_iter_max=5)
    expected = np.float32 if dtype == np.float32 else np.float64
    assert {core.dtype, *(factor.dtype for factor in factors)} == {np.dtype(expected)}
    _, expected_errors = _dense_result(tucker, coo, list(_RANK), return_errors=True, n_iter_max=5)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(errors, expected_errors, rtol=tolerance)
    (core, _), _ = partial_tucker(coo, [3, 3], modes=[0, 2], n_iter_max=2)
    assert core.dtype == expected


@BOTH_KINDS
def test_partial_tucker_of_full_rank_is_exact(kind):
    coo = random_coo((3, 4, 3), 30, seed=1)
    (core, factors), _ = partial_tucker(kind(coo), rank=None, modes=[1, 2], n_iter_max=200)
    np.testing.assert_allclose(
        multi_mode_dot(core, factors, modes=[1, 2]), dense_of(coo), atol=1e-12
    )


@BOTH_KINDS
def test_tucker_of_full_rank_is_exact(kind):
    coo = random_coo((3, 4, 3), 30, seed=1)
    found = tucker(kind(coo), rank=None, n_iter_max=200)
    np.testing.assert_allclose(tucker_to_tensor(found), dense_of(coo), atol=1e-12)


@BOTH_KINDS
@pytest.mark.parametrize("init", ["svd", "random"])
def test_shapes_and_orthonormal_columns(init, kind):
    rank, coo = (2, 3, 1), random_coo(_SHAPE, 100, seed=2)
    core, factors = tucker(kind(coo), rank=list(rank), init=init, random_state=0)
    assert core.shape == rank
    for factor, size, columns in zip(factors, _SHAPE, rank, strict=True):
        assert factor.shape == (size, columns)
        np.testing.assert_allclose(factor.T @ factor, np.eye(columns), atol=1e-13)


@BOTH_KINDS
@pytest.mark.parametrize("init", ["svd", "random"])
def test_the_same_seed_gives_the_same_bits(init, kind):
    x = kind(random_coo(_SHAPE, 100, seed=3))
    arguments = {"rank": list(_RANK), "init": init, "random_state": 7}
    (core, factors), (core2, factors2) = (tucker(x, **arguments) for _ in range(2))
    for first, second in zip([core, *factors], [core2, *factors2], strict=True):
        np.testing.assert_array_equal(first, second)
    arguments |= {"rank": [3, 3], "modes": [1, 2]}
    runs = [partial_tucker(x, **arguments)[0] for _ in range(2)]
    np.testing.assert_array_equal(runs[0][0], runs[1][0])


@BOTH_KINDS
@pytest.mark.parametrize("as_tensor", [True, False], ids=["TuckerTensor", "tuple"])
def test_a_tucker_tensor_is_an_initial_guess(as_tensor, kind):
    coo = community_coo(_SHAPE)
    start = tuple(random_tucker(_SHAPE, _RANK, random_state=1))
    arguments = {"n_iter_max": 6, "tol": 0, "return_errors": True}

    def decompose(x):
        core, factors = start
        init = (core.copy(), [factor.copy() for factor in factors])
        init = TuckerTensor(init) if as_tensor else init
        return tucker(x, list(_RANK), init=init, **arguments)

    found, errors = decompose(kind(coo))
    expected, expected_errors = _dense_result(decompose, coo)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-12)
    _check_same(found, expected)


@BOTH_KINDS
def test_factors_alone_are_an_initial_guess(kind):
    """Supported by TensorLy from 0.10 on."""
    module = inspect.getmodule(tucker)
    if not hasattr(module, "_is_tucker_factors_init"):
        pytest.skip("this TensorLy takes no factors alone")
    coo, start = community_coo(_SHAPE), random_tucker(_SHAPE, _RANK, random_state=1).factors
    arguments = {"n_iter_max": 5, "tol": 0}
    found = tucker(kind(coo), _RANK, init=[f.copy() for f in start], **arguments)
    expected = _dense_result(tucker, coo, _RANK, init=[f.copy() for f in start], **arguments)
    _check_same(found, expected)
    core, factors = module.initialize_tucker(kind(coo), _RANK, [0, 1, 2], None, init=list(start))
    np.testing.assert_allclose(core, multi_mode_dot(dense_of(coo), start, transpose=True))
    for factor, expected_factor in zip(factors, start, strict=True):
        np.testing.assert_array_equal(factor, expected_factor)


@BOTH_KINDS
@pytest.mark.parametrize("fixed", [[0], [1], [2], [0, 1], [2, 0]], ids=str)
def test_fixed_factors_stay(fixed, kind):
    coo = community_coo(_SHAPE)
    start = tucker(coo, list(_RANK), n_iter_max=1)
    rank = [_RANK[n] for n in range(3) if n not in fixed]

    def decompose(x):
        init = (start.core.copy(), [factor.copy() for factor in start.factors])
        return tucker(x, rank, init=init, fixed_factors=list(fixed), n_iter_max=8)

    found = decompose(kind(coo))
    for mode in fixed:
        np.testing.assert_array_equal(found.factors[mode], start.factors[mode])
    _check_same(found, _dense_result(decompose, coo))


@BOTH_KINDS
def test_svd_and_random_init_end_close_to_each_other(kind):
    x = kind(community_coo(_SHAPE))
    with_svd = tucker(x, list(_RANK), n_iter_max=200, tol=1e-10)
    with_random = tucker(x, list(_RANK), n_iter_max=200, tol=1e-10, init="random", random_state=1)
    first, second = tucker_to_tensor(with_svd), tucker_to_tensor(with_random)
    assert np.linalg.norm(first - second) / np.linalg.norm(first) < 1e-3


@BOTH_KINDS
def test_errors_are_those_of_the_reconstruction(kind):
    coo = random_coo(_SHAPE, 100, seed=2)
    found, errors = tucker(kind(coo), [3, 2, 4], tol=0, n_iter_max=5, return_errors=True)
    dense = dense_of(coo)
    error = np.linalg.norm(tucker_to_tensor(found) - dense) / np.linalg.norm(dense)
    np.testing.assert_allclose(errors[-1], error, rtol=1e-10)
    assert np.diff(errors).max() <= 1e-13


@BOTH_KINDS
def test_the_class_does_what_the_function_does(kind):
    x = kind(random_coo(_SHAPE, 100, seed=2))
    options = {"rank": [3, 2, 4], "init": "random", "random_state": 0, "n_iter_max": 5}
    core, factors = tucker(x, **options)
    transformer = Tucker(**options)
    fitted = transformer.fit_transform(x)
    assert transformer.decomposition_ is fitted
    for first, second in zip([core, *factors], [fitted.core, *fitted.factors], strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_class_passes_all_options_on(monkeypatch):
    assert_class_wrapper_correctly_passes_arguments(
        monkeypatch, tucker, Tucker, ignore_args={}, rank=3
    )


@pytest.mark.filterwarnings("ignore:Trying to compute SVD")
@BOTH_KINDS
def test_ranks_above_those_of_the_unfoldings_are_filled_up(kind):
    coo = random_coo((9, 2, 3), 30, seed=2)
    core, factors = tucker(kind(coo), [8, 2, 3], n_iter_max=3, random_state=0)
    assert core.shape == (8, 2, 3)
    np.testing.assert_allclose(tucker_to_tensor((core, factors)), dense_of(coo), atol=1e-12)


def _scaled(coo, scale):
    return sparse.COO(coo.coords, coo.data * scale, shape=coo.shape)


_EDGE_CASES = {
    "nnz 0": lambda: sparse.COO(np.zeros((3, 0), int), np.zeros(0), shape=(4, 5, 6)),
    "one nonzero": lambda: sparse.COO([[1], [2], [3]], [2.5], shape=(4, 5, 6)),
    "sizes 1": lambda: random_coo((1, 7, 1, 7), 30),
    "all sizes 1": lambda: sparse.COO([[0], [0], [0]], [2.0], shape=(1, 1, 1)),
    "empty rows": lambda: sparse.COO(
        random_coo((4, 5, 6), 40).coords * 3, np.ones(40), (12, 15, 18)
    ),
    "tiny values": lambda: _scaled(random_coo((4, 5, 6), 40), 1e-150),
    "big values": lambda: _scaled(random_coo((4, 5, 6), 40), 1e70),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # error / norm where nnz is 0
@pytest.mark.filterwarnings("ignore:Trying to compute SVD")
@pytest.mark.parametrize("init", ["svd", "random"])
@pytest.mark.parametrize("make", _EDGE_CASES.values(), ids=_EDGE_CASES)
def test_edge_cases_run_to_finite_factors(make, init):
    coo = make()
    rank = [min(3, size) for size in coo.shape]
    core, factors = tucker(coo, rank, init=init, random_state=0, n_iter_max=4)
    for array in (core, *factors):
        assert np.isfinite(array).all()
    assert core.shape == tuple(rank)


def test_more_than_2_to_63_cells():
    rng = np.random.RandomState(0)
    shape = (2**16, 2**16, 2**17, 2**15)
    coords = np.unique(np.stack([rng.randint(0, size, 500) for size in shape]), axis=1)
    coo = sparse.COO(
        coords, rng.uniform(0.5, 1.5, coords.shape[1]), shape, sorted=True, has_duplicates=False
    )
    found, errors = tucker(coo, [3, 4, 3, 3], n_iter_max=3, return_errors=True)
    assert found.core.shape == (3, 4, 3, 3)
    assert 0.5 < errors[-1] <= errors[0] < 1
    (core, _), _ = partial_tucker(coo, [3, 3, 3], modes=[1, 2, 3], n_iter_max=1)
    assert core.shape == (2**16, 3, 3, 3)


# What is refused


@pytest.mark.parametrize("options", [{}, {"init": "random"}], ids=["svd", "random"])
@BOTH_KINDS
def test_a_mask_of_partial_tucker_is_refused(options, kind):
    coo = random_coo(_SHAPE, 100)
    mask = sparse.COO(coo.coords[:, :1], np.zeros(1), shape=coo.shape, fill_value=1.0)
    with pytest.raises(DensifyError, match="mask"):
        partial_tucker(kind(coo), [2, 2, 2], mask=mask, **options)


@BOTH_KINDS
def test_a_core_as_large_as_two_modes_is_refused(kind):
    coo = random_coo((30, 40, 50), 100)
    with pytest.raises(DensifyError, match="all modes but 0 and 2 would make"):
        partial_tucker(kind(coo), [2], modes=[1])
    start = random_tucker(coo.shape, (2, 2, 2), random_state=0)
    with pytest.raises(DensifyError, match="all modes but 0 and 2 would make"):
        tucker(kind(coo), [2], init=start, fixed_factors=[2, 0])


@BOTH_KINDS
def test_symeig_svd_is_refused(kind):
    with pytest.raises(DensifyError, match="symeig_svd"):
        tucker(kind(random_coo(_SHAPE, 100)), [2, 2, 2], svd="symeig_svd")


# multi_mode_dot itself


@BOTH_KINDS
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("modes", [None, [0, 1], [2, 1]])
def test_multi_mode_dot(modes, transpose, kind):
    coo, rng = random_coo(_SHAPE, 100), np.random.RandomState(0)
    matrices = [rng.standard_normal((_SHAPE[n], 3)) for n in modes or range(3)]
    matrices = matrices if transpose else [matrix.T for matrix in matrices]
    found = multi_mode_dot(kind(coo), matrices, modes=modes, transpose=transpose)
    expected = multi_mode_dot(dense_of(coo), matrices, modes=modes, transpose=transpose)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@BOTH_KINDS
def test_multi_mode_dot_with_a_skipped_matrix_is_lazy(kind):
    coo, rng = random_coo(_SHAPE, 100), np.random.RandomState(0)
    matrices = [rng.standard_normal((3, size)) for size in _SHAPE]
    found = multi_mode_dot(kind(coo), matrices, skip=1)
    expected = multi_mode_dot(dense_of(coo), matrices, skip=1)
    assert (tl.shape(found), tl.ndim(found)) == ((3, 8, 3), 3)
    np.testing.assert_allclose(tl.norm(found), tl.norm(expected))
    assert tl.shape(tl.unfold(found, 1)) == (8, 9)
    # Along a multiplied mode the unfolding is an array.
    np.testing.assert_allclose(tl.unfold(found, 2), tl.unfold(expected, 2), atol=1e-12)


def test_multi_mode_dot_names_bad_arguments():
    coo = random_coo(_SHAPE, 100)
    with pytest.raises(ValueError, match=r"factor of mode 1 has shape \(9, 2\), expected \(8, r"):
        multi_mode_dot(coo, [np.ones((2, 9))] * 3)
    with pytest.raises(ValueError, match="each mode once"):
        multi_mode_dot(coo, [np.ones((2, 9))] * 2, modes=[0, 0])


@BOTH_KINDS
@pytest.mark.parametrize("skip", [None, 2])
@pytest.mark.parametrize("vector_modes", [(0,), (1,), (0, 1)], ids=str)
def test_vectors_among_matrices(vector_modes, skip, kind):
    """Vectors are contracted first, which may leave a dense vector."""
    coo, rng = random_coo(_SHAPE, 100), np.random.RandomState(0)
    operands = [
        rng.standard_normal(size if n in vector_modes else (3, size))
        for n, size in enumerate(_SHAPE)
    ]
    found = multi_mode_dot(kind(coo), operands, skip=skip)
    expected = multi_mode_dot(dense_of(coo), operands, skip=skip)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@BOTH_KINDS
@pytest.mark.parametrize("transpose", [False, True])
def test_mode_dot_with_a_matrix(transpose, kind):
    """The other modes together have no more cells than there are nonzeros."""
    coo, matrix = random_coo((4, 5, 9), 100), np.random.RandomState(0).standard_normal((9, 3))
    arguments = (matrix if transpose else matrix.T, 2, transpose)
    found, expected = (tl.tenalg.mode_dot(x, *arguments) for x in (kind(coo), dense_of(coo)))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
