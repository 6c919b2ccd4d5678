"""Coupled blocks with unknown cells, such as ratings, against least squares row by row."""

import numpy as np
import pytest
import sparse
from model_cells import read_cells

from tensorly_flycoo import (
    FlycooTensor,
    LabelledTensor,
    best_of,
    coupled_parafac,
    cp_fit,
    diagnose,
    fold_in,
    observed_parafac,
    recommend,
    uncertainty,
)
from tensorly_flycoo.models import LabelledCoupledCP

RANK, RIDGE = 3, 0.05
SIZES = {"user": 12, "film": 10, "month": 4, "genre": 6}
#: Blocks, and which of them have unknown cells.
CASES = {
    "ratings and genres": {("user", "film"): True, ("film", "genre"): False},
    "both unknown": {("user", "film"): True, ("film", "genre"): True},
    "three modes": {("user", "month", "film"): True, ("genre", "film"): False},
    "all modes shared": {("user", "film"): True, ("film", "genre"): False, ("genre", "user"): True},
    "alone": {("user", "film"): True},
}
OMEGAS = [0.5, 3.0, 1.5]
LABELS = {name: np.array([f"{name} {n}" for n in range(size)]) for name, size in SIZES.items()}


class Block:
    """Dense cells of a block, which of them are known, and what the user passes."""

    def __init__(self, names, is_observed, seed, lacks=0, dtype=np.float64, labels=LABELS):
        rng = np.random.default_rng(seed)
        self.names, self.is_observed = names, is_observed
        self.labels = {name: labels[name] for name in names}
        if lacks:
            self.labels["film"] = labels["film"][lacks:]
        shape = [len(of) for of in self.labels.values()]
        self.cells = rng.uniform(0.2, 1, shape).astype(dtype)
        self.is_known = np.ones(shape, bool)
        if is_observed:
            self.is_known = rng.random(shape) < 0.4
        self.cells[~self.is_known] = 0

    def make_item(self):
        """Return a labelled tensor that knows its unknown cells, or an array with its labels."""
        if not self.is_observed:
            return self.cells, self.labels
        return LabelledTensor(FlycooTensor.from_dense(self.cells), self.labels, "all")

    def spread(self, labels, missing):
        """Return the cells of all labels, and which of them are known."""
        rows = [[[*labels[name]].index(of) for of in own] for name, own in self.labels.items()]
        places = np.ix_(*rows)
        shape = [len(labels[name]) for name in self.names]
        cells = np.zeros(shape)
        cells[places] = self.cells
        is_known = np.full(shape, missing == "zero" and not self.is_observed)
        is_known[places] = self.is_known
        return cells, is_known


def make_blocks(case, lacks=0, **options):
    """Make the blocks of a case; the first lacks some films, if there are others."""
    blocks = []
    for n, (names, is_observed) in enumerate(CASES[case].items()):
        own = lacks if n == 0 else 0
        blocks.append(Block(names, is_observed, seed=n, lacks=own, **options))
    return blocks


def make_design(factors, weights, names, mode):
    """Return the designs of all cells of a row: (cells of the row, R)."""
    design = weights[None].astype(float)
    for name in names:
        if name != mode:
            design = (design[:, None] * factors[name][None]).reshape(-1, weights.size)
    return design


def solve_row(mode, row, data, names, factors, weights, l2_reg):
    """Solve the least squares of one row, cell by cell."""
    designs, targets = [], []
    for b, own in enumerate(names):
        if mode not in own:
            continue
        cells, is_known = (np.moveaxis(of, own.index(mode), 0)[row].reshape(-1) for of in data[b])
        design = make_design(factors, weights[b], own, mode)
        norms = np.prod([np.linalg.norm(factors[n], axis=0) for n in own if n != mode], axis=0)
        ridge = l2_reg**0.5 * np.diag(weights[b] * norms)
        designs += [OMEGAS[b] ** 0.5 * design[is_known], OMEGAS[b] ** 0.5 * ridge]
        targets += [OMEGAS[b] ** 0.5 * cells[is_known], np.zeros(len(ridge))]
    return np.linalg.lstsq(np.concatenate(designs), np.concatenate(targets), rcond=None)[0]


