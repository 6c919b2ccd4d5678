"""PARAFAC2 of many slices at once: projections, centring, deficient slices, checkpoints."""

import itertools

import numpy as np
import pytest
import scipy.sparse
import sparse
from slow_cases import thin_out
from tensorly.cp_tensor import CPTensor
from tensorly.parafac2_tensor import Parafac2Tensor, parafac2_to_slices

from tensorly_flycoo import DensifyError, FlycooTensor, Progress, RaggedTensor
from tensorly_flycoo.decomposition import parafac2
from tensorly_flycoo.loop import projected_slices
from tensorly_flycoo.loop.guarding import tensorly_loop
from tensorly_flycoo.ops import ragged
from tensorly_flycoo.testing import random_tensor

RANK = 3
HEIGHTS = (6, 2, 9, 4, 6, 1, 9)
OPTIONS = {"random_state": 0, "n_iter_max": 8, "tol": 0, "return_errors": True}


def make_dense(heights=HEIGHTS, density=0.8, width=8):
    rng = np.random.default_rng(1)
    shapes = [(height, width) for height in heights]
    return [rng.standard_normal(shape) * (rng.random(shape) < density) for shape in shapes]


def decompose(dense, rank=RANK, dtype=np.float64, **options):
    slices = [scipy.sparse.csr_array(part.astype(dtype)) for part in dense]
    return parafac2(slices, rank, **OPTIONS | options)


def check_model(model):
    """Let TensorLy check that projections are orthonormal; return the model's slices."""
    return parafac2_to_slices(Parafac2Tensor((model.weights, model.factors, model.projections)))


def find_error(dense, model):
    """Return the relative error of a model."""
    parts = [part - model for part, model in zip(dense, check_model(model), strict=True)]
    return np.sqrt(sum((part**2).sum() for part in parts) / sum((part**2).sum() for part in dense))


def test_as_tensorly_with_slices_of_many_sizes():
    options = OPTIONS | {"tol": 1e-30, "n_iter_max": 20}
    expected, expected_errors = tensorly_loop("parafac2")(make_dense(), RANK, **options)
    found, errors = decompose(make_dense(), **options)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-10)
    for part, other in zip(check_model(found), check_model(expected), strict=True):
        np.testing.assert_allclose(part, other, atol=1e-8)


@pytest.mark.parametrize(
    "options", [{}, {"linesearch": False}, {"normalize_factors": True}], ids=str
)
@pytest.mark.parametrize("n_iter_max", [6, 7, 8])
def test_the_last_error_is_that_of_the_result(options, n_iter_max):
    """An extrapolation that fails leaves the last error, which the result's is below, in place."""
    dense = make_dense()
    model, errors = decompose(dense, n_iter_max=n_iter_max, **options)
    error = find_error(dense, model)
    if n_iter_max == 7 and options.get("linesearch", True):
        assert len(errors) == 6
        assert error <= errors[-1] * (1 + 1e-10)
    else:
        assert error == pytest.approx(errors[-1], rel=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["few nonzeros", "zero columns", "short"])
def test_slices_with_too_few_dimensions(kind, dtype):
    """Their projections are orthonormal, and errors those of the result."""
    heights = (1, 2, 3, 4) if kind == "short" else (6, 4, 9, 8)
    dense = make_dense(heights, density=0.15 if kind == "few nonzeros" else 0.8)
    if kind == "zero columns":
        dense[1][:, 1:] = dense[3][:] = 0
    model, errors = decompose(dense, rank=4, dtype=dtype, linesearch=False)
    assert [part.dtype for part in model.projections] == [dtype] * 4
    tolerance = 2**10 * float(np.finfo(dtype).eps)
    assert find_error(dense, model) == pytest.approx(errors[-1], rel=tolerance)
    assert (np.diff(errors) <= tolerance).all()


def test_a_slice_without_rows_has_no_part_in_the_model():
    full, errors = decompose(make_dense(), init="svd")
    model, others = decompose([*make_dense(), np.zeros((0, 8))], init="svd")
    assert model.projections[-1].shape == (0, RANK)
    assert (model.factors[0][-1] == 0).all()
    np.testing.assert_allclose(others, errors, rtol=1e-10)
    np.testing.assert_allclose(model.factors[2], full.factors[2], rtol=1e-6)


def test_nearly_dependent_columns_give_orthonormal_projections():
    """One Gram matrix alone would miss orthonormality by about 1e-3."""
    dense = make_dense((9, 9, 9))
    for part in dense:
        part[:, 1:] = part[:, :1] + 1e-6 * part[:, 1:]
    model, _ = decompose(dense, linesearch=False, n_iter_max=3)
    for part in model.projections:
        np.testing.assert_allclose(part.T @ part, np.eye(RANK), atol=1e-12)


