"""parafac and non_negative_parafac with missing values, on sparse tensors and dense twins."""

from functools import partial

import numpy as np
import pytest
import sparse
import tensorly as tl
from rounding import check_same_as_dense
from sparse_problems import (
    BOTH_KINDS,
    BOTH_PRECISIONS,
    ErrorTracker,
    community_coo,
    densification_alarm,
    random_coo,
    reconstruct,
)
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import (
    CP,
    non_negative_parafac,
    non_negative_tucker,
    parafac,
    partial_tucker,
    tucker,
)

from tensorly_flycoo import DensifyError, FlycooTensor, decomposition

_RANK = 3
_SHAPES = {2: (14, 15), 3: (9, 11, 10), 4: (8, 6, 9, 7)}
_FUNCTIONS = {"parafac": parafac, "non-negative": non_negative_parafac}


def make_mask(coo, num_stored, num_empty, seed=3):
    """Mask some stored and some other entries of a COO; return the mask and its dense twin."""
    rng = np.random.RandomState(seed)
    stored = np.ravel_multi_index(coo.coords, coo.shape)
    empty = np.setdiff1d(np.arange(np.prod(coo.shape)), stored)
    cells = [rng.choice(stored, num_stored, replace=False), rng.choice(empty, num_empty, False)]
    coords = np.stack(np.unravel_index(np.concatenate(cells), coo.shape))
    dtype = coo.dtype if coo.dtype.kind == "f" else np.float64
    zeros, one = np.zeros(coords.shape[1], dtype), dtype.type(1) if dtype == coo.dtype else 1.0
    twin = np.ones(coo.shape, dtype)
    twin[tuple(coords)] = 0
    return sparse.COO(coords, zeros, shape=coo.shape, fill_value=one), twin


def _init(shape, dtype):
    rng = np.random.RandomState(11)
    factors = [(0.1 + rng.random_sample((size, _RANK))).astype(dtype) for size in shape]
    return {"init": CPTensor((np.array([0.5, 1.0, 2.0], dtype), factors))}


_RANDOM = {"init": "random"}
_OF_BOTH = {
    "random": lambda shape, dtype: _RANDOM,
    "svd": lambda shape, dtype: {},
    "init": _init,
    "normalize": lambda shape, dtype: _RANDOM | {"normalize_factors": True},
    "fixed": lambda shape, dtype: _init(shape, dtype) | {"fixed_modes": [1]},
    "tol": lambda shape, dtype: _RANDOM | {"tol": 1e-2, "cvg_criterion": "rec_error"},
    "tol=0": lambda shape, dtype: _RANDOM | {"tol": 0, "return_errors": False},
}
_OF_PARAFAC = {
    "no repeats": lambda shape, dtype: {"svd_mask_repeats": 0},
    "linesearch": lambda shape, dtype: _RANDOM | {"linesearch": True, "n_iter_max": 10},
    "orthogonalise": lambda shape, dtype: _RANDOM | {"orthogonalise": 2},
    "l2_reg": lambda shape, dtype: _RANDOM | {"l2_reg": 0.1},
}
_CASES = [
    *((name, kind, make) for name, make in _OF_BOTH.items() for kind in _FUNCTIONS),
    *((name, "parafac", make) for name, make in _OF_PARAFAC.items()),
]


def _check(coo, function, make_options, kind, masks=None):
    mask, twin = make_mask(coo, 12, 13) if masks is None else masks

    def decompose(x):
        options = {"rank": _RANK, "n_iter_max": 8, "tol": 1e-30, "random_state": 5}
        options |= {"return_errors": True} | make_options(coo.shape, twin.dtype)
        return function(x, mask=twin if isinstance(x, np.ndarray) else mask, **options)

    check_same_as_dense(decompose, coo, kind, _RANK)


@BOTH_PRECISIONS
@pytest.mark.parametrize(
    ("function", "make_options"),
    [(_FUNCTIONS[kind], make) for _, kind, make in _CASES],
    ids=[f"{kind}-{name}" for name, kind, _ in _CASES],
)
def test_same_as_dense(function, make_options, dtype, kind):
    _check(community_coo(_SHAPES[3], np.dtype(dtype), seed=1), function, make_options, kind)


@pytest.mark.parametrize("ndim", [2, 4])
@pytest.mark.parametrize("function", _FUNCTIONS.values(), ids=_FUNCTIONS)
@pytest.mark.parametrize("name", ["random", "svd"])
def test_any_number_of_modes(name, function, ndim):
    _check(community_coo(_SHAPES[ndim], seed=1), function, _OF_BOTH[name], lambda coo: coo)


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize(("num_stored", "num_empty"), [(0, 1), (0, 30), (30, 0), (1, 0)])
def test_stored_and_other_missing_entries(num_stored, num_empty, layout):
    coo = community_coo(_SHAPES[3], seed=1)
    masks = make_mask(coo, num_stored, num_empty)

    def kind(coo):
        return FlycooTensor.from_coo(coo, layout=layout)

    _check(coo, parafac, _OF_BOTH["svd"], kind, masks)