def solve_densely(data, names, start, num_iterations, l2_reg):
    """Run alternating least squares row by row, without normalising; return models and errors."""
    factors = dict(start)
    counts = {name: sum(name in own for own in names) for name in factors}
    weights, errors = [np.ones(RANK) for _ in names], []

    def solve_weights(only_shared):
        for b, own in enumerate(names):
            if only_shared and any(counts[name] == 1 for name in own):
                continue
            cells, is_known = (of.reshape(-1) for of in data[b])
            design = make_design(factors, np.ones(RANK), own, None)
            norms = np.prod([np.linalg.norm(factors[n], axis=0) for n in own], axis=0)
            design = np.concatenate([design[is_known], l2_reg**0.5 * np.diag(norms)])
            target = np.append(cells[is_known], np.zeros(RANK))
            weights[b] = np.linalg.lstsq(design, target, rcond=None)[0]

    solve_weights(only_shared=False)
    for _ in range(num_iterations):
        for mode in sorted(factors, key=lambda name: counts[name] > 1):
            factors[mode] = np.stack(
                [
                    solve_row(mode, row, data, names, factors, weights, l2_reg)
                    for row in range(len(factors[mode]))
                ]
            )
        solve_weights(only_shared=True)
        models = [
            make_design(factors, of, own, None).sum(axis=1).reshape(cells.shape)
            for of, own, (cells, _) in zip(weights, names, data, strict=True)
        ]
        errors.append(measure(data, models))
    return models, errors


def measure(data, models):
    """Return the relative error of all known cells."""
    squares = [
        [((cells - model)[is_known] ** 2).sum(), (cells**2).sum()]
        for (cells, is_known), model in zip(data, models, strict=True)
    ]
    residual, total = np.asarray(OMEGAS[: len(data)]) @ squares
    return (residual / total) ** 0.5


def fit(blocks, **options):
    omegas = OMEGAS[: len(blocks)]
    defaults = {"block_weights": omegas, "l2_reg": RIDGE, "tol": 0, "random_state": 0}
    return coupled_parafac([of.make_item() for of in blocks], RANK, **(defaults | options))


def find_labels(blocks):
    """Return all labels of each mode as a model has them: the first block's first."""
    labels = {}
    for block in blocks:
        for name, own in block.labels.items():
            labels[name] = [*dict.fromkeys([*labels.get(name, []), *own])]
    return labels


