"""PARAFAC2 with penalised rows: an iteration in NumPy, its objective, the minimum and refusals."""

import numpy as np
import pytest
import scipy.sparse
from row_penalty_statements import find_excess, measure_penalty, update_densely
from tensorly.cp_tensor import CPTensor
from tensorly.parafac2_tensor import parafac2_to_slices

from tensorly_flycoo import RaggedTensor
from tensorly_flycoo.decomposition import parafac2

RANK, WIDTH = 3, 15
HEIGHTS = (8, 5, 9, 6, 7, 5, 9, 8)
EPS = np.finfo(float).eps

#: Penalties by mode: name and strength.
CASES = {
    "columns": {2: ("l1_reg", 0.5)},
    "both": {0: ("l1_reg", 0.3), 2: ("group_lasso", 0.5)},
    "slices": {0: ("group_lasso", 0.5)},
}
EACH_CASE = pytest.mark.parametrize("penalties", CASES.values(), ids=CASES)


def make_dense():
    rng = np.random.default_rng(1)
    shapes = [(height, WIDTH) for height in HEIGHTS]
    return [rng.standard_normal(shape) * (rng.random(shape) < 0.6) for shape in shapes]


def make_guess():
    rng = np.random.RandomState(0)
    return [rng.random_sample((size, RANK)) for size in (len(HEIGHTS), RANK, WIDTH)]


def make_options(penalties):
    """Return the options of `parafac2` for penalties by mode."""
    options = {"l1_reg": {}, "group_lasso": {}}
    for mode, (name, strength) in penalties.items():
        options[name][mode] = strength
    return options


def decompose(dense, dtype="float64", **options):
    slices = [scipy.sparse.csr_array(part.astype(dtype)) for part in dense]
    options = {"random_state": 0, "tol": 0, "return_errors": True} | options
    return parafac2(slices, RANK, **options)


def measure_all(penalties, factors):
    """Return the penalties and ridges of all factors."""
    total = 0.0
    for mode, factor in enumerate(factors):
        if mode in penalties:
            total += measure_penalty(*penalties[mode], factor)
        else:
            total += (factor**2).sum()
    return total


def project(dense, factors):
    """Return the projected slices (K, R, J) that suit the factors best, and the projections."""
    a, b, c = factors
    projections = []
    for part, row in zip(dense, a, strict=True):
        left, _, right = np.linalg.svd(part @ c @ np.diag(row) @ b.T, full_matrices=False)
        projections.append(left @ right)
    return np.stack([p.T @ part for p, part in zip(projections, dense, strict=True)]), projections


def make_system(projected, factors, mode):
    """Return the MTTKRP of the projected slices, and the Gram matrix of a factor's systems."""
    letters = ["kr", "ir", "jr"]
    first, second = (n for n in range(3) if n != mode)
    subscripts = f"kij,{letters[first]},{letters[second]}->{letters[mode]}"
    product = np.einsum(subscripts, projected, factors[first], factors[second])
    grams = [factors[n].T @ factors[n] for n in (first, second)]
    return product, grams[0] * grams[1]


@EACH_CASE
def test_an_iteration_is_that_of_numpy(penalties):
    dense, factors = make_dense(), make_guess()
    init = CPTensor((None, [factors[0], np.concatenate([factors[1]] * 2), factors[2]]))
    factors[1] = np.linalg.qr(init.factors[1])[1]
    options = {"init": init, "n_iter_max": 1, "n_iter_parafac": 2}
    found, errors = decompose(dense, **make_options(penalties), **options)

    projected, projections = project(dense, factors)
    for mode in (0, 1, 2) * 2:
        product, gram = make_system(projected, factors, mode)
        if mode in penalties:
            factors[mode] = update_densely(*penalties[mode], factors[mode], product, gram)
        else:
            factors[mode] = np.linalg.solve(gram + 2 * np.eye(RANK), product.T).T
    for one, other in zip(found.factors, factors, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * abs(other).max())
    model = [
        p @ factors[1] @ np.diag(row) @ factors[2].T
        for p, row in zip(projections, factors[0], strict=True)
    ]
    residual = sum(((part - own) ** 2).sum() for part, own in zip(dense, model, strict=True))
    square = sum((part**2).sum() for part in dense)
    assert errors[-1] == pytest.approx((residual / square) ** 0.5, rel=1e-10)