@BOTH_KINDS
def test_counts(kind):
    coo = community_coo(_SHAPES[3], np.int64, seed=1)
    _check(coo, parafac, _OF_BOTH["svd"], kind)


def _recast_mask(mask, name):
    if name == "bool":
        return mask.astype(bool)
    if name == "stored ones":
        coords = np.concatenate([mask.coords, [[0], [0], [0]]], axis=1)
        return sparse.COO(coords, np.append(mask.data, 1.0), mask.shape, fill_value=1.0)
    return sparse.DOK.from_coo(mask)


@pytest.mark.parametrize("name", ["bool", "stored ones", "DOK"])
@pytest.mark.usefixtures("flycoo_backend")
def test_kinds_of_masks(name):
    coo = community_coo(_SHAPES[3], seed=1)
    mask, _ = make_mask(coo, 10, 10, seed=4)
    assert not (mask.coords == 0).all(axis=0).any()
    options = {"rank": _RANK, "init": "random", "random_state": 0, "n_iter_max": 3}
    expected = parafac(coo, mask=mask, **options)
    found = parafac(coo, mask=_recast_mask(mask, name), **options)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


@BOTH_KINDS
@pytest.mark.usefixtures("flycoo_backend")
def test_a_mask_of_nothing_changes_nothing(kind):
    coo = community_coo(_SHAPES[3], seed=1)
    mask = sparse.COO(np.zeros((3, 1), int), np.ones(1), coo.shape, fill_value=1.0)
    options = {"rank": _RANK, "init": "random", "random_state": 0, "n_iter_max": 3}
    found, expected = (parafac(kind(coo), mask=m, **options) for m in (mask, None))
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


@BOTH_KINDS
def test_callback_and_class(kind):
    coo = community_coo(_SHAPES[3], seed=1)
    mask, twin = make_mask(coo, 12, 13)
    trackers = [ErrorTracker(stop_after=5) for _ in range(2)]
    options = {"rank": _RANK, "init": "random", "random_state": 0}
    with tl.backend_context("numpy"):
        dense = np.zeros(coo.shape)
        dense[tuple(coo.coords)] = coo.data
        expected = CP(mask=twin, **options, n_iter_max=4, tol=1e-30).fit_transform(dense)
        parafac(dense, mask=twin, callback=trackers[0], **options)
    with tl.backend_context("flycoo"), densification_alarm():
        found = CP(mask=mask, **options, n_iter_max=4, tol=1e-30).fit_transform(kind(coo))
        parafac(kind(coo), mask=mask, callback=trackers[1], **options)
    np.testing.assert_allclose(trackers[1].errors, trackers[0].errors, rtol=1e-10)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, other, rtol=1e-9)


@BOTH_KINDS
@pytest.mark.usefixtures("flycoo_backend")
def test_imputation(kind):
    """As TensorLy tests it: the start forgets gross errors; factors fit the whole tensor."""
    rng = np.random.RandomState(0)
    whole = reconstruct([rng.random_sample((4, 1)) for _ in range(3)])
    coords = np.stack(np.nonzero(np.ones((4, 4, 4))))
    is_missing = ((coords[0] == 1) & (coords[2] == 3)) | ((coords[1] == 2) & (coords[2] == 3))
    values, missing = whole[tuple(coords)], coords[:, is_missing]
    wrong = sparse.COO(coords, np.where(is_missing, -10.0, values), shape=whole.shape)
    observed = sparse.COO(coords[:, ~is_missing], values[~is_missing], shape=whole.shape)
    mask = sparse.COO(missing, np.zeros(missing.shape[1]), whole.shape, fill_value=1.0)
    with densification_alarm():
        starts = [
            parafac(kind(wrong), 1, mask=mask, svd_mask_repeats=n, n_iter_max=0) for n in (0, 10)
        ]
        found = parafac(kind(observed), 1, mask=mask, n_iter_max=500, tol=1e-14)
    distances = [np.linalg.norm(reconstruct(cp.factors) - whole) for cp in starts]
    assert distances[1] < 0.9 * distances[0]
    assert np.abs(reconstruct(found.factors) - whole).max() < 1e-3 * np.abs(whole).max()