def test_float32_is_near_float64():
    _, errors = decompose(make_dense(), dtype=np.float32)
    _, expected = decompose(make_dense())
    np.testing.assert_allclose(errors, expected, rtol=1e-4)


SINGLE_ROWS = [[0, 0.99, 0, 0], [1, 0, 0, 0.5], [-0.6, -0.47, 0.1, 1]]
STARTS = [{}, {"random_state": 1}, {"init": "svd"}, {"linesearch": False}]


@pytest.mark.parametrize(
    ("row", "options", "dtype"),
    thin_out(itertools.product(SINGLE_ROWS, STARTS, ["float32", "float64"]), 5),
    ids=str,
)
def test_scales_of_a_single_slice_of_lower_rank_stay_finite(row, options, dtype):
    """Its systems are singular, and leave open how components divide their scale among factors."""
    dense = np.zeros((5, 4))
    dense[3] = row
    dense[1] = dense[3] * 0.3
    model, errors = decompose([dense], 2, dtype, **{"n_iter_max": 300, "tol": None} | options)
    limit = float(np.finfo(dtype).max) ** 0.5
    assert max(abs(factor).max() for factor in model.factors) < limit
    assert errors[-1] < 1e3 * np.finfo(dtype).eps ** 0.5
    assert find_error([dense], model) < 1e3 * np.finfo(dtype).eps ** 0.5


def test_rows_that_are_all_the_same_leave_nothing_to_center():
    with pytest.raises(ValueError, match="all rows of tensor_slices are the same"):
        decompose([np.full((2, 3), 0.1), np.full((1, 3), 0.1)], 2, center=True)


def test_centering_is_that_of_the_dense_slices():
    dense = [part + 3 for part in make_dense()]
    mean = np.concatenate(dense).mean(axis=0)
    init = CPTensor(
        (
            None,
            [
                np.random.RandomState(n).random_sample((s, RANK))
                for n, s in enumerate((len(dense), RANK, 8))
            ],
        )
    )
    found, errors = decompose(dense, center=True, init=init)
    expected, expected_errors = decompose([part - mean for part in dense], init=init)
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-9)
    for part, other in zip(check_model(found), check_model(expected), strict=True):
        np.testing.assert_allclose(part, other, atol=1e-7)
    assert find_error([part - mean for part in dense], found) <= errors[-1] * (1 + 1e-9)


@pytest.mark.parametrize("options", [{}, {"nn_modes": [0, 2]}, {"init": "svd"}], ids=str)
def test_bits_do_not_depend_on_the_run_or_the_layout(options):
    first, errors = decompose(make_dense(), **options)
    for layout in ("remap", "indexed"):
        x = RaggedTensor(map(scipy.sparse.csr_array, make_dense()), layout=layout)
        second, again = parafac2(x, RANK, **OPTIONS | options)
        assert errors == again
        pairs = zip(
            [*first.factors, *first.projections],
            [*second.factors, *second.projections],
            strict=True,
        )
        assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("options", [{}, {"center": True}, {"init": "svd"}], ids=str)
@pytest.mark.parametrize("density", [0.05, 0.8])
def test_slices_of_many_sizes_share_batches(options, density, monkeypatch):
    """Slices are padded with empty rows; the result has none."""
    dense = make_dense((30, 2, 17, 40, 18, 33, 4), density)
    expected, expected_errors = decompose(dense, **options)
    monkeypatch.setattr(ragged, "_MAX_NUM_SIZES", 2)
    heights = RaggedTensor(map(scipy.sparse.csr_array, dense)).heights
    assert heights.tolist() == [30, 2, 18, 40, 18, 36, 4]
    found, errors = decompose(dense, **options)
    assert [part.shape for part in found.projections] == [(len(part), RANK) for part in dense]
    mean = np.concatenate(dense).mean(axis=0) if "center" in options else 0
    error = find_error([part - mean for part in dense], found)
    np.testing.assert_allclose([errors[-1], error], expected_errors[-1], rtol=1e-9)
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(factor, other, rtol=1e-5, atol=1e-8)


def test_long_slices_are_multiplied_one_by_one(monkeypatch):
    _, expected = decompose(make_dense())
    monkeypatch.setattr(projected_slices, "_MAX_BATCHED_ROWS", 4)
    _, errors = decompose(make_dense())
    np.testing.assert_allclose(errors, expected, rtol=1e-12)


