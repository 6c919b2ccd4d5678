"""TensorLy's functions that subtract models, and those of differences, as for dense tensors."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from sparse_problems import BOTH_KINDS, dense_of, densification_alarm, random_coo
from tensorly.cp_tensor import CPTensor, cp_lstsq_grad
from tensorly.decomposition import (
    CPPower,
    SymmetricCP,
    parafac,
    parafac_power_iteration,
    power_iteration,
)

from tensorly_flycoo import (
    DensifyError,
    FlycooTensor,
    LabelledTensor,
    Progress,
    center,
    decomposition,
)

SHAPE = (6, 7, 8)
SHORT = {"n_repeat": 2, "n_iteration": 5}
START = {"init": "random", "random_state": 0, "n_iter_max": 10, "return_errors": True}


pytestmark = pytest.mark.usefixtures("flycoo_backend", "each_tenalg")


def as_dense(function, *arguments, **options):
    """Call a function of TensorLy with dense arrays, under its own backend."""
    np.random.seed(0)
    with tl.backend_context("numpy"):
        return function(*arguments, **options)


def as_sparse(function, *arguments, **options):
    np.random.seed(0)
    with densification_alarm():
        return function(*arguments, **options)


def make_symmetric():
    """Make a symmetric tensor with two large components, which power iterations find."""
    rows = np.zeros((7, 2))
    rows[[0, 1, 2], 0] = 1, 2, 3
    rows[[4, 6], 1] = 2, -1
    return sparse.COO.from_numpy(np.einsum("ar,br,cr", rows, rows, rows))


def check_models(found, expected):
    """Compare weights and factors, which rounding changes little: iterations contract."""
    for array, exact in zip(flatten(found), flatten(expected), strict=True):
        np.testing.assert_allclose(array, exact, rtol=1e-10, atol=1e-10)


def flatten(model):
    weights, factors = model
    return [weights, *factors] if isinstance(factors, list) else [weights, factors]


@BOTH_KINDS
def test_power_iterations(kind):
    coo = random_coo(SHAPE, 50)
    dense = dense_of(coo, np.float64)
    for function in (
        lambda x: parafac_power_iteration(x, 3, **SHORT),
        lambda x: CPPower(3, **SHORT).fit_transform(x),
    ):
        check_models(as_sparse(function, kind(coo)), as_dense(function, dense))


@BOTH_KINDS
def test_symmetric_power_iterations(kind):
    coo = make_symmetric()

    def decompose(x):
        return SymmetricCP(2, **SHORT).fit_transform(x)

    expected = as_dense(decompose, dense_of(coo, np.float64))
    check_models(as_sparse(decompose, kind(coo)), expected)


def test_the_deflated_tensor(capsys):
    coo = random_coo(SHAPE, 50)
    dense = dense_of(coo, np.float64)
    *_, deflated = as_sparse(power_iteration, coo, verbose=True, **SHORT)
    shown = capsys.readouterr().out
    *_, expected = as_dense(power_iteration, dense, verbose=True, **SHORT)
    assert shown.split()[-1][:8] == capsys.readouterr().out.split()[-1][:8]  # the explained part
    cells = np.indices(SHAPE).reshape(3, -1)
    np.testing.assert_allclose(deflated.entries(cells), expected.reshape(-1), atol=1e-10)


def test_dense_tensors_stay_tensorlys():
    dense = dense_of(random_coo(SHAPE, 50), np.float64)
    *_, expected = as_dense(power_iteration, dense, **SHORT)
    np.random.seed(0)
    *_, deflated = power_iteration(dense, **SHORT)
    np.testing.assert_allclose(deflated, expected, atol=1e-10)


@BOTH_KINDS
def test_gradient_of_least_squares(kind):
    coo = random_coo(SHAPE, 50)
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((size, 3)) for size in SHAPE]
    model = CPTensor((rng.standard_normal(3), factors))
    dense = dense_of(coo, np.float64)
    # TensorLy's attribute is replaced: a name bound before the import would stay what it was.
    (_, expected), expected_loss = as_dense(cp_lstsq_grad, model, dense, return_loss=True)
    (_, gradient), loss = as_sparse(tl.cp_tensor.cp_lstsq_grad, model, kind(coo), return_loss=True)
    for array, exact in zip(gradient, expected, strict=True):
        np.testing.assert_allclose(array, exact, rtol=1e-10, atol=1e-10 * np.abs(exact).max())
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    (_, gradient) = tl.cp_tensor.cp_lstsq_grad(model, kind(coo))
    np.testing.assert_allclose(gradient[0], expected[0], rtol=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_factors": True},
        {"orthogonalise": True, "l2_reg": 0.1},
        {"linesearch": True, "fixed_modes": [0]},
        {"callback": lambda *model_and_error: None},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_parafac_of_a_centred_tensor(options):
    coo = random_coo(SHAPE, 50)
    dense = dense_of(coo, np.float64)
    centred = center(center(coo, (1, 2)), (0, 2))
    dense_centred = dense - dense.mean((1, 2), keepdims=True)
    dense_centred = dense_centred - dense_centred.mean((0, 2), keepdims=True)
    expected, expected_errors = as_dense(parafac, dense_centred, 3, **START, **options)
    for function in (tl.decomposition.parafac, decomposition.parafac):
        model, errors = as_sparse(function, centred, 3, **START, **options)
        check_models(model, expected)
        np.testing.assert_allclose(errors, expected_errors, rtol=1e-10)


def test_what_parafac_of_a_difference_refuses(tmp_path):
    residual = center(random_coo(SHAPE, 50))
    with pytest.raises(DensifyError, match="init='random'"):
        parafac(residual, 2)
    for options in (
        {"linesearch": "nesterov"},
        {"mask": random_coo(SHAPE, 5)},
        {"sparsity": 0.5},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            decomposition.parafac(residual, 2, init="random", **options)
    with pytest.raises(ValueError, match="smoothness"):
        decomposition.parafac(residual, 2, init="random", smoothness=1.0)
    # It would have the digest of the tensor, without what is subtracted.
    progress = Progress(5, show=None, checkpoint=tmp_path / "run.npz")
    with progress, pytest.raises(ValueError, match="checkpoints"):
        parafac(residual, 2, init="random", callback=progress)


def test_tensor_algebra():
    coo = random_coo(SHAPE, 50)
    x = FlycooTensor.from_coo(coo)
    residual = center(x, (1, 2))
    dense = dense_of(coo, np.float64)
    dense = dense - dense.mean((1, 2), keepdims=True)
    vectors = [np.linspace(-1, 1, size) for size in SHAPE]
    scale = np.abs(dense).sum()
    np.testing.assert_allclose(tl.norm(residual), np.linalg.norm(dense), rtol=1e-12)
    for skip in (None, 0, 2):
        found = tl.tenalg.multi_mode_dot(residual, vectors, skip=skip)
        expected = as_dense(tl.tenalg.multi_mode_dot, dense, vectors, skip=skip)
        np.testing.assert_allclose(found, expected, atol=1e-12 * scale)
    found = tl.tenalg.mode_dot(tl.tenalg.mode_dot(residual, vectors[1], 1), vectors[0], 0)
    np.testing.assert_allclose(found, np.einsum("abc,a,b", dense, *vectors[:2]), atol=1e-12 * scale)
    for pair in (residual, x), (x, residual):
        expected = (dense * dense_of(coo, np.float64)).sum()
        np.testing.assert_allclose(tl.tenalg.inner(*pair), expected, rtol=1e-12)
    for refused in (
        lambda: tl.tenalg.mode_dot(residual, np.ones((2, 6)), 0),
        lambda: tl.tenalg.inner(residual, vectors[2], 1),
        lambda: tl.unfold(residual, 0),
        lambda: tl.sum(residual),
        lambda: tl.to_numpy(residual),
        lambda: tl.norm(residual, 1),
    ):
        with pytest.raises(DensifyError):
            refused()
    for function in (tl.decomposition.tucker, tl.decomposition.non_negative_parafac):
        with pytest.raises(TypeError, match="ResidualTensor"):
            function(residual, 2)


def test_a_tensor_with_labels():
    coo = random_coo(SHAPE, 50)
    x = LabelledTensor(FlycooTensor.from_coo(coo), [list(range(size)) for size in SHAPE])
    check_models(
        as_sparse(parafac_power_iteration, x, 2, **SHORT),
        as_dense(parafac_power_iteration, dense_of(coo, np.float64), 2, **SHORT),
    )