@EACH_CASE
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("float64", {}),
        ("float64", {"nn_modes": [1]}),
        ("float64", {"center": True}),
        ("float64", {"init": "svd"}),
        ("float32", {}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:nn_modes has mode 1")
def test_the_objective_never_rises(penalties, dtype, options):
    dense = make_dense()
    square = sum((part**2).sum() for part in dense)
    if "center" in options:
        rows = np.concatenate(dense)
        square = ((rows - rows.mean(axis=0)) ** 2).sum()
    objectives = []

    def note(model, error):
        factors = [factor.astype(float) for factor in model.factors]
        objectives.append(float(error) ** 2 * square / 2 + measure_all(penalties, factors))

    given = make_options(penalties) | options
    decompose(dense, dtype, n_iter_max=50, callback=note, **given)
    assert objectives[-1] < 0.9 * objectives[0]
    # The error is rounded, and so are the projections, twice.
    rounding = 2 * WIDTH * sum(HEIGHTS) * np.finfo(dtype).eps * objectives[0]
    assert np.diff(objectives).max() <= rounding


@EACH_CASE
def test_a_converged_model_is_a_critical_point(penalties):
    dense = make_dense()
    found, _ = decompose(dense, n_iter_max=3000, tol=1e-15, **make_options(penalties))
    factors = list(found.factors)
    pairs = zip(found.projections, dense, strict=True)
    projected = np.stack([projection.T @ part for projection, part in pairs])
    unit = np.sqrt(sum((part**2).sum() for part in dense))
    for mode in range(3):
        product, gram = make_system(projected, factors, mode)
        gradient = factors[mode] @ gram - product
        if mode in penalties:
            excess = find_excess(*penalties[mode], factors[mode], gradient)
        else:
            excess = abs(gradient + 2 * factors[mode]).max()
        # Errors that differ by 1e-15 leave a gradient of about the root of that.
        assert excess <= 1e-5 * unit
    best, _ = project(dense, factors)
    np.testing.assert_allclose(projected, best, rtol=0, atol=1e-5 * unit)


def test_non_negative_modes_may_have_an_l1_penalty():
    dense = [abs(part) for part in make_dense()]
    zeros = {}
    for strength in (0.01, 5.0):
        options = {"l1_reg": {2: strength}, "nn_modes": [0, 2], "n_iter_max": 40}
        (_, (a, _, c), _), _ = decompose(dense, **options)
        assert min(a.min(), c.min()) >= 0
        zeros[strength] = (c == 0).sum()
    assert zeros[0.01] < zeros[5.0]


def test_missing_entries_are_imputed():
    dense = make_dense()
    rng = np.random.default_rng(0)
    masks = [rng.random(part.shape) < 0.9 for part in dense]
    objectives = []

    def note(model, error):
        objectives.append(find_known_objective(dense, masks, model))

    decompose(dense, mask=masks, l1_reg={2: 0.5}, n_iter_max=40, callback=note)
    # The start has no projections of its own.
    assert np.diff(objectives[1:]).max() <= 2 * WIDTH * sum(HEIGHTS) * EPS * objectives[1]


def find_known_objective(dense, masks, model):
    """Return the objective over the known cells, for the projections that suit them best."""
    factors = list(model.factors)
    cells = None
    for _ in range(200):
        if cells is None:
            filled = [np.where(mask, part, 0) for mask, part in zip(masks, dense, strict=True)]
        else:
            triples = zip(masks, dense, cells, strict=True)
            filled = [np.where(mask, part, own) for mask, part, own in triples]
        _, projections = project(filled, factors)
        cells = parafac2_to_slices((None, factors, projections), validate=False)
    residual = sum(
        (((part - own) * mask) ** 2).sum()
        for part, own, mask in zip(dense, cells, masks, strict=True)
    )
    return residual / 2 + measure_all({2: ("l1_reg", 0.5)}, factors)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("penalties", "powers", "power"),
    [(CASES["columns"], (1, 1, -1), 3), (CASES["both"], (0, 1, 0), 2)],
    ids=["columns", "both"],
)
def test_strengths_are_of_the_values_as_they_are(penalties, powers, power, dtype):
    """Ridges keep their weight, whatever the unit of the values."""
    c = {"float64": 2.0**240, "float32": 2.0**48}[dtype]
    dense, guess = make_dense(), make_guess()
    models = []
    for scale in (1.0, c):
        factors = [
            (factor * scale**share).astype(dtype)
            for factor, share in zip(guess, powers, strict=True)
        ]
        scaled = {
            mode: (name, strength * scale**power) for mode, (name, strength) in penalties.items()
        }
        slices = [part * scale for part in dense]
        options = make_options(scaled) | {"init": CPTensor((None, factors)), "n_iter_max": 10}
        models.append(decompose(slices, dtype, **options))
    (plain, errors), (large, large_errors) = models
    np.testing.assert_allclose(large_errors, errors, rtol=1e-5)
    for one, other, share in zip(large.factors, plain.factors, powers, strict=True):
        np.testing.assert_allclose(one / c**share, other, rtol=0, atol=1e-4 * abs(other).max())


def test_all_zeros_are_warned_of():
    with pytest.warns(UserWarning, match=r"parafac2 ended in all zeros: l1_reg={2: 1000\.0} is"):
        found, _ = decompose(make_dense(), l1_reg={2: 1e3}, n_iter_max=50)
    assert not any(factor.any() for factor in found.factors)


def test_modes_may_be_named():
    rows = scipy.sparse.csr_array(np.concatenate(make_dense()))
    x = RaggedTensor(rows, by=np.repeat(np.arange(len(HEIGHTS)), HEIGHTS))
    found = parafac2(x, RANK, l1_reg={2: 0.5}, random_state=0, n_iter_max=3)
    ridge = {"l2_square_reg": 1.0}
    assert found.flycoo.constraints == {0: ridge, 1: ridge, 2: {"l1_reg": 0.5}}


BAD = {
    "rows": ({"l1_reg": {1: 1.0}}, "l1_reg.* has mode 1, expected modes 0 or 2"),
    "all": ({"group_lasso": 1.0}, "group_lasso.* has mode 1, expected modes 0 or 2"),
    "signs": ({"group_lasso": {0: 1.0}, "nn_modes": [0]}, "group_lasso has mode 0 of nn_modes"),
    "unit": ({"l1_reg": {0: 1.0}, "normalize_factors": True}, "normalize_factors is True, expecte"),
    "smooth": ({"l1_reg": {0: 1.0}, "smoothness": {2: 1.0}}, "smoothness is .*, expected its"),
    "old": (
        {"l1_reg": {0: 1.0}, "sparsity_coefficients": 1.0, "nn_modes": [2]},
        "sparsity_coefficients is 1.0, expected its default",
    ),
}


@pytest.mark.parametrize(("options", "words"), BAD.values(), ids=BAD)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=words):
        decompose(make_dense(), **options)
