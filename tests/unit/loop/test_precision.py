"""Precision "mixed": what it rounds, what it reports, when it ends."""

import numpy as np
import pytest
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, best_of, cp_fit, factor_match_score, set_precision
from tensorly_flycoo.decomposition import parafac
from tensorly_flycoo.engines.cpu import products
from tensorly_flycoo.engines.cpu.engine import CPU, CpuEngine
from tensorly_flycoo.engines.narrow_rows import NARROW_FORMATS
from tensorly_flycoo.loop.host_grams import HostGrams
from tensorly_flycoo.loop.precision import NarrowFactors, OnceWhole
from tensorly_flycoo.loop.stopping import Converged
from tensorly_flycoo.loop.whole_tensor import WholeTensor
from tensorly_flycoo.testing import planted_tensor, random_tensor

DTYPES = [np.float64, np.float32]
LINESEARCHES = [False, "nesterov", "auto"]


@pytest.fixture(autouse=True)
def always_pays(monkeypatch):
    """Round the factors of tensors of any size."""
    monkeypatch.setattr(CpuEngine, "narrow_pays", lambda *arguments: True)
    with tl.backend_context("flycoo"):
        yield


@pytest.fixture
def multiplied(monkeypatch):
    """Record for each MTTKRP whether its factors were narrow."""
    calls = []
    multiply = tensorly_flycoo.loop.whole_tensor.multiply

    def record(*arguments, narrow=None, **options):
        calls.append(narrow is not None)
        return multiply(*arguments, narrow=narrow, **options)

    monkeypatch.setattr("tensorly_flycoo.loop.whole_tensor.multiply", record)
    return calls


def draw_tensor(dtype, seed=0, **options):
    x, _ = planted_tensor((30, 40, 50), 3, nnz_per_component=600, noise=0.1, random_state=seed)
    coords, values = x.nonzeros()
    return FlycooTensor(coords, values.astype(dtype), x.shape, **options)


def decompose(x, rank=4, **options):
    defaults = {"init": "random", "random_state": 0, "return_errors": True, "tol": 0}
    return parafac(x, rank, **{**defaults, "n_iter_max": 12, **options})


def is_rounded(factor):
    """Return whether rounding leaves a factor as it is."""
    copy = factor.copy()
    CPU.round_rows(copy, CPU.find_scales(copy))
    return np.array_equal(copy, factor)


def test_own_is_the_default_and_restored():
    assert tensorly_flycoo.loop.precision.is_mixed() is False
    with set_precision("mixed"):
        assert tensorly_flycoo.loop.precision.is_mixed()
        with set_precision("own"):
            assert not tensorly_flycoo.loop.precision.is_mixed()
        assert tensorly_flycoo.loop.precision.is_mixed()
    assert not tensorly_flycoo.loop.precision.is_mixed()


def test_an_unknown_precision_is_refused_and_changes_nothing():
    with pytest.raises(ValueError, match="precision is 'half', expected"):
        set_precision("half")
    assert not tensorly_flycoo.loop.precision.is_mixed()


def test_own_reads_whole_rows(multiplied):
    decompose(draw_tensor(np.float64))
    assert multiplied
    assert not any(multiplied)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("linesearch", LINESEARCHES)
def test_mixed_reads_narrow_rows_and_ends_with_whole_ones(dtype, linesearch, multiplied):
    with set_precision("mixed"):
        model, errors = decompose(draw_tensor(dtype), linesearch=linesearch, n_iter_max=6)
    assert sum(multiplied) >= 6
    assert not any(multiplied[-3:])
    assert len(errors) == 6
    assert not any(map(is_rounded, model.factors))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_first_sweep_rounds_each_factor_as_it_is_updated(dtype, multiplied):
    with set_precision("mixed"):
        decompose(draw_tensor(dtype), n_iter_max=3)
    # In the first sweep nobody has rounded the start; in the last one nothing is rounded.
    assert multiplied == [False, False, True, True, True, True, False, False, False]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("linesearch", LINESEARCHES)