@BOTH_KINDS
@pytest.mark.parametrize(
    ("function", "starts_by_svd"),
    # The non-negative SVD start uses the mean of all cells, which depends on the shape.
    [(parafac, False), (parafac, True), (non_negative_parafac, False)],
    ids=["parafac-init", "parafac-svd", "non-negative-init"],
)
def test_more_cells_than_64_bits_count(function, starts_by_svd, kind):
    """A tensor spread over 2**70 cells with its missing entries has the same nonzero rows."""
    small = community_coo((6, 7, 6, 7, 6), seed=1)
    mask, _ = make_mask(small, 5, 5)
    shape, rows = (2**14,) * 5, [2**11 * np.arange(size) + 5 for size in small.shape]

    def spread(coo, **options):
        coords = np.stack([row[c] for row, c in zip(rows, coo.coords, strict=True)])
        return sparse.COO(coords, coo.data, shape, sorted=True, has_duplicates=False, **options)

    def factors(shape):
        rng = np.random.RandomState(0)
        small_factors = [rng.random_sample((size, _RANK)) for size in small.shape]
        if shape == small.shape:
            return small_factors
        large = [np.zeros((size, _RANK)) for size in shape]
        for factor, row, small_factor in zip(large, rows, small_factors, strict=True):
            factor[row] = small_factor
        return large

    def decompose(x, mask):
        init = {} if starts_by_svd else {"init": CPTensor((None, factors(x.shape)))}
        cp_tensor, errors = function(
            x, _RANK, mask=mask, n_iter_max=3, return_errors=True, tol=1e-30, **init
        )
        return cp_tensor.factors, errors

    with tl.backend_context("flycoo"), densification_alarm():
        expected, expected_errors = decompose(small, mask)
        found, errors = decompose(kind(spread(small)), spread(mask, fill_value=1.0))
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-9)
    for factor, other, row in zip(found, expected, rows, strict=True):
        np.testing.assert_allclose(factor[row], other, rtol=1e-8, atol=1e-10)


