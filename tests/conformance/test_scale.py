"""Values times c: the same models times c, the same errors and stops, whatever c the dtype holds.

A tensor far from 1 is decomposed near 1. `scale_laws.SOLVERS` has every exported decomposition: a
new one fails until it is listed. What is no power law is tested for what it promises instead: the
loss of counts, and coefficients of penalties, which are absolute.
"""

import numpy as np
import pytest
import tensorly as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cells import read_cells
from scale_laws import LARGEST, SOLVERS, VARIANTS, X, check_scale, make, run

from tensorly_flycoo import Progress, best_of, cp_fit, decomposition, fold_in
from tensorly_flycoo.decomposition import coupled_parafac

each_dtype = pytest.mark.parametrize("dtype", LARGEST)
each_variant = pytest.mark.parametrize(("name", "options"), VARIANTS)


@pytest.fixture(autouse=True, scope="module")
def flycoo():
    with tl.backend_context("flycoo"):
        yield


def test_every_solver_is_listed():
    assert {*SOLVERS} == {*decomposition.__all__}


@each_variant
@each_dtype
def test_a_power_of_two_changes_no_bit(name, options, dtype):
    if name == "generalized_parafac":
        return  # exponentials of logarithms are rounded: see below
    errors, cells = run(name, 1.0, dtype, options)
    for exponent in (LARGEST[dtype][1], -LARGEST[dtype][1]):
        found, found_cells = run(name, 2.0**exponent, dtype, options)
        np.testing.assert_array_equal(found_cells, cells)
        np.testing.assert_array_equal(found, errors)


def _mark(name, options, dtype, sign):
    is_slow = (dtype, sign) in (("float32", 1), ("float64", -1))
    is_slow |= (name, dtype) == ("generalized_parafac", "float32")
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(name, options, dtype, sign, marks=marks)


@pytest.mark.parametrize(
    ("name", "options", "dtype", "sign"),
    [_mark(*variant, dtype, sign) for variant in VARIANTS for dtype in LARGEST for sign in (-1, 1)],
)
def test_values_times_any_number(name, options, dtype, sign):
    check_scale(name, options, 10.0 ** (sign * LARGEST[dtype][0]), dtype)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    variant=st.sampled_from(VARIANTS), dtype=st.sampled_from([*LARGEST]),
    part=st.floats(-1, 1), digits=st.floats(1, 9.99),
)  # fmt: skip
def test_values_times_every_number(variant, dtype, part, digits):
    check_scale(*variant, digits * 10 ** (part * LARGEST[dtype][0]), dtype)


@pytest.mark.parametrize(
    "name", ["parafac", "non_negative_parafac_hals", "observed_parafac", "tucker"]
)
def test_callbacks_and_checkpoints(name, tmp_path):
    x, path, seen = make(X * 2.0**492, "float64"), tmp_path / "run.npz", []
    init = "svd" if name in ("non_negative_parafac_hals", "tucker") else "random"
    options = {**SOLVERS[name], "tol": 1e-30, "return_errors": True, "init": init}
    options, decompose = {"rank": 2} | options, getattr(decomposition, name)

    def note(model, *error):
        seen.append(read_cells(model, 1))

    whole, errors = decompose(x, n_iter_max=4, callback=note, **options)
    np.testing.assert_array_equal(seen[-1], read_cells(whole, 1))
    for n_iter_max in (2, 4):
        with Progress(n_iter_max, show=None, checkpoint=path, every=1) as progress:
            given = {"init": progress.resume(init), "callback": progress}
            resumed, _ = decompose(x, **options | given, n_iter_max=progress.n_iter_left)
    np.testing.assert_array_equal(read_cells(resumed, 1), read_cells(whole, 1))
    np.testing.assert_array_equal(progress.errors[1:], errors)
    options["init"] = Progress(9, show=None, checkpoint=path).resume()
    with pytest.raises(ValueError, match="checkpoint is of another tensor"):
        decompose(make(X, "float64"), **options)


def multiply_strengths(strengths, factor):
    """Multiply one strength, or all of a list or dict, in which some may be None."""
    if isinstance(strengths, dict):
        return {mode: strength * factor for mode, strength in strengths.items()}
    if isinstance(strengths, list):
        return [strength and strength * factor for strength in strengths]
    return strengths * factor


