"""Data that know their unknown cells, from a table to a diagnostic, without a further argument.

Two tables as biologists and engineers have them: expression of genes by cell type and donor, where
some pairs were never measured; and a log of sensors with a gap.
"""

import numpy as np
import pandas as pd
import pytest
import sparse
import tensorly as tl

from tensorly_flycoo import (
    LabelledTensor,
    best_of,
    core_consistency,
    cp_fit,
    decomposition,
    from_dataframe,
    replicability,
    select_rank,
)
from tensorly_flycoo.decomposition.methods import METHODS
from tensorly_flycoo.loop.masks import unite_masks

pytestmark = pytest.mark.usefixtures("flycoo_backend")

MODES = ["gene", "cell type", "donor"]
SHAPE, RANK, NUM_ABSENT = (719, 10, 24), 4, 58


@pytest.fixture(scope="module")
def expression():
    """Return a table of planted programs without rows for 58 of 240 pairs, and the programs."""
    rng = np.random.default_rng(0)
    factors = [rng.gamma(1.0, 1.0, (n, RANK)) * (rng.random((n, RANK)) < 0.5) for n in SHAPE]
    cells = np.einsum("gr,tr,dr->gtd", *factors)
    cells = np.abs(cells + 0.05 * cells.std() * rng.standard_normal(SHAPE))
    absent = rng.choice(SHAPE[1] * SHAPE[2], NUM_ABSENT, replace=False)
    is_measured = np.ones(SHAPE, bool)
    is_measured.reshape(SHAPE[0], -1)[:, absent] = False
    coords = np.nonzero(is_measured)
    table = pd.DataFrame(dict(zip(MODES, coords, strict=True)) | {"level": cells[coords]})
    return table, factors


def match_programs(cp, factors):
    """Return the product of cosines of each planted program and the component that is nearest."""
    cosines = []
    for planted, found in zip(factors, cp.factors, strict=True):
        columns = [f / np.linalg.norm(f, axis=0) for f in (planted, found)]
        cosines.append(columns[0].T @ columns[1])
    return np.abs(np.prod(cosines, axis=0)).max(axis=1)


def test_programs_are_found_where_pairs_are_absent(expression):
    """The bar: cosines of .95. As zeros the same pairs hide the programs."""
    table, factors = expression
    x = from_dataframe(table, MODES, "level", missing=["donor", "cell type"])
    assert x.unknown.nnz == NUM_ABSENT
    cp = best_of("parafac", x, RANK, 10, random_state=0).best
    assert match_programs(cp, factors).min() >= 0.95
    zeros = best_of("parafac", x.tensor, RANK, 10, random_state=0).best
    assert match_programs(zeros, factors).min() < 0.9
    assert cp_fit(x, cp).num_entries == x.nnz == len(table)
    assert core_consistency(x, cp) > 90


def test_without_missing_one_warning_names_both_modes(expression):
    table, _ = expression
    with pytest.warns(UserWarning, match=r"58 of 240 pairs \(cell type, donor\)") as caught:
        from_dataframe(table, MODES, "level")
    assert len(caught) == 1


def test_the_rank_is_found_where_pairs_are_absent(expression):
    table, _ = expression
    table = table[table["gene"] < 150]  # some genes suffice
    x = from_dataframe(table, MODES, "level", missing=["donor", "cell type"])
    selection = select_rank(x, [3, 4, 5], n_runs=5, random_state=0)
    assert selection.rank == RANK
    result = replicability(x, RANK, "gene", n_folds=2, n_starts=5, random_state=0)
    assert result.scores.min() > 0.9