def test_the_order_of_slices_does_not_matter():
    dense = make_dense()
    start = [np.random.RandomState(n).random_sample((s, RANK)) for n, s in enumerate((7, RANK, 8))]
    found, errors = decompose(dense, init=(None, start))
    order = np.array([3, 1, 6, 0, 2, 5, 4])
    other, others = decompose([dense[k] for k in order], init=(None, [start[0][order], *start[1:]]))
    np.testing.assert_allclose(errors, others, rtol=1e-10)
    np.testing.assert_allclose(other.factors[0], found.factors[0][order], rtol=1e-6)


def test_non_negative_modes():
    dense = [abs(part) for part in make_dense()]
    model, errors = decompose(dense, nn_modes=[0, 2])
    assert min(model.factors[0].min(), model.factors[2].min()) >= 0
    assert errors[-1] < errors[0]
    with pytest.warns(UserWarning, match="B will be non-negative"):
        model, _ = decompose(dense, nn_modes="all")
    assert min(factor.min() for factor in model.factors) >= 0


def test_sparsity_coefficients():
    dense = [abs(part) for part in make_dense()]
    options = {"normalize_factors": True, "nn_modes": [0, 2], "n_iter_max": 30}
    found, plain = (
        decompose(dense, sparsity_coefficients=penalties, **options)[0]
        for penalties in ([None, None, 2.0], [None] * 3)
    )
    assert (found.factors[2] == 0).sum() > (plain.factors[2] == 0).sum()
    assert min(found.factors[0].min(), found.factors[2].min()) >= 0
    np.testing.assert_allclose(np.linalg.norm(found.factors[2], axis=0), 1)
    with pytest.raises(ValueError, match="sparsity_coefficients is given, expected non-negative"):
        decompose(dense, sparsity_coefficients=1.0)
    with pytest.warns(UserWarning, match="ignored in unconstrained modes"):
        decompose(dense, sparsity_coefficients=[None, 1.0, None], nn_modes=[0])


def make_masks(dense=None):
    """Hide some entries of all slices but the first."""
    rng = np.random.default_rng(2)
    masks = [(rng.random(part.shape) < 0.85).astype(float) for part in dense or make_dense()]
    return [np.ones_like(masks[0]), *masks[1:]]


@pytest.mark.parametrize("kind", [np.asarray, lambda mask: sparse.COO(mask, fill_value=1)])
@pytest.mark.parametrize(
    "options", [{}, {"linesearch": False}, {"normalize_factors": True}, {"init": "svd"}], ids=str
)
def test_masks_are_those_of_tensorly(options, kind):
    """What a mask hides is not read, whether the slices store it or not."""
    dense, masks = make_dense((6, 3, 9, 4, 6, 5, 9)), make_masks(make_dense((6, 3, 9, 4, 6, 5, 9)))
    options = OPTIONS | {"tol": 1e-30, "n_iter_max": 20, "linesearch": True} | options
    seen = [part * mask for part, mask in zip(dense, masks, strict=True)]
    expected, expected_errors = tensorly_loop("parafac2")(seen, RANK, mask=masks, **options)
    for given in (dense, seen):
        found, errors = decompose(given, mask=[*map(kind, masks)], **options)
        np.testing.assert_allclose(errors, expected_errors, rtol=1e-10)
        for part, other in zip(check_model(found), check_model(expected), strict=True):
            np.testing.assert_allclose(part, other, atol=1e-8)


@pytest.mark.parametrize("kind", [np.asarray, lambda mask: sparse.COO(mask, fill_value=1)])
def test_masks_of_a_tensor_and_of_whole_rows(kind):
    x = random_tensor((5, 6, 7), 150, random_state=0)
    whole = np.random.default_rng(0).random((5, 1, 7)) < 0.8
    listed = kind(np.broadcast_to(whole, x.shape).astype(float))
    expected, errors = parafac2(x, 2, mask=listed, **OPTIONS)
    found, others = parafac2(x, 2, mask=[kind(mask.astype(float)) for mask in whole], **OPTIONS)
    assert errors == others
    np.testing.assert_array_equal(found.factors[2], expected.factors[2])
    _, errors = parafac2(x, 2, mask=np.ones(x.shape), **OPTIONS)
    assert errors == parafac2(x, 2, **OPTIONS)[1]


def test_unknown_entries_of_exact_slices_are_found():
    rng = np.random.default_rng(0)
    a, b, c = rng.random((8, 2)) + 0.5, rng.standard_normal((2, 2)), rng.standard_normal((12, 2))
    bases = [np.linalg.qr(rng.standard_normal((15, 2)))[0] for _ in a]
    dense = [basis @ b * row @ c.T for basis, row in zip(bases, a, strict=True)]
    options = {"n_iter_max": 2000, "tol": 1e-12, "random_state": 1}  # 0 ends in another minimum
    model, _ = decompose(dense, 2, mask=make_masks(dense), **options)
    assert find_error(dense, model) < 1e-6