def test_reported_errors_are_those_of_the_model(dtype, linesearch):
    x = draw_tensor(dtype)
    seen = []

    def compare(model, error):
        seen.append((float(error), cp_fit(x, model).relative_error))

    with set_precision("mixed"):
        decompose(x, linesearch=linesearch, callback=_ReadOnly(compare))
    reported, true = np.array(seen).T
    # TensorLy's formula subtracts squares of about 1: it rounds a square by some eps.
    slack = 50 * np.finfo(dtype).eps / true
    assert (np.abs(reported - true) <= slack).all()


class _ReadOnly:
    """A callback that is known to leave factors as they are."""

    def __init__(self, function):
        self._function = function

    def __call__(self, model, error):
        self._function(model, error)

    __call__.only_reads = True


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_callback_may_write_to_factors(dtype):
    """Factors that were written to are read as they are: with the same bits as in two runs."""
    x = draw_tensor(dtype)

    def halve(model, error):
        model.factors[1][...] *= 0.5

    with set_precision("mixed"):
        model, _ = decompose(x, callback=halve, n_iter_max=2)
        _, first_errors = decompose(x, callback=halve, n_iter_max=2)
    fit = cp_fit(x, (None, [model.factors[0], 2 * model.factors[1], model.factors[2]]))
    assert fit.relative_error == pytest.approx(float(first_errors[-1]), rel=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("slabs", [1, 3])
def test_bits_are_the_same_in_all_layouts_and_slabs(dtype, layout, slabs, multiplied):
    with set_precision("mixed"):
        expected, expected_errors = decompose(draw_tensor(dtype, layout="replicated"))
        model, errors = decompose(draw_tensor(dtype, layout=layout, slabs=slabs))
    if slabs == 1:
        assert errors == expected_errors
        for factor, other in zip(model.factors, expected.factors, strict=True):
            np.testing.assert_array_equal(factor, other)
    else:
        with set_precision("mixed"):
            again, _ = decompose(draw_tensor(dtype, layout="indexed", slabs=slabs))
        for factor, other in zip(model.factors, again.factors, strict=True):
            np.testing.assert_array_equal(factor, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_rows_change_no_bit(dtype, monkeypatch):
    """Whole rows of the rounded factors give the same model."""
    x = draw_tensor(dtype)
    with set_precision("mixed"):
        expected, _ = decompose(x)
        monkeypatch.setattr(NarrowFactors, "find", lambda *arguments, **options: None)
        model, _ = decompose(x)
    for factor, other in zip(model.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("linesearch", LINESEARCHES)
def test_tall_factors_are_rounded_as_they_are_solved_for(dtype, linesearch, monkeypatch):
    """One pass gives the bits of several, and errors that differ by their rounding alone."""
    x = random_tensor((9000, 20, 30), 20_000, random_state=0, dtype=dtype)
    options = {"linesearch": linesearch, "n_iter_max": 5, "random_state": 0}
    calls = []
    solve_and_round = products.solve_and_round

    def record(*arguments):
        calls.append(arguments[0].shape)
        return solve_and_round(*arguments)

    monkeypatch.setattr(products, "solve_and_round", record)
    with set_precision("mixed"):
        expected, expected_errors = decompose(x, rank=8, **options)
    assert (9000, 8) in calls
    calls.clear()
    solve_factor = HostGrams.solve_factor
    monkeypatch.setattr(HostGrams, "solve_factor", lambda self, a, b, _: solve_factor(self, a, b))
    with set_precision("mixed"):
        model, errors = decompose(x, rank=8, **options)
    assert not calls
    for factor, other in zip(model.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, other)
    np.testing.assert_allclose(errors, expected_errors, rtol=50 * np.finfo(dtype).eps)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("linesearch", LINESEARCHES)
def test_the_end_is_that_of_own(seed, linesearch):
    x = draw_tensor(np.float64, seed)
    options = {"linesearch": linesearch, "tol": 1e-9, "n_iter_max": 300, "random_state": seed}
    _, own_errors = decompose(x, **options)
    with set_precision("mixed"):
        _, errors = decompose(x, **options)
    assert errors[-1] <= own_errors[-1] + 1e-9


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_raises_the_error_within_its_bound(dtype):
    """The bound of docs/accuracy.md, for each factor of a model."""
    x = draw_tensor(dtype)
    model, _ = decompose(x, n_iter_max=3)
    coords, values = x.nonzeros()
    exact = FlycooTensor(coords, values.astype(float), x.shape)
    factors = [factor.astype(float) for factor in model.factors]
    before = cp_fit(exact, (None, factors)).relative_error
    rounding = NARROW_FORMATS[np.dtype(dtype)].rounding
    for mode, factor in enumerate(model.factors):
        rounded = factor.copy()
        CPU.round_rows(rounded, CPU.find_scales(rounded))
        assert not np.array_equal(rounded, factor)
        others = [np.linalg.norm(f, axis=0) for n, f in enumerate(factors) if n != mode]
        largest = np.abs(factors[mode]).max(axis=0)
        changes = rounding * largest * np.sqrt(len(factor)) * np.prod(others, axis=0)
        moved = [*factors]
        moved[mode] = rounded.astype(float)
        after = cp_fit(exact, (None, moved)).relative_error
        assert abs(after - before) <= changes.sum() / float(x.norm()) * (1 + 1e-6)


def test_rounding_twice_is_rounding_once():
    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        factor = rng.standard_normal((50, 5)).astype(dtype)
        CPU.round_rows(factor, CPU.find_scales(factor))
        assert is_rounded(factor)


def test_no_run_ends_while_it_rounds():
    x = draw_tensor(np.float64)
    narrow = NarrowFactors(x, 100, tol=1e-3, factors_may_change=False)
    rule = OnceWhole(Converged(1e-3), narrow)
    assert not rule.is_over([0.5, 0.4])
    assert narrow.is_rounding
    assert not rule.is_over([0.5, 0.4, 0.3995])
    assert not narrow.is_rounding
    assert rule.is_over([0.5, 0.4, 0.3995, 0.3993])


@pytest.mark.parametrize("last", [np.nan, 0.6])
def test_an_error_that_rises_ends_the_rounding(last):
    narrow = NarrowFactors(draw_tensor(np.float32), 100, tol=0, factors_may_change=False)
    assert not narrow.has_served([0.7, 0.5])
    assert narrow.has_served([0.7, 0.5, last])


@pytest.mark.parametrize("option", ["mask", "fixed_modes", "linesearch", "smoothness"])
def test_runs_that_cannot_round_are_as_in_own(option):
    x = draw_tensor(np.float64)
    values = {"fixed_modes": [0], "linesearch": True, "smoothness": 1.0}
    options = {option: values.get(option)}
    if option == "mask":
        mask = np.ones(x.shape)
        mask[0, 0, 0] = 0
        options = {"mask": mask}
    _, expected = decompose(x, **options)
    with set_precision("mixed"):
        _, errors = decompose(x, **options)
    assert errors == expected


@pytest.mark.parametrize("normalize_factors", [False, True])
def test_weights_are_as_in_own(normalize_factors):
    x = draw_tensor(np.float64)
    own, _ = decompose(x, normalize_factors=normalize_factors, n_iter_max=60)
    with set_precision("mixed"):
        model, _ = decompose(x, normalize_factors=normalize_factors, n_iter_max=60)
    assert factor_match_score(model, own) > 1 - 1e-6
    np.testing.assert_allclose(np.sort(model.weights), np.sort(own.weights), rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("linesearch", [False, "nesterov"])
def test_starts_are_searched_with_narrow_rows(dtype, linesearch, multiplied):
    x = draw_tensor(dtype)
    starts = best_of("parafac", x, 3, n_starts=4, random_state=0, linesearch=linesearch)
    assert any(multiplied)
    assert not is_rounded(starts.best.factors[0])
    true = cp_fit(x, starts.best).relative_error
    assert starts.final_errors[starts.best_number] == pytest.approx(true, abs=1e-4)
    multiplied.clear()
    alone = best_of("parafac", x, 3, 4, random_state=0, linesearch=linesearch, keep_all=True)
    assert not any(multiplied)
    assert factor_match_score(starts.best, alone.best) > 0.99


def test_zeros_and_ones_stay():
    x = random_tensor((10, 12, 14), 200, random_state=0)
    data = WholeTensor(x)
    data.narrow = NarrowFactors(x, 10, tol=0, factors_may_change=False)
    factor = np.array([[0.0, 1.0], [0.0, -0.5], [0.0, 0.25]])
    assert data.round_factor(factor, 0) is factor
    np.testing.assert_array_equal(factor, [[0.0, 1.0], [0.0, -0.5], [0.0, 0.25]])