@pytest.mark.parametrize(
    ("name", "option", "power"),
    [
        ("parafac", {"l2_reg": 0.1}, 4 / 3),
        ("non_negative_parafac_hals", {"sparsity_coefficients": 0.1}, 5 / 3),
        ("non_negative_parafac_hals", {"sparsity_coefficients": [0.1, None, 0.2]}, 5 / 3),
        ("non_negative_tucker_hals", {"core_sparsity_coefficient": 0.1, "rank": [2, 2, 2]}, 1),
        ("non_negative_tucker_hals", {"sparsity_coefficients": 0.1, "rank": [2, 2, 2]}, 2),
        ("tucker", {"l1_reg": {2: 0.1}, "rank": [2, 2, 2]}, 2),
        ("tucker", {"group_lasso": 0.1, "rank": [2, 2, 2]}, 2),
    ],
)
@each_dtype
def test_coefficients_are_of_the_values_as_they_are(name, option, power, dtype):
    # The squared residual grows by c^2, and an element of a factor by the third root of c.
    options = {"init": "guess", "n_iter_max": 20} | option
    errors, cells = run(name, 1.0, dtype, options)
    others = {key: options[key] for key in options.keys() - (option.keys() - {"rank"})}
    plain, _ = run(name, 1.0, dtype, others)
    assert abs(plain[-1] - errors[-1]) > 1e-4
    c = 2.0 ** (LARGEST[dtype][1] // 2)
    for key, value in option.items():
        if key != "rank":
            options[key] = multiply_strengths(value, c**power)
    found, found_cells = run(name, c, dtype, options)
    np.testing.assert_allclose(found, errors, rtol=1e-5)
    np.testing.assert_allclose(found_cells, cells, rtol=1e-4, atol=1e-6)


def test_constraints_with_numbers_in_every_mode_keep_values_from_being_scaled():
    for option in ({"simplex": 1.0}, {"l1_reg": 0.1}):
        for exponent in (500, -500):
            with pytest.raises(
                ValueError, match=r"each mode a constraint .*pass tensor \* 2.0\*\*"
            ):
                decomposition.constrained_parafac(make(X * 2.0**exponent, "float64"), 2, **option)
        # One mode without a number takes what the others cannot.
        free = {key: {0: value, 1: value} for key, value in option.items()}
        errors, cells = run("constrained_parafac", 1.0, "float64", free)
        found, found_cells = run("constrained_parafac", 2.0**492, "float64", free)
        np.testing.assert_allclose(found, errors, rtol=1e-10)
        np.testing.assert_allclose(found_cells, cells, rtol=1e-8)


@each_dtype
def test_blocks_of_any_two_scales(dtype):
    c = 10.0 ** LARGEST[dtype][0]
    blocks = [(X.astype(dtype), tuple("abc")), (X[:, 0].astype(dtype), tuple("ad"))]
    scaled = [((X / c).astype(dtype), tuple("abc")), ((X[:, 0] * c).astype(dtype), tuple("ad"))]
    options = {"rank": 2, "random_state": 0, "n_iter_max": 10}
    expected = coupled_parafac(blocks, **options)
    found = coupled_parafac(scaled, **options, block_weights=[c**2, 1 / c**2])
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-4)
    np.testing.assert_allclose(found.block_errors, expected.block_errors, rtol=1e-3)
    for scale, own, other in zip((1 / c, c), found.cp_tensors, expected.cp_tensors, strict=True):
        np.testing.assert_allclose(own.weights / scale, other.weights, rtol=1e-3)


@each_dtype
def test_what_comes_after_a_decomposition(dtype):
    """The fit, rows for new indices, and several runs."""
    expected = None
    for c in (1.0, 10.0 ** LARGEST[dtype][0], 10.0 ** -LARGEST[dtype][0]):
        x = make(X * c, dtype)
        starts = best_of("parafac", x, 2, n_starts=2, random_state=0, n_iter_max=20, keep_all=True)
        model = starts.best
        found = [cp_fit(x, model).relative_error, cp_fit(x, model).rmse / c, *starts.final_errors]
        rows = fold_in(model, x, 1)
        found += [*(rows / abs(np.asarray(model.factors[1])).max()).ravel(), float(x.norm()) / c]
        expected = expected or found
        np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype == "float64" else 1e-2)
