"""The public function mttkrp: raw COO, `weights`, `out`."""

import numpy as np
import pytest
import sparse
from problems import Problem, make_problem

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, mttkrp, mttkrps
from tensorly_flycoo.ops.mttkrp import MTTKRP

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
KINDS = pytest.mark.parametrize("kind", ["remap", "replicated", "indexed", "COO", "GCXS", "DOK"])


def make_kind(problem, kind):
    coo = sparse.COO(problem.coords, problem.values, problem.shape)
    if kind == "COO":
        return coo
    if kind in ("GCXS", "DOK"):
        return coo.asformat(kind.lower())
    return FlycooTensor.from_coo(coo, layout=kind)


@KINDS
@DTYPES
def test_every_sparse_type(kind, dtype):
    problem = make_problem((30, 20, 10), 500, dtype=dtype)
    x = make_kind(problem, kind)
    for mode in range(3):
        problem.check(mttkrp(x, problem.factors, mode), mode, x)


@KINDS
@DTYPES
def test_weights(kind, dtype):
    """For the oracle, weights are the factor of an extra mode of size 1."""
    problem = make_problem((30, 20, 10), 500, dtype=dtype)
    weights = np.array([0.5, -3.7, 0.0], dtype)
    weighted = Problem(
        np.pad(problem.coords, [(0, 1), (0, 0)]),
        problem.values,
        (*problem.shape, 1),
        [*problem.factors, weights[None]],
    )
    x = make_kind(problem, kind)
    for mode in range(3):
        weighted.check(mttkrp(x, problem.factors, mode, weights=weights), mode, x)
    assert weights.tolist() == np.array([0.5, -3.7, 0.0], dtype).tolist()


@KINDS
@DTYPES
def test_all_modes_together(kind, dtype):
    problem = make_problem((30, 20, 10), 500, dtype=dtype)
    x, weights = make_kind(problem, kind), np.array([0.5, -3.7, 0.0], dtype)
    for mode, product in enumerate(mttkrps(x, iter(problem.factors))):
        problem.check(product, mode, x)
    for mode, product in enumerate(mttkrps(x, problem.factors, weights=weights)):
        expected = mttkrp(x, problem.factors, mode, weights=weights)
        assert product.tobytes() == expected.tobytes()


def test_all_modes_together_change_no_precision():
    problem = make_problem((30, 20, 10), 500)
    factors = [factor.astype("float32") for factor in problem.factors]
    with pytest.raises(TypeError, match=r"factors\[0\] has dtype float32, expected float64"):
        mttkrps(problem.tensor(), factors)


def test_weights_of_one_change_no_bit():
    problem = make_problem((30, 20, 10), 500)
    x = problem.tensor()
    expected = mttkrp(x, problem.factors, 1)
    assert mttkrp(x, problem.factors, 1, weights=np.ones(3)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_out_may_be_the_factor_of_the_mode(layout):
    problem = make_problem((30, 20, 10), 500)
    x = problem.tensor(layout=layout)
    for mode in range(3):
        factors = [factor.copy() for factor in problem.factors]
        result = mttkrp(x, factors, mode, out=factors[mode])
        assert result is factors[mode]
        problem.check(result, mode, x)
        for n in {0, 1, 2} - {mode}:
            np.testing.assert_array_equal(factors[n], problem.factors[n])


def test_out_may_be_rows_of_a_larger_array():
    problem = make_problem((30, 20, 10), 500)
    stacked = np.full((60, 3), np.nan)
    out = stacked[2:32]
    assert mttkrp(problem.tensor(), problem.factors, 0, out=out) is out
    problem.check(out, 0)
    assert np.isnan(stacked[:2]).all()
    assert np.isnan(stacked[32:]).all()


def test_a_pass_may_leave_the_nonzeros_where_they_are():
    """The benchmark times MTTKRPs without remapping so."""
    problem = make_problem((5, 6, 7), 60)
    x = problem.tensor(layout="remap")
    layout, engine = x._layout, x._engine
    for mode in range(3):
        others = {n: factor for n, factor in enumerate(problem.factors) if n != mode}
        out = np.empty((x.shape[mode], problem.factors[0].shape[1]))
        layout.apply(MTTKRP, engine, others, mode, out, stays=True)
        assert layout.mode == mode
        problem.check(out, mode, x)
        assert mttkrp(x, problem.factors, mode).tobytes() == out.tobytes()


def test_out_with_weights():
    problem = make_problem((30, 20, 10), 500)
    x, weights = problem.tensor(), np.array([2.0, 0.0, -1.0])
    out = np.full((30, 3), np.nan)
    assert mttkrp(x, problem.factors, 0, weights=weights, out=out) is out
    np.testing.assert_array_equal(out, mttkrp(x, problem.factors, 0) * weights)


def test_a_new_array_each_time():
    problem = make_problem((30, 20, 10), 500)
    x = problem.tensor()
    first = mttkrp(x, problem.factors, 0)
    first[...] = 0
    second = mttkrp(x, problem.factors, 0)
    assert not np.shares_memory(first, second)
    problem.check(second, 0, x)
    assert second.flags.c_contiguous
    assert second.flags.writeable


def test_factors_may_be_any_sequence():
    problem = make_problem((30, 20, 10), 500)
    x = problem.tensor()
    expected = mttkrp(x, problem.factors, 0)
    np.testing.assert_array_equal(mttkrp(x, tuple(problem.factors), 0), expected)
    np.testing.assert_array_equal(mttkrp(x, iter(problem.factors), 0), expected)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16, np.bool_])
def test_integers_and_bools_are_counts(dtype):
    problem = make_problem((30, 20, 10), 500)
    values = np.arange(1, 501).astype(dtype)
    counts = Problem(problem.coords, values.astype(float), problem.shape, problem.factors)
    x = FlycooTensor(problem.coords, values, problem.shape)
    counts.check(mttkrp(x, problem.factors, 0), 0, x)


def test_the_public_names():
    assert sorted(tensorly_flycoo.__all__) == [
        "DensifyError", "FitRecord", "FlycooCP", "FlycooTensor", "LabelledCP", "LabelledTensor",
        "MemoryEstimate", "ModeStats", "Progress", "RaggedTensor", "ResidualTensor", "TensorStats",
        "anomaly_scores", "best_of", "center", "core_consistency", "coupled_parafac", "cp_fit",
        "cp_to_entries",
        "diagnose", "estimate_memory", "evaluate", "factor_match_score", "fold_in", "from_anndata",
        "from_dataframe", "from_xarray", "load", "mttkrp", "mttkrps", "observed_parafac",
        "open_slabs", "profile", "read_tns", "recommend", "replicability", "save", "save_slabs",
        "select_rank", "set_device", "set_precision", "set_progress", "show_versions", "stats",
        "uncertainty", "write_tns",
    ]  # fmt: skip
    assert issubclass(tensorly_flycoo.DensifyError, TypeError)