@pytest.mark.parametrize("missing", ["zero", "unknown"])
@pytest.mark.parametrize("lacks", [0, 3])
@pytest.mark.parametrize("case", CASES)
def test_each_iteration_is_that_of_least_squares_row_by_row(case, lacks, missing):
    """Also where the ratings lack films, of which the genres alone are known."""
    blocks = make_blocks(case, lacks)
    names = [block.names for block in blocks]
    labels = find_labels(blocks)
    data = [block.spread(labels, missing) for block in blocks]
    rng = np.random.default_rng(5)
    start = {name: rng.uniform(0, 1, (len(of), RANK)) for name, of in labels.items()}
    models, errors = solve_densely(data, names, start, 4, RIDGE)
    found = fit(blocks, init=start, n_iter_max=4, missing=missing)
    assert [*found.factors] == [*labels]
    np.testing.assert_allclose(found.errors, errors, rtol=1e-10)
    for cp, expected in zip(found.cp_tensors, models, strict=True):
        np.testing.assert_allclose(read_cells(cp), expected, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("nn_modes", [None, "all"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_minimised_never_rises(case, nn_modes, dtype):
    blocks, seen = make_blocks(case, dtype=dtype), []
    data = [block.spread(LABELS, "zero") for block in blocks]
    norms = [(cells**2).sum() for cells, _ in data]
    eps = float(np.finfo(dtype).eps)

    def note(model, error):
        cells = [read_cells(cp) for cp in model.cp_tensors]
        assert error == pytest.approx(measure(data, cells), rel=100 * eps)
        penalties = [RIDGE * np.sum(cp.weights.astype(float) ** 2) for cp in model.cp_tensors]
        omegas = np.asarray(OMEGAS[: len(data)])
        seen.append(error**2 * (omegas @ norms) + omegas @ penalties)

    model = fit(blocks, nn_modes=nn_modes, n_iter_max=25, callback=note)
    assert np.diff(seen).max() <= 100 * eps * seen[0]
    assert seen[-1] < seen[1]
    assert all(factor.dtype == dtype for factor in model.factors.values())
    if nn_modes:
        assert min(factor.min() for factor in model.factors.values()) >= 0


def test_momentum_is_faster():
    blocks = make_blocks("ratings and genres")
    plain, fast = (fit(blocks, n_iter_max=20, linesearch=of) for of in (False, "nesterov"))
    assert fast.errors[-1] < plain.errors[-1]


@pytest.mark.parametrize("unit", [2.0**40, 1e-9])
def test_unknown_cells_have_no_unit(unit):
    blocks, scaled = (make_blocks("both unknown") for _ in range(2))
    for block in scaled:
        block.cells *= unit
    found, expected = (fit(of, n_iter_max=5) for of in (scaled, blocks))
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-10)
    for cp, other in zip(found.cp_tensors, expected.cp_tensors, strict=True):
        np.testing.assert_allclose(cp.weights, unit * other.weights, rtol=1e-8)


# New rows


def make_new(case, mode, seed=20):
    """Make new rows of a mode in each block that has it, some without a known cell."""
    labels = LABELS | {mode: np.array([f"new {n}" for n in range(5)])}
    blocks = [
        Block(names, is_observed, seed + n, labels=labels)
        for n, (names, is_observed) in enumerate(CASES[case].items())
    ]
    for block in blocks:
        if block.is_observed and mode in block.names:
            np.moveaxis(block.is_known, block.names.index(mode), 0)[0] = False
            block.cells[~block.is_known] = 0
    return blocks, labels[mode]


@pytest.mark.parametrize("mode", ["film", "user", "genre"])
@pytest.mark.parametrize("case", CASES)
def test_new_rows_are_those_of_least_squares(case, mode):
    """The model knows which cells are unknown, and the ridge; the data need not say so."""
    model = fit(make_blocks(case), n_iter_max=3)
    if mode not in model.factors:
        return
    blocks, new_labels = make_new(case, mode)
    names = [block.names for block in blocks]
    data = [(block.cells, block.is_known) for block in blocks]
    weights = [cp.weights for cp in model.cp_tensors]
    given = [
        (FlycooTensor.from_dense(block.cells) if block.is_observed else block.cells, block.labels)
        for block in blocks
        if mode in block.names
    ]
    found = model.transform(given, mode)
    assert found.index.tolist() == new_labels.tolist()
    for row, expected in enumerate(found.to_numpy()):
        solved = solve_row(mode, row, data, names, model.factors, weights, RIDGE)
        np.testing.assert_allclose(expected, solved, atol=1e-10 * abs(solved).max() + 1e-14)
    longer = model.extend(given, mode)
    assert longer.labels[mode].tolist() == [*LABELS[mode], *new_labels]
    np.testing.assert_array_equal(longer.factors[mode][-5:], found.to_numpy())
    for cp, own in zip(longer.cp_tensors, names, strict=True):
        assert cp.shape == tuple(len(longer.factors[name]) for name in own)
    np.testing.assert_array_equal(longer.transform(given, mode), found)


def test_rows_of_the_data_of_the_fit_are_those_of_its_last_update():
    blocks = make_blocks("ratings and genres")
    model = fit(blocks, n_iter_max=3)
    found = fold_in(model, [block.make_item() for block in blocks], "film")
    np.testing.assert_allclose(found, model.factors["film"], atol=1e-12)


def test_films_are_recommended_by_their_genres():
    """Of exact data: users get the new films that they would rate best."""
    rng = np.random.default_rng(0)
    users, films, genres = (rng.uniform(0, 1, (size, 2)) for size in (40, 30, 6))
    stars, table = users @ films.T, films @ genres.T
    labels = {"user": np.arange(40), "film": np.arange(30), "genre": np.arange(6)}
    is_known = rng.random((40, 25)) < 0.3
    rated = FlycooTensor.from_dense(np.where(is_known, stars[:, :25], 0))
    ratings = LabelledTensor(rated, {"user": labels["user"], "film": labels["film"][:25]}, "all")
    options = {"l2_reg": 1e-7, "random_state": 0, "tol": 1e-12, "n_iter_max": 1000}
    of_films = {"film": labels["film"][:25], "genre": labels["genre"]}
    model = coupled_parafac([ratings, (table[:25], of_films)], 2, **options)
    longer = model.extend([(table[25:], of_films | {"film": labels["film"][25:]})], "film")
    cp = longer.cp_tensors[0]
    cells = (cp.factors[0] * cp.weights) @ cp.factors[1].T
    np.testing.assert_allclose(cells, stars, atol=0.01)
    for film, best in zip(range(25, 30), recommend(cp, "film", range(25, 30), 1), strict=True):
        assert [*best] == [stars[:, film].argmax()]


def test_new_labels_of_another_type():
    """Numbers stay numbers beside a name."""
    ratings = make_blocks("alone")[0].make_item()
    numbered = LabelledTensor(ratings.tensor, ratings.labels | {"user": np.arange(12)}, "all")
    model = coupled_parafac([numbered], 2, l2_reg=RIDGE, n_iter_max=2, random_state=0)
    new = FlycooTensor([[0], [3]], [1.0], (1, SIZES["film"]))
    longer = model.extend([(new, {"user": ["ann"], "film": LABELS["film"]})], "user")
    assert [*longer.labels["user"]] == [*range(12), "ann"]
    old, found = (of.cp_tensors[0] for of in (model, longer))
    assert recommend(found, "user", [3], 2) == recommend(old, "user", [3], 2)


# What a model knows


def test_files_keep_what_is_unknown(tmp_path):
    model = fit(make_blocks("ratings and genres"), n_iter_max=2)
    assert model.absent == ["unknown", "zero"]
    model.save(tmp_path / "model.npz")
    loaded = LabelledCoupledCP.load(tmp_path / "model.npz")
    assert loaded.absent == model.absent
    assert [cp.flycoo.absent for cp in loaded.cp_tensors] == model.absent
    new = FlycooTensor([[0, 1], [3, 2]], [1.0, 2.0], (2, SIZES["film"]))
    given = [(new, {"user": ["x", "y"], "film": LABELS["film"]})]
    found, expected = (of.transform(given, "user") for of in (loaded, model))
    np.testing.assert_array_equal(found, expected)


def test_functions_of_the_model_of_a_block():
    blocks = make_blocks("ratings and genres")
    model = fit(blocks, n_iter_max=3)
    ratings, cp = blocks[0].make_item(), model.cp_tensors[0]
    residual = (blocks[0].cells - read_cells(cp))[blocks[0].is_known]
    assert cp_fit(ratings.tensor, cp).rmse == pytest.approx(np.sqrt(np.mean(residual**2)))
    for call in (
        lambda: fold_in(cp, ratings, "user"),
        lambda: diagnose(ratings, cp),
        lambda: uncertainty(ratings, cp, mode=0),
    ):
        with pytest.raises(ValueError, match="is the model of one block of coupled_parafac"):
            call()
    with pytest.raises(ValueError, match=r"such as model\.cp_tensors\[0\]"):
        recommend(model, "user")


def test_the_best_of_several_starts():
    items = [block.make_item() for block in make_blocks("ratings and genres")]
    options = {"l2_reg": RIDGE, "n_iter_max": 5}
    found = best_of(coupled_parafac, items, RANK, n_starts=3, random_state=0, **options)
    assert found.best.absent == ["unknown", "zero"]
    assert found.best.errors[-1] == min(run.errors[-1] for run in found.runs)


def test_rows_without_a_known_cell_are_zero():
    block = make_blocks("alone")[0]
    block.cells[3] = 0
    model = fit([block], n_iter_max=3)
    assert not model.factors["user"][3].any()


def test_one_block_predicts_what_observed_parafac_does():
    """Of exact data with a weak ridge, whose forms differ."""
    rng = np.random.default_rng(2)
    stars = rng.uniform(0, 1, (30, 2)) @ rng.uniform(0, 1, (2, 20))
    x = FlycooTensor.from_dense(np.where(rng.random(stars.shape) < 0.5, stars, 0))
    labels = {"user": np.arange(30), "film": np.arange(20)}
    options = {"l2_reg": 1e-8, "random_state": 0, "n_iter_max": 500, "tol": 1e-13}
    coupled = coupled_parafac([LabelledTensor(x, labels, "all")], 2, **options)
    for model in (coupled.cp_tensors[0], observed_parafac(x, 2, **options)):
        np.testing.assert_allclose(read_cells(model), stars, atol=1e-3)


def test_refusals():
    ratings, genres = (block.make_item() for block in make_blocks("ratings and genres"))
    with pytest.raises(ValueError, match=r"l2_reg is 0, .* as blocks\[0\] has unknown cells"):
        coupled_parafac([ratings, genres], 2)
    mask = sparse.COO([[0], [1]], [0.0], ratings.shape, fill_value=1.0)
    masked = LabelledTensor(ratings.tensor, ratings.labels, mask)
    with pytest.raises(ValueError, match=r"blocks\[0\] has a mask of unknown cells, beside which"):
        coupled_parafac([masked, genres], 2, l2_reg=0.1)
    model = coupled_parafac([ratings, genres], 2, l2_reg=0.1, n_iter_max=1)
    dense = np.ones((1, SIZES["film"])), {"user": ["x"], "film": LABELS["film"]}
    with pytest.raises(ValueError, match=r"blocks\[0\] is a dense array, and the model was fitte"):
        fold_in(model, [dense], "user")
    known = FlycooTensor([[0], [0]], [1.0], (1, SIZES["film"]))
    old = known, {"user": LABELS["user"][:1], "film": LABELS["film"]}
    with pytest.raises(ValueError, match="blocks have the label 'user 0' of mode 'user', expect"):
        model.extend([old], "user")
    with pytest.raises(ValueError, match="blocks have no labels of mode 'user'"):
        model.extend([(known, ("user", "film"))], "user")
