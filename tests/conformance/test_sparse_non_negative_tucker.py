"""Non-negative Tucker under "flycoo": TensorLy's numbers, for all starts and options."""

import numpy as np
import pytest
import tensorly as tl
from rounding import check_same_as_dense
from sparse_problems import (
    BOTH_PRECISIONS,
    community_coo,
    dense_of,
    random_coo,
)
from tensorly.tucker_tensor import TuckerTensor

from tensorly_flycoo import DensifyError, FlycooTensor, decomposition
from tensorly_flycoo.loop.guarding import tensorly_loop

_SHAPES = {2: (14, 15), 3: (9, 11, 10), 4: (8, 6, 9, 7)}
_RANKS = {2: [3, 2], 3: [2, 3, 4], 4: [2, 3, 2, 2]}
_NAMES = {"mu": "non_negative_tucker", "hals": "non_negative_tucker_hals"}
_BY_METHOD = pytest.mark.parametrize("method", _NAMES)


def _init(shape, dtype, seed=11):
    """Make a guess with negative elements, whose absolute values are taken."""
    rng = np.random.RandomState(seed)
    ranks = _RANKS[len(shape)]
    factors = [rng.random_sample(size).astype(dtype) for size in zip(shape, ranks, strict=True)]
    factors[0][0] *= -1
    return TuckerTensor((rng.random_sample(ranks).astype(dtype), factors))


#: Options of both functions; a function makes them for a shape and the dtype of factors.
_OPTIONS = {
    "random": lambda shape, dtype: {"init": "random"},
    "svd": lambda shape, dtype: {},
    "init": lambda shape, dtype: {"init": _init(shape, dtype)},
    "factors": lambda shape, dtype: {
        "init": [abs(factor) for factor in _init(shape, dtype).factors]
    },
    "normalize": lambda shape, dtype: {"init": "random", "normalize_factors": True},
    "tol": lambda shape, dtype: {"init": "random", "tol": 3e-3, "n_iter_max": 30},
}
_HALS_OPTIONS = {
    "fixed-first": lambda shape, dtype: {"init": _init(shape, dtype), "fixed_modes": [0]},
    "sparsity": lambda shape, dtype: {
        "init": "random",
        "sparsity_coefficients": [0.1, None, 0.2],
        "core_sparsity_coefficient": 0.1,
    },
    "one sparsity": lambda shape, dtype: {"init": "random", "sparsity_coefficients": 0.1},
}
_CASES = {
    **{f"{method}-{name}": (method, _OPTIONS[name]) for name in _OPTIONS for method in _NAMES},
    **{f"hals-{name}": ("hals", make) for name, make in _HALS_OPTIONS.items()},
}


def _check(coo, method, make_options, kind=lambda coo: coo):
    ranks = _RANKS[coo.ndim]

    def decompose(x):
        dtype = np.float32 if coo.dtype == np.float32 else np.float64
        options = {"n_iter_max": 6, "tol": 1e-30, "random_state": 5, "return_errors": True}
        options |= make_options(coo.shape, dtype)
        return getattr(tl.decomposition, _NAMES[method])(x, ranks, **options)

    check_same_as_dense(decompose, coo, kind, int(np.prod(ranks)))


@BOTH_PRECISIONS
@pytest.mark.parametrize(("method", "make_options"), _CASES.values(), ids=_CASES)
def test_same_as_dense(method, make_options, dtype, kind):
    _check(community_coo(_SHAPES[3], dtype, seed=1), method, make_options, kind)


@_BY_METHOD
@pytest.mark.parametrize("ndim", [2, 4])
@pytest.mark.parametrize("name", ["random", "svd"])
def test_same_as_dense_for_any_number_of_modes(name, method, ndim):
    _check(community_coo(_SHAPES[ndim], seed=1), method, _OPTIONS[name])


@_BY_METHOD
@pytest.mark.usefixtures("modes_in_groups")
def test_same_as_dense_with_groups(method):
    _check(community_coo(_SHAPES[4], seed=1), method, _OPTIONS["random"])


@_BY_METHOD
def test_same_as_dense_with_empty_rows(method):
    coo = community_coo(_SHAPES[3], seed=1)
    coo = coo * (np.arange(9) % 3 != 1)[:, None, None]
    _check(coo, method, _OPTIONS["random"])


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize(
    ("own", "num_draws"),
    [
        pytest.param({"exact": True}, 1, marks=pytest.mark.slow),
        ({"algorithm": "active_set"}, 24),
    ],
    ids=str,
)
def test_discontinuous_updates_are_those_of_a_dense_tensor(own, num_draws):
    """They stop, or leave a set, by comparing rounded numbers: rounding may choose another way.

    So the errors must be those of the dense tensor, or of one that differs by rounding errors.
    """
    coo, rng = random_coo(_SHAPES[3], 300, seed=1), np.random.RandomState(0)
    unit = (np.bincount(coo.coords[0]).max() + coo.ndim + 24) * np.finfo(np.float64).eps

    def find_errors(x):
        function = tl.decomposition.non_negative_tucker_hals
        options = {"init": "random", "random_state": 0, "n_iter_max": 2, "return_errors": True}
        return np.array(function(x, [2, 3, 4], **options, **own)[1])

    errors = find_errors(coo)
    with tl.backend_context("numpy"):
        dense, deviations = dense_of(coo, np.float64), []
        for draw in range(num_draws):
            noise = unit * min(draw, 1) * rng.uniform(-1, 1, dense.shape)
            deviations.append(abs(find_errors(dense + dense * noise) / errors - 1).max())
            if deviations[-1] < 1e-8:
                return
    raise AssertionError(f"errors differ from those of dense tensors by {deviations}")


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@_BY_METHOD
def test_every_layout_gives_the_same_bits(method, layout):
    coo = random_coo(_SHAPES[3], 300, seed=2)
    function = getattr(decomposition, _NAMES[method])
    options = {"init": "random", "random_state": 0, "n_iter_max": 3}
    expected, found = (
        function(FlycooTensor.from_coo(coo, **kind), [2, 3, 4], **options)
        for kind in ({}, {"layout": layout, "slabs": 1})
    )
    arrays = zip((found.core, *found.factors), (expected.core, *expected.factors), strict=True)
    for array, other in arrays:
        np.testing.assert_array_equal(array, other)