@pytest.mark.parametrize("mask", [None, make_masks()])
@pytest.mark.parametrize("normalize_factors", [False, True])
def test_a_resumed_run_gives_the_same_bits(tmp_path, normalize_factors, mask):
    x = RaggedTensor(map(scipy.sparse.csr_array, make_dense()))
    options = {"linesearch": False, "normalize_factors": normalize_factors, "mask": mask}
    expected, errors = parafac2(x, RANK, **OPTIONS | options)
    for last in (3, 8):
        with Progress(last, show=None, checkpoint=tmp_path / "run.npz", every=1) as progress:
            options["init"] = progress.resume(default="random")
            options["n_iter_max"] = progress.n_iter_left
            found, _ = parafac2(x, RANK, callback=progress, **OPTIONS | options)
    assert progress.errors[1:] == errors
    for factor, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)
    with pytest.raises(ValueError, match="linesearch= cannot resume"):
        parafac2(x, RANK, init=options["init"], mask=mask)
    fewer = RaggedTensor(map(scipy.sparse.csr_array, make_dense()[1:]))
    with pytest.raises(ValueError, match="the checkpoint has shape"):
        parafac2(fewer, RANK, init=options["init"], linesearch=False, mask=mask and mask[1:])


def test_a_callback_stops():
    seen = []

    def stop(model, error):
        seen.append((model.shape, error))
        return len(seen) == 3

    _, errors = decompose(make_dense(), callback=stop)
    assert [shape for shape, _ in seen] == [(len(HEIGHTS), RANK, 8)] * 3
    assert [error for _, error in seen[1:]] == errors
    assert seen[0][1] > errors[0]


def test_no_iteration_returns_the_start():
    start, _ = decompose(make_dense(), n_iter_max=4)
    model, errors = decompose(make_dense(), n_iter_max=0, init=start)
    assert errors == []
    check_model(model)
    for factor, other in zip(model.factors, start.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


def test_a_cp_tensor_starts_as_tensorlys():
    x = random_tensor((4, 6, 8), 150, random_state=0)
    start = [np.random.RandomState(n).random_sample((s, RANK)) for n, s in enumerate(x.shape)]
    options = OPTIONS | {"init": CPTensor((np.array([1.0, 2.0, 0.5]), start)), "tol": 1e-30}
    _, expected = tensorly_loop("parafac2")(x.to_coo().todense(), RANK, **options)
    np.testing.assert_allclose(parafac2(x, RANK, **options)[1], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rank": 9}, ValueError, "rank is 9, expected at most 8"),
        ({"init": "some"}, ValueError, "init is 'some'"),
        ({"init": (None, [np.ones((7, 2))] * 3)}, ValueError, "factors"),
        ({"n_iter_parafac": 0}, ValueError, "n_iter_parafac is 0"),
        ({"nn_modes": "some"}, ValueError, "nn_modes is 'some'"),
        (
            {"nn_modes": [-1]},
            ValueError,
            r"nn_modes is \[-1\], expected 'all', None or some of \[0, 1, 2\]",
        ),
        (
            {"nn_modes": [0], "sparsity_coefficients": [1, None]},
            ValueError,
            "sparsity_coefficients has 2 numbers, expected 3",
        ),
        ({"init": "svd", "svd": "symeig_svd"}, DensifyError, "symeig_svd"),
        ({"mask": make_masks()[1:]}, ValueError, "mask has 6 slices, expected 7"),
        (
            {"mask": make_masks()[::-1]},
            ValueError,
            r"mask\[0\] has shape \(9, 8\), expected \(6, 8\)",
        ),
        ({"mask": 7 * ["all"]}, TypeError, r"mask\[0\] is a str"),
        ({"mask": [2 * mask for mask in make_masks()]}, ValueError, r"mask\[0\] holds 2.0"),
        ({"mask": [sparse.COO(mask) for mask in make_masks()]}, DensifyError, "observed"),
        ({"mask": [0 * mask for mask in make_masks()]}, ValueError, "no nonzeros"),
        ({"mask": make_masks(), "center": True}, ValueError, "center is True, expected False"),
    ],
)
def test_what_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        decompose(make_dense(), **options)


def test_slices_without_nonzeros_are_refused():
    with pytest.raises(ValueError, match="no nonzeros"):
        parafac2([FlycooTensor(np.zeros((2, 0), int), [], (2, 3))], 2)