def test_gaps_of_sensors_are_predicted():
    """The bar: an rmse of .1 where days are missing, of values whose root mean square is 1."""
    rng = np.random.default_rng(1)
    shape, rank = (20, 30, 24), 3
    factors = [rng.standard_normal((n, rank)) for n in shape]
    factors[2] = np.cumsum(factors[2], axis=0) / 3
    cells = np.einsum("sr,dr,hr->sdh", *factors)
    cells /= np.sqrt((cells**2).mean())
    noisy = cells + 0.05 * rng.standard_normal(shape)
    is_gap = rng.random(shape[:2]) < 0.15
    coords = np.nonzero(np.broadcast_to(~is_gap[:, :, None], shape))
    names = ["sensor", "day", "hour"]
    table = pd.DataFrame(dict(zip(names, coords, strict=True)) | {"value": noisy[coords]})
    with pytest.warns(UserWarning, match=r"pairs \(sensor, day\)"):
        from_dataframe(table, names, "value")
    x = from_dataframe(table, names, "value", missing=["sensor", "day"])
    cp = best_of("parafac", x, rank, 10, random_state=0).best
    gaps = np.argwhere(np.broadcast_to(is_gap[:, :, None], shape)).T
    predicted = cp.predict(pd.DataFrame(dict(zip(names, gaps, strict=True))))
    assert np.sqrt(((predicted - cells[tuple(gaps)]) ** 2).mean()) <= 0.1


def make_small(unknown):
    rng = np.random.default_rng(0)
    cells = rng.integers(1, 5, (5, 4, 6)).astype(float)
    labels = {"a": list("vwxyz"), "b": range(4), "c": range(6)}
    plain = LabelledTensor(from_dense(cells), labels)
    mask = sparse.COO([[0, 0], [1, 3], [2, 5]], np.zeros(2), (1, 4, 6), fill_value=1.0)
    return LabelledTensor(plain.tensor, plain.labels, mask if unknown == "mask" else unknown), mask


def from_dense(cells):
    from tensorly_flycoo import FlycooTensor

    return FlycooTensor(np.nonzero(cells), cells[np.nonzero(cells)], cells.shape)


SOLVERS = [name for name, method in METHODS.items() if method.model not in ("coupled",)]
#: What some take besides.
OWN = {"shared_parafac": {"modes": []}}


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_obeys_a_mask_of_its_data(name):
    """It gives the model that it gives with the mask as an option, or is refused by name."""
    x, mask = make_small("mask")
    solve, method = getattr(decomposition, name), METHODS[name]
    options = {"n_iter_max": 3, "random_state": 0, "init": "random", **OWN.get(name, {})}
    rank = [2, 2, 2] if method.model == "Tucker" else 2
    if not method.takes_mask:
        with pytest.raises(ValueError, match=f"tensor .*{name}"):
            solve(x, rank, **options)
        return
    found = solve(x, rank, **options)
    given = [mask[0]] * 5 if name == "parafac2" else mask
    expected = solve(LabelledTensor(x.tensor, x.labels), rank, mask=given, **options)
    for own, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(own, other)
    assert found.flycoo.mask is not None


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_obeys_data_of_which_only_rows_are_known(name):
    x, _ = make_small("all")
    part = x._replace(tensor=x.tensor[:, :, :5], labels={**x.labels, "c": range(5)})
    x = part.take("c", [0, 2, 4])
    rows = x.tensor.nonzeros()
    x = LabelledTensor(from_dense_without(rows, x.shape), x.labels, "all")
    solve, method = getattr(decomposition, name), METHODS[name]
    options = {"n_iter_max": 3, "random_state": 0, "init": "random", **OWN.get(name, {})}
    rank = [2, 2, 2] if method.model == "Tucker" else 2
    if name == "observed_parafac":
        plain = LabelledTensor(x.tensor, x.labels)
        found, expected = (solve(y, rank, l2_reg=0.1, **options) for y in (x, plain))
    elif method.takes_mask:
        is_missing = np.ones(x.shape)
        is_missing[tuple(x.tensor.nonzeros()[0])] = 0
        dense = 1 - is_missing
        given = list(dense) if name == "parafac2" else dense
        found = solve(x, rank, **options)
        expected = solve(LabelledTensor(x.tensor, x.labels), rank, mask=given, **options)
    else:
        with pytest.raises(ValueError, match=f"tensor .*{name}"):
            solve(x, rank, **options)
        return
    for own, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(own, other)