X = FlycooTensor.from_coo(random_coo((6, 7, 8), 60))
GUESS = (np.ones((2, 3, 4)), [np.ones(size) for size in [(6, 2), (7, 3), (8, 4)]])
BAD = {
    "rank": ({"rank": [2, 3]}, ValueError, "rank has 2 numbers, expected 3"),
    "init": ({"init": "nndsvd"}, ValueError, "invalid `init`"),
    "core": ({"init": (np.ones((2, 3, 3)), GUESS[1])}, ValueError, r"a core of shape \(2, 3, 3\)"),
    "dtype of core": (
        {"init": (np.ones((2, 3, 4), np.float32), GUESS[1])}, TypeError, "core of init has dtype"
    ),
    "ranks": ({"init": (GUESS[0], [*GUESS[1][:2], GUESS[1][2][:, :2]])}, ValueError, "of ranks"),
    "rows": ({"init": (GUESS[0], GUESS[1][::-1])}, ValueError, r"factors\[0\] of init has shape"),
    "factors": ({"init": GUESS[1][:2]}, ValueError, "init has 2 factors, expected 3"),
    "dtype": (
        {"init": [factor.astype(np.float32) for factor in GUESS[1]]}, TypeError, r"factors\[0\]"
    ),
}  # fmt: skip
BAD_HALS = {
    "algorithm": ({"algorithm": "bpp"}, ValueError, "algorithm is 'bpp'"),
    "svd": ({"svd": "symeig_svd"}, DensifyError, "symeig_svd"),
    "fixed": ({"fixed_modes": [0]}, ValueError, "fixed_modes needs factors to keep"),
    "sparsity": ({"sparsity_coefficients": [0.1]}, ValueError, "has 1 numbers, expected 3"),
}


@pytest.mark.usefixtures("flycoo_backend")
@pytest.mark.parametrize(
    ("method", "options", "error", "text"),
    [(m, *bad) for m in _NAMES for bad in BAD.values()] + [("hals", *b) for b in BAD_HALS.values()],
)
def test_bad_input_is_named(method, options, error, text):
    with pytest.raises(error, match=text):
        getattr(decomposition, _NAMES[method])(X, **{"rank": [2, 3, 4]} | options)


@pytest.mark.usefixtures("flycoo_backend")
@_BY_METHOD
def test_a_tensor_without_nonzeros_is_refused(method):
    with pytest.raises(ValueError, match="no nonzeros"):
        getattr(decomposition, _NAMES[method])(X * 0, [2, 3, 4])


@pytest.mark.usefixtures("flycoo_backend")
@_BY_METHOD
def test_rank_none_is_the_size_of_the_tensor(method):
    x = FlycooTensor.from_dense(np.ones((2, 3, 4)))
    found = getattr(decomposition, _NAMES[method])(x, None, init="random", n_iter_max=2)
    assert found.core.shape == x.shape


@pytest.mark.usefixtures("flycoo_backend")
def test_a_penalty_that_leaves_no_factor_gives_a_model_of_zeros():
    found, errors = decomposition.non_negative_tucker_hals(
        X, [2, 3, 4], n_iter_max=3, sparsity_coefficients=10**6, return_errors=True
    )
    assert errors[-1] == 1
    assert not found.factors[0].any()


@pytest.mark.usefixtures("flycoo_backend")
def test_the_last_mode_is_updated_although_it_is_fixed():
    with pytest.warns(UserWarning, match="the last one, which cannot be fixed"):
        found = decomposition.non_negative_tucker_hals(
            X, [2, 3, 4], init=GUESS, fixed_modes=[1, 2], n_iter_max=2
        )
    np.testing.assert_array_equal(found.factors[1], GUESS[1][1])
    assert (found.factors[2] != GUESS[1][2]).any()


@pytest.mark.usefixtures("flycoo_backend")
@_BY_METHOD
def test_a_function_imported_before_refuses_the_tensor(method):
    with pytest.raises(DensifyError, match=r"import tensorly_flycoo before it"):
        tensorly_loop(_NAMES[method])(X, [2, 3, 4])
