"""How far to trust a model: compared with dense arrays, and with what comes true.

`tests/conformance/test_model_table.py` tries each kind of model.
"""

import dataclasses
import importlib
import itertools
import math

import diagnose_study
import numpy as np
import pytest
import tensorly as tl
from dense_tangents import make_terracini
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, LabelledCP, LabelledTensor, diagnose
from tensorly_flycoo.base.checks import LAYOUTS
from tensorly_flycoo.base.fit_record import FitRecord, attach
from tensorly_flycoo.decomposition import non_negative_parafac_hals, parafac
from tensorly_flycoo.loop.terracini import Tangents
from tensorly_flycoo.models.slopes import Components, KnownCells, Slopes
from tensorly_flycoo.testing import planted_tensor

module = importlib.import_module("tensorly_flycoo.models.diagnose")

EPS = np.finfo(float).eps
LONG = {"n_iter_max": 1000, "tol": 1e-14, "init": "random", "random_state": 0}


@pytest.fixture(scope="module")
def fitted():
    """A tensor of three components with noise, and a model that has converged."""
    x, _ = planted_tensor((30, 20, 15), 3, 400, noise=0.1, random_state=0)
    with tl.backend_context("flycoo"):
        return x, parafac(x, 3, **LONG)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-6])
def test_the_error_is_exact_up_to_the_rounding_that_it_names(dtype, noise):
    """Also where ``|x|^2 + |model|^2 - 2 <x, model>`` would be all rounding."""
    x, factors = planted_tensor((30, 20, 15), 3, 400, noise=noise, random_state=0, dtype=dtype)
    factors = [factor.astype(dtype) for factor in factors]
    found = diagnose(x, (None, factors))
    dense = x.to_coo().todense().astype(float)
    exact = [factor.astype(float) for factor in factors]
    error = np.linalg.norm(dense - tl.cp_to_tensor((None, exact))) / np.linalg.norm(dense)
    assert abs(found.error - error) <= found.error_rounding + 10 * EPS
    assert found.error_rounding < 0.1 * found.error


def test_the_rounding_of_a_nearly_exact_fit_is_not_hidden():
    """The model's square at zeros is a difference: its root is as large as the rounding says."""
    x, factors = planted_tensor((30, 20, 15), 3, 400, random_state=0)
    found = diagnose(x, (None, factors))
    assert found.error <= found.error_rounding
    assert 1e-9 < found.error_rounding < 1e-5


def test_further_iterations_change_what_is_predicted(fitted):
    """From a model near the fixed point, to first order in the distance."""
    x, model = fitted
    random = np.random.RandomState(0)
    moved = [factor + 1e-5 * random.standard_normal(factor.shape) for factor in model.factors]
    start = (model.weights, moved)
    found = diagnose(x, start).unfinished
    expected = diagnose_study.compare(start, model)
    # The residual bends the loss: its part of the second derivatives is left out.
    np.testing.assert_allclose(found, expected, rtol=0.1)
    assert (diagnose(x, model).unfinished < 1e-3 * expected).all()


def make_slopes(x, factors):
    components = Components(None, factors)
    slopes = Slopes(KnownCells(x, None, False), components, FitRecord())
    return slopes, Tangents(components.cosines, x.shape)


class Signs:
    """Gives the signs of a list in place of random ones."""

    def __init__(self, signs):
        self.signs = [*signs]

    def choice(self, _, size):
        taken, self.signs = self.signs[: size[0]], self.signs[size[0] :]
        return np.array(taken).reshape(size)