def from_dense_without(rows, shape):
    """Make a tensor of two thirds of some rows."""
    from tensorly_flycoo import FlycooTensor

    coords, values = rows
    is_kept = np.arange(values.size) % 3 > 0
    return FlycooTensor(coords[:, is_kept], values[is_kept], shape)


@pytest.mark.parametrize("name", SOLVERS)
def test_replicability_obeys_a_mask_of_its_data(name):
    """Each subset gets its rows of the mask; a solver without a mask is refused by name."""
    x, mask = make_small("mask")
    method = METHODS[name]
    options = {"n_folds": 2, "n_starts": 2, "n_iter_max": 3, "random_state": 0}
    if method.model == "Tucker":
        with pytest.raises(ValueError, match=f"method is '{name}'"):
            replicability(x, 2, "a", method=name, **options)
        return
    if not method.takes_mask:
        with pytest.raises(ValueError, match=f"tensor .*{name}"):
            replicability(x, 2, "a", method=name, **options)
        return
    found = replicability(x, 2, "a", method=name, **options)
    given = [mask[0]] * 5 if name == "parafac2" else mask
    plain = LabelledTensor(x.tensor, x.labels)
    expected = replicability(plain, 2, "a", method=name, mask=given, **options)
    np.testing.assert_array_equal(found.scores, expected.scores)
    if name != "parafac2":
        unmasked = replicability(plain, 2, "a", method=name, **options)
        assert not np.array_equal(found.scores, unmasked.scores)


def test_a_mask_of_the_call_adds_to_that_of_the_data():
    x, mask = make_small("mask")
    more = sparse.COO([[2], [0], [1]], np.zeros(1), x.shape, fill_value=1.0)
    both = np.broadcast_to(mask.todense(), x.shape) * more.todense()
    options = {"n_iter_max": 5, "init": "random", "random_state": 0, "tol": 0}
    found = tl.decomposition.parafac(x, 2, mask=more, **options)
    expected = tl.decomposition.parafac(x.tensor, 2, mask=both, **options)
    np.testing.assert_allclose(tl.cp_to_tensor(tuple(found)), tl.cp_to_tensor(expected), rtol=1e-9)


def test_what_no_solver_could_list_is_refused():
    x = from_dataframe(
        pd.DataFrame({"u": range(3000), "i": range(3000), "stars": 1.0}),
        ["u", "i"],
        "stars",
        missing="unknown",
    )
    with pytest.raises(ValueError, match="8,997,000 unknown cells, too many to list"):
        tl.decomposition.parafac(x, 2)


def test_a_mask_of_slices_adds_to_that_of_the_data():
    """It was dropped without a word."""
    x, mask = make_small("mask")
    more = [np.ones((4, 6)) for _ in range(5)]
    more[2][0, 1] = more[4][3, 0] = 0
    options = {"n_iter_max": 3, "random_state": 0}
    found = decomposition.parafac2(x, 2, mask=more, **options)
    both = [own * mask.todense()[0] for own in more]
    expected = decomposition.parafac2(x.tensor, 2, mask=both, **options)
    for own, other in zip(found.projections, expected.projections, strict=True):
        np.testing.assert_array_equal(own, other)


def test_a_united_mask_can_be_sliced():
    """Its cells are sorted, each once: pydata/sparse finds rows by bisection."""
    first = sparse.COO([[3, 1], [0, 2], [1, 0]], np.zeros(2), (5, 4, 6), fill_value=1.0)
    second = sparse.COO([[2, 1, 3], [3, 2, 0], [5, 0, 1]], np.zeros(3), (5, 4, 6), fill_value=1.0)
    united = unite_masks(first, second, (5, 4, 6))
    dense = first.todense() * second.todense()
    assert united.nnz == (dense == 0).sum()
    for rows in ([0, 2], [1, 3], [4, 3, 1]):
        np.testing.assert_array_equal(united[rows].todense(), dense[rows])