@BOTH_PRECISIONS
@pytest.mark.parametrize("sizes", [(9, 1, 10), (1, 11, 1)], ids=str)
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize(
    ("function", "options"),
    [
        (parafac, {}),
        (parafac, {"normalize_factors": True, "l2_reg": 0.1}),
        (parafac, {"linesearch": True}),
        (non_negative_parafac, {}),
        (non_negative_parafac, {"normalize_factors": True}),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_a_mask_that_broadcasts_is_a_whole_one(function, options, is_sparse, sizes, dtype, kind):
    """TensorLy gets the whole mask, and zeros there, where blocks begin."""
    coo = community_coo(_SHAPES[3], np.dtype(dtype), seed=1)
    small = (np.random.RandomState(2).random_sample(sizes) < 0.8).astype(dtype)
    missing = np.stack(np.nonzero(small == 0))
    of_ours = sparse.COO(missing, np.zeros(missing.shape[1], dtype), sizes, fill_value=small.max())
    options = {"init": "random", "random_state": 5, "n_iter_max": 8, "tol": 1e-30} | options

    def decompose(x):
        is_dense = isinstance(x, np.ndarray)
        mask = np.broadcast_to(small, x.shape).copy() if is_dense else small
        mask = of_ours if is_sparse and not is_dense else mask
        given = x * mask if is_dense else x
        return function(given, _RANK, mask=mask, return_errors=True, **options)

    check_same_as_dense(decompose, coo, kind, _RANK)


def run_em(step, x, mask, ranks, init, n_iter_max):
    """TensorLy's own steps, on a dense tensor that is imputed before each."""
    core, factors = init
    with tl.backend_context("numpy"):
        errors = []
        for _ in range(n_iter_max):
            x = x * mask + tl.tucker_to_tensor((core, factors)) * (1 - mask)
            (core, factors), (error,) = step(x, ranks, n_iter_max=1, init=(core, list(factors)))
            errors.append(error)
    return core, factors, errors


@BOTH_KINDS
@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize(
    ("function", "step"),
    [
        (tucker, partial_tucker),
        (non_negative_tucker, partial(non_negative_tucker, return_errors=True)),
    ],
    ids=["tucker", "non-negative"],
)
def test_tucker_is_dense_em_tucker(function, step, is_small, kind):
    coo, ranks = community_coo(_SHAPES[3], seed=1), (2, 3, 2)
    mask, twin = make_mask(coo, 12, 40)
    if is_small:
        mask = (np.random.RandomState(2).random_sample((9, 1, 10)) < 0.8) * 1.0
        twin = np.broadcast_to(mask, coo.shape)
    rng = np.random.RandomState(0)
    init = (
        rng.random_sample(ranks),
        [rng.random_sample(of) for of in zip(coo.shape, ranks, strict=True)],
    )
    core, factors, errors = run_em(step, coo.todense(), twin, ranks, init, 6)
    ours = getattr(decomposition, function.__name__)
    options = {"n_iter_max": 6, "tol": 0, "return_errors": True, "mask": mask}
    tracker = ErrorTracker()
    with tl.backend_context("flycoo"), densification_alarm():
        model, found = ours(kind(coo), ranks, init=init, **options)
        again, _ = ours(kind(coo), ranks, init=init, callback=tracker, **options)
    np.testing.assert_allclose(found, errors, rtol=1e-8)
    for given in (model, again):
        expected = np.einsum("abc,ia,jb,kc->ijk", core, *factors)
        whole = np.einsum("abc,ia,jb,kc->ijk", given[0], *given[1])
        np.testing.assert_allclose(whole, expected, atol=1e-8 * np.abs(expected).max())


@pytest.mark.usefixtures("flycoo_backend")
def test_tucker_finds_hidden_entries():
    rng = np.random.RandomState(0)
    factors = [rng.random_sample((size, 2)) for size in (12, 13, 14)]
    whole = np.einsum("abc,ia,jb,kc->ijk", rng.random_sample((2, 2, 2)), *factors)
    mask = (rng.random_sample(whole.shape) < 0.9) * 1.0
    coo = sparse.COO.from_numpy(whole * mask)
    options = {"mask": mask, "n_iter_max": 50, "tol": 0, "random_state": 0}
    model = tl.decomposition.tucker(coo, [2, 2, 2], init="random", **options)
    found = np.einsum("abc,ia,jb,kc->ijk", model[0], *model[1])
    assert np.abs(found - whole).max() < 1e-10
    # TensorLy's start by singular vectors, which ends in a poor minimum here.
    ours = tl.decomposition.tucker(coo, [2, 2, 2], **options)
    with tl.backend_context("numpy"):
        theirs = tucker(whole * mask, [2, 2, 2], **options | {"tol": 0})
    found, expected = (np.einsum("abc,ia,jb,kc->ijk", m[0], *m[1]) for m in (ours, theirs))
    np.testing.assert_allclose(found, expected, atol=1e-8)
    with pytest.raises(ValueError, match="fixed_factors"):
        tl.decomposition.tucker(coo, [2, 2, 2], mask=mask, fixed_factors=[0], init=model)


_BAD_MASKS = {
    "shape": (lambda m: sparse.COO([[0], [0]], [0.0], (4, 5), fill_value=1.0), ValueError, "shape"),
    "fill_value 2": (
        lambda m: sparse.COO(m.coords, m.data, m.shape, fill_value=2.0), ValueError, "holds 2.0"
    ),
    "a half": (
        lambda m: sparse.COO(m.coords, m.data + 0.5, m.shape, fill_value=1.0), ValueError, "0.5"
    ),
    "fill_value 0": (
        lambda m: sparse.COO(m.coords, m.data + 1, m.shape), DensifyError, "observed_parafac"
    ),
    "FlycooTensor": (
        lambda m: FlycooTensor(m.coords, m.data + 1, m.shape), DensifyError, "observed_parafac"
    ),
    "a list": (lambda m: [1, 0], TypeError, "mask is a list, expected a sparse.COO"),
    "dense, shape": (lambda m: np.ones((4, 5)), ValueError, "shape"),
    "dense, a half": (lambda m: np.full(m.shape, 0.5), ValueError, "0.5"),
}  # fmt: skip


@BOTH_KINDS
@pytest.mark.parametrize("function", _FUNCTIONS.values(), ids=_FUNCTIONS)
@pytest.mark.parametrize(("make", "error", "text"), _BAD_MASKS.values(), ids=_BAD_MASKS)
@pytest.mark.usefixtures("flycoo_backend")
def test_a_bad_mask_is_named(make, error, text, function, kind):
    coo = random_coo((4, 5, 6), 40)
    mask, _ = make_mask(coo, 2, 2)
    with pytest.raises(error, match=text):
        function(kind(coo), 2, mask=make(mask))


@BOTH_KINDS
@pytest.mark.parametrize("function", _FUNCTIONS.values(), ids=_FUNCTIONS)
@pytest.mark.parametrize("dtype", [bool, int, np.float64])
@pytest.mark.usefixtures("flycoo_backend")
def test_a_dense_mask_marks_the_same_entries(dtype, function, kind):
    coo = random_coo((4, 5, 6), 40)
    mask, _ = make_mask(coo, 2, 2)
    (_, factors), expected = (
        function(kind(coo), 2, mask=given, random_state=0, init="random", n_iter_max=2)
        for given in (mask.todense().astype(dtype), mask)
    )
    for factor, other in zip(factors, expected[1], strict=True):
        np.testing.assert_array_equal(factor, other)


@pytest.mark.usefixtures("flycoo_backend")
def test_a_sparse_mask_of_a_dense_tensor_is_named():
    mask, _ = make_mask(random_coo((4, 5, 6), 40), 2, 2)
    with pytest.raises(TypeError, match="tensor is a ndarray, expected a sparse one"):
        parafac(np.ones((4, 5, 6)), 2, mask=mask)