def test_the_mean_over_all_signs_is_that_of_independent_noise():
    """Of (2, 2, 2) cells all 64 signs of indices are tried, beside the dense pseudo-inverse."""
    random = np.random.RandomState(0)
    dense = random.standard_normal((2, 2, 2))
    factors = [random.standard_normal((2, 2)) for _ in range(3)]
    slopes, tangents = make_slopes(FlycooTensor.from_dense(dense), factors)
    draws = [
        tangents.find_changes(slopes.draw(Signs(signs)))
        for signs in itertools.product([-1.0, 1.0], repeat=6)
    ]
    inverse = np.linalg.pinv(make_terracini(factors))
    squares = (dense - tl.cp_to_tensor((None, factors))).ravel() ** 2
    expected = [(block**2 @ squares).sum() for block in np.split(inverse, 2)]
    np.testing.assert_allclose(np.mean(np.square(draws), axis=0), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", diagnose_study.KINDS)
def test_predicted_changes_come_true(kind):
    """On ten planted tensors; `python tests/support/diagnose_study.py` tries 200."""
    ratios = np.concatenate([diagnose_study.try_kind(kind, seed) for seed in range(10)], axis=1)
    for of_case in ratios:
        within, above = diagnose_study.judge(of_case)
        assert within >= 0.95
        assert above >= 0.8


def test_results_are_the_same_in_each_layout_and_run(fitted):
    x, model = fitted
    coords, values = x.nonzeros()
    results = [
        diagnose(FlycooTensor(coords, values, x.shape, layout=layout), model)
        for layout in [*LAYOUTS, *LAYOUTS]
    ]
    for found in results:
        assert repr(found) == repr(results[0])
        np.testing.assert_array_equal(found.noise, results[0].noise)
        assert found.error == results[0].error


def test_slabs_and_single_precision(fitted):
    x, model = fitted
    coords, values = x.nonzeros()
    expected = diagnose(x, model)
    in_slabs = diagnose(FlycooTensor(coords, values, x.shape, slabs=3), model)
    assert in_slabs.error == pytest.approx(expected.error, rel=1e-12)
    np.testing.assert_allclose(in_slabs.noise, expected.noise, rtol=1e-10)
    single = model.weights.astype("f"), [factor.astype("f") for factor in model.factors]
    in_single = diagnose(FlycooTensor(coords, values.astype("f"), x.shape), single)
    assert in_single.error == pytest.approx(expected.error, rel=1e-6)
    np.testing.assert_allclose(in_single.noise, expected.noise, rtol=1e-4)
    assert in_single.gradient < 1e-6


def test_signs_of_non_negative_columns(fitted):
    """A column that a `LabelledCP` has turned is non-negative the other way."""
    x, _ = fitted
    with tl.backend_context("flycoo"):
        model = non_negative_parafac_hals(x, 4, n_iter_max=20, init="random", random_state=0)
    first, second, third = model.factors
    turned = CPTensor((model.weights, [-first, second, -third]))
    attach(turned, model.flycoo)
    expected = diagnose(x, model)
    assert (first == 0).any()
    assert diagnose(x, turned).gradient == pytest.approx(expected.gradient, rel=1e-12)
    plain = diagnose(x, (model.weights, model.factors))
    assert plain.gradient > 2 * expected.gradient


@pytest.mark.parametrize("exponent", [-60, 60])
def test_the_scale_of_values_does_not_matter(fitted, exponent):
    """Powers of two round nothing, and squares of these values are no numbers of float32."""
    x, model = fitted
    coords, values = x.nonzeros()
    single = model.weights.astype("f"), [factor.astype("f") for factor in model.factors]
    expected = diagnose(FlycooTensor(coords, values.astype("f"), x.shape), single)
    scaled = FlycooTensor(coords, np.ldexp(values.astype("f"), exponent), x.shape)
    first, *others = single[1]
    for whole in (
        (np.ldexp(single[0], exponent), single[1]),
        (
            single[0],
            [np.ldexp(first, exponent), *others],
        ),
    ):
        found = diagnose(scaled, whole)
        assert found.error == pytest.approx(expected.error, rel=1e-12)
        np.testing.assert_allclose(found.noise, expected.noise, rtol=1e-12)
        np.testing.assert_allclose(found.unfinished, expected.unfinished, rtol=1e-12)


def test_components_that_are_zero_or_alike(fitted):
    x, model = fitted
    columns = [0, 1, 2, 0, 0]
    factors = [factor[:, columns] for factor in model.factors]
    weights = model.weights[columns] * [0.5, 1, 1, 0.5, 0]
    found = diagnose(x, (weights, factors))
    assert found.partners.tolist() == [3, *found.partners[1:3], 0, -1]
    assert found.congruences[[0, 3]] == pytest.approx(1)
    assert math.isinf(found.condition)
    assert found.digits[[0, 3]].tolist() == [0, 0]
    np.testing.assert_array_equal(found.digits[1:3], diagnose(x, model).digits[1:])
    assert math.isnan(found.digits[4])
    assert found.sizes[4] == 0
    assert found.summary.endswith(
        "components 1 and 4 are not determined; components 1 and 4 are nearly parallel (1.000); "
        "component 5 is zero"
    )
    zero = diagnose(x, (None, [0 * factor for factor in factors]))
    assert (zero.error, zero.gradient) == (1, 0)
    assert zero.summary.startswith("no digits, since the rank is too high, or the model is zero")


def test_a_single_component(fitted):
    x, model = fitted
    found = diagnose(x, (None, [factor[:, :1] for factor in model.factors]))
    assert found.condition == pytest.approx(1)
    assert found.partners.tolist() == [-1]
    assert math.isnan(found.congruences[0])


def test_the_table_names_labels(fitted):
    x, model = fitted
    modes = zip(("user", "item", "day"), x.shape, strict=True)
    labels = {mode: [f"{mode}{row}" for row in range(size)] for mode, size in modes}
    cp = LabelledCP(model, labels)
    found = diagnose(LabelledTensor(x, labels), cp)
    tops = [next(iter(top)) for top in cp.top("user", 1)]
    assert found.labels["user"] == tops
    assert found.table["user"].tolist() == tops
    assert found.table.index.tolist() == [0, 1, 2]
    lines = repr(found).splitlines()
    assert [line.split()[0] for line in lines] == [
        "error", "gradient", "condition", "component", "1", "2", "3", "all",
    ]  # fmt: skip
    assert lines[4].endswith(f"{tops[0]}  {found.labels['item'][0]}  {found.labels['day'][0]}")
    assert tops[0] in found._repr_html_()
    assert diagnose(x, model).labels == {}


def test_the_summary_groups_components_by_their_digits(fitted):
    found = diagnose(*fitted)

    def summarise(*digits, **changes):
        changes |= {"digits": np.array(digits, float), "components": tuple(range(len(digits)))}
        return dataclasses.replace(found, **changes)._describe_digits()

    assert summarise(4, 4, 1, 4, 4, 1) == "components 3 and 6: 1 digit, the others 4"
    assert summarise(0, 4, 1, 4) == "component 1: 0 digits, component 3: 1 digit, the others 4"
    assert summarise(2, 2) == "all components: 2 digits"
    assert summarise(2, math.nan) == "all components: 2 digits"


def test_a_rank_whose_tangents_are_too_many(fitted, monkeypatch):
    monkeypatch.setattr(module, "_MAX_TANGENTS", 20)
    found = diagnose(*fitted)
    assert math.isnan(found.condition)
    assert found.summary == "no digits, since the rank is too high, or the model is zero"


def test_data_without_nonzeros_and_models_of_nan_are_refused(fitted):
    x, model = fitted
    with pytest.raises(ValueError, match="cp_tensor holds numbers that are not finite"):
        diagnose(x, (model.weights * np.nan, model.factors))
    x = FlycooTensor(np.zeros((3, 0), int), np.zeros(0), (3, 4, 5))
    with pytest.raises(ValueError, match="has no known nonzeros"):
        diagnose(x, (None, [np.ones((size, 1)) for size in x.shape]))
