"""Rows of new labels of coupled models against dense least squares, and against their fits."""

import json
import zipfile

import numpy as np
import pytest
import scipy.sparse
import sparse
from scipy.optimize import nnls

from tensorly_flycoo import FlycooTensor, LabelledTensor, coupled_parafac
from tensorly_flycoo.models import LabelledCoupledCP
from tensorly_flycoo.results.fold_in_coupled import fold_in_coupled

RANK = 3
SIZES = {"user": 12, "item": 9, "day": 7, "tag": 8}
BLOCKS = [("user", "item", "day"), ("tag", "user"), ("user", "day")]
OMEGAS = [0.5, 3.0, 1.5]
LABELS = {name: [f"{name} {n}" for n in range(size)] for name, size in SIZES.items()}
KINDS = {
    "dense": lambda x: x,
    "FlycooTensor": FlycooTensor.from_dense,
    "COO": sparse.COO.from_numpy,
    "SciPy": lambda x: scipy.sparse.csr_array(x) if x.ndim == 2 else FlycooTensor.from_dense(x),
}


def make_model(dtype=np.float64, labels=True, unit=1.0, **options):
    rng = np.random.RandomState(0)
    draw = rng.random_sample if "nn_modes" in options else rng.standard_normal
    arrays = [draw([SIZES[name] for name in names]) for names in BLOCKS]
    modes = [{name: LABELS[name] for name in names} if labels else names for names in BLOCKS]
    blocks = [((unit * x).astype(dtype), of) for x, of in zip(arrays, modes, strict=True)]
    options = {"n_iter_max": 3, "random_state": 0, "block_weights": OMEGAS, **options}
    return coupled_parafac(blocks, RANK, **options), blocks


def make_new(mode, kind="dense", numbers=(0, 1, 2), seed=1, dtype=np.float64, sign=1):
    """Make labelled blocks that do not have the same new rows, nor all rows of other modes."""
    rng, blocks = np.random.RandomState(seed), []
    for number in numbers:
        if mode not in BLOCKS[number]:
            continue
        labels = {
            name: rng.permutation(LABELS[name])[: max(4, SIZES[name] - 2)].tolist()
            for name in BLOCKS[number]
        }
        labels[mode] = rng.permutation([f"new {n}" for n in range(6)])[:4].tolist()
        x = rng.standard_normal([len(of) for of in labels.values()])
        x = np.where(rng.random_sample(x.shape) < 0.4, 0, abs(x) if sign > 0 else x)
        blocks.append((KINDS[kind](x.astype(dtype)), labels))
    return blocks


def to_dense(x):
    for method in ("to_coo", "todense", "toarray"):
        x = getattr(x, method)() if hasattr(x, method) else x
    return np.asarray(x, np.float64)


def list_equations(model, blocks, mode, label, missing, l2_reg):
    """Return the design and the target of the row of one label, cell by cell, weighted."""
    design, target = [], []
    for x, labels in blocks:
        number = [{*names} for names in BLOCKS].index({*labels})
        weights, own = model.cp_tensors[number].weights.astype(float), [*labels]
        others = [name for name in own if name != mode]
        factors = [model.factors[name].astype(float) for name in others]
        cells = np.zeros([len(factor) for factor in factors])
        is_counted = np.full(cells.shape, missing == "zero")
        if label in labels[mode]:
            rows = [[LABELS[name].index(of) for of in labels[name]] for name in others]
            part = np.moveaxis(to_dense(x), own.index(mode), 0)[labels[mode].index(label)]
            cells[np.ix_(*rows)] = part
            is_counted[np.ix_(*rows)] |= bool(part.any())
        products = weights
        for factor in factors:
            products = products[..., None, :] * factor
        scale = OMEGAS[number] ** 0.5
        design.append(scale * products[is_counted])
        target.append(scale * cells[is_counted])
    for names, omega, cp in zip(BLOCKS, OMEGAS, model.cp_tensors, strict=True):
        if mode in names and l2_reg:
            design.append(np.diag((omega * l2_reg) ** 0.5 * cp.weights.astype(float)))
            target.append(np.zeros(RANK))
    return np.concatenate(design), np.concatenate(target)


def check_rows(model, blocks, mode, non_negative=False, missing="zero", l2_reg=0, dtype=np.float64):
    options = {"missing": missing, "l2_reg": l2_reg, "non_negative": non_negative}
    rows, labels = fold_in_coupled(model, blocks, mode, **options)
    assert rows.dtype == dtype
    assert labels.tolist() == [*dict.fromkeys(label for _, of in blocks for label in of[mode])]
    for row, label in zip(rows, labels.tolist(), strict=True):
        design, target = list_equations(model, blocks, mode, label, missing, l2_reg)
        if len(design) == 0:  # no block knows the row
            assert not row.any()
            continue
        solve = nnls if non_negative else np.linalg.lstsq
        expected = solve(design, target)[0]
        # Of normal equations; and the rounding of the rows themselves.
        bound = 100 * np.finfo(float).eps * np.linalg.cond(design) ** 2 + np.finfo(dtype).eps
        if non_negative:
            bound += 1e-9  # where sweeps end
        assert abs(row - expected).max() <= bound * np.linalg.norm(expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", ["zero", "unknown"])
@pytest.mark.parametrize("mode", SIZES)
@pytest.mark.parametrize("l2_reg", [0, 0.3])
def test_rows_are_those_of_dense_least_squares(mode, missing, kind, l2_reg):
    model, _ = make_model()
    blocks = make_new(mode, kind, sign=-1)
    check_rows(model, blocks, mode, missing=missing, l2_reg=l2_reg)


@pytest.mark.parametrize("missing", ["zero", "unknown"])
@pytest.mark.parametrize("mode", SIZES)
@pytest.mark.parametrize("l2_reg", [0, 0.3])
def test_rows_are_those_of_dense_nonnegative_least_squares(mode, missing, l2_reg):
    model, _ = make_model(nn_modes="all")
    check_rows(model, make_new(mode), mode, True, missing, l2_reg)


@pytest.mark.parametrize("numbers", [(0,), (1,), (2,), (2, 0)])
def test_any_blocks_will_do(numbers):
    model, _ = make_model()
    check_rows(model, make_new("user", numbers=numbers, sign=-1), "user", l2_reg=0.1)


@pytest.mark.parametrize("mode", SIZES)
def test_models_in_float32(mode):
    model, _ = make_model(np.float32)
    blocks = make_new(mode, "COO", dtype=np.float32)
    check_rows(model, blocks, mode, missing="unknown", l2_reg=0.1, dtype=np.float32)


@pytest.mark.parametrize("missing", ["zero", "unknown"])
@pytest.mark.parametrize("l2_reg", [0, 0.2])
@pytest.mark.parametrize("labels", [True, False])
def test_rows_of_the_data_of_the_fit_are_those_of_its_last_update(missing, l2_reg, labels):
    """The mode that is updated last has rows that fit all others as they stay."""
    names = [("user", "item", "day"), ("user", "tag")]
    rng = np.random.RandomState(0)
    users = [[*range(10)], [8, 3, 11, 1, 9]] if labels else [[*range(10)]] * 2
    blocks = []
    for own, rows in zip(names, users, strict=True):
        x = rng.standard_normal((len(rows), *(SIZES[name] for name in own[1:])))
        modes = {name: np.arange(SIZES[name]) for name in own} | {"user": rows}
        blocks.append((x, modes if labels else own))
    options = {"missing": missing, "l2_reg": l2_reg}
    fit = {"block_weights": [1.0, 4.0], "n_iter_max": 5, "random_state": 0}
    model = coupled_parafac(blocks, RANK, **fit, **options)
    rows, found = fold_in_coupled(model, blocks, "user", **options)
    np.testing.assert_allclose(rows, model.factors["user"], atol=1e-11)
    if labels:
        np.testing.assert_array_equal(found, model.labels["user"])
    else:
        assert found is None


def test_a_new_user_of_whom_only_the_tags_are_known():
    """Exact data: the events of the users that the fit did not have are predicted."""
    rng = np.random.RandomState(0)
    factors = {name: rng.random_sample((size, 2)) for name, size in SIZES.items()}
    x = np.einsum("ir,jr,kr->ijk", *(factors[name] for name in BLOCKS[0]))
    tags = factors["user"] @ factors["tag"].T
    fitted = [(x[:9], BLOCKS[0]), (tags[:9], ("user", "tag"))]
    model = coupled_parafac(fitted, 2, random_state=0, n_iter_max=2000, tol=1e-13)
    assert model.errors[-1] < 1e-5
    rows, _ = fold_in_coupled(model, [(tags[9:], ("user", "tag"))], "user")
    weights, (_, items, days) = model.cp_tensors[0]
    found = np.einsum("ir,jr,kr->ijk", rows * weights, items, days)
    assert np.linalg.norm(found - x[9:]) < 1e-3 * np.linalg.norm(x[9:])


@pytest.mark.parametrize("unit", [2.0**40, 1e-9, 1e200])
def test_rows_have_no_unit(unit):
    expected, _ = fold_in_coupled(make_model()[0], make_new("user"), "user", l2_reg=0.2)
    scaled = [(unit * x, labels) for x, labels in make_new("user")]
    found, _ = fold_in_coupled(make_model(unit=unit)[0], scaled, "user", l2_reg=0.2)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_labelled_tensors_and_blocks_without_nonzeros():
    model, _ = make_model()
    labels = {name: LABELS[name] for name in BLOCKS[0]} | {"user": ["x", "y"]}
    x = FlycooTensor([[1], [2], [3]], [4.0], (2, SIZES["item"], SIZES["day"]))
    check_rows(model, [(x, labels)], "user", missing="unknown")
    rows, users = fold_in_coupled(model, [LabelledTensor(x, labels)], "user")
    assert users.tolist() == ["x", "y"]
    assert not rows[0].any()
    empty = FlycooTensor(np.zeros((3, 0), int), np.zeros(0), x.shape)
    assert not fold_in_coupled(model, [(empty, BLOCKS[0])], "user").rows.any()


def test_two_blocks_of_the_same_modes_come_in_the_order_of_the_model():
    rng = np.random.RandomState(0)
    arrays = [rng.standard_normal((6, 5)) for _ in range(2)]
    blocks = [(x, ("user", "item")) for x in arrays]
    model = coupled_parafac(blocks, 2, block_weights=[1, 5], n_iter_max=4, random_state=0)
    new = [(rng.standard_normal((3, 5)), ("user", "item")) for _ in range(2)]
    found, _ = fold_in_coupled(model, new, "user")
    pairs = zip((1, 5), model.cp_tensors, strict=True)
    design = [omega**0.5 * cp.weights * cp.factors[1] for omega, cp in pairs]
    target = [omega**0.5 * x.T for omega, (x, _) in zip((1, 5), new, strict=True)]
    expected = np.linalg.lstsq(np.concatenate(design), np.concatenate(target), rcond=None)[0].T
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    with pytest.raises(ValueError, match=r"blocks has 1 of the modes .* expected 2"):
        fold_in_coupled(model, new[:1], "user")


def test_saved_models_know_their_blocks(tmp_path):
    model, _ = make_model()
    assert model.blocks == BLOCKS
    assert model.block_weights == OMEGAS
    model.save(tmp_path / "model.npz")
    loaded = LabelledCoupledCP.load(tmp_path / "model.npz")
    assert (loaded.blocks, loaded.block_weights) == (BLOCKS, OMEGAS)
    expected, found = (fold_in_coupled(of, make_new("user"), "user") for of in (model, loaded))
    np.testing.assert_array_equal(found.rows, expected.rows)


def rewrite_header(path, change):
    """Change the header of a saved model."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with np.load(path) as arrays:
        header = json.loads(str(arrays["header"]))
    change(header)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name != "header.npy":
                archive.writestr(name, content)
        with archive.open("header.npy", "w") as file:
            np.lib.format.write_array(file, np.array(json.dumps(header)))


def test_files_of_older_releases_have_no_block_weights(tmp_path):
    model, _ = make_model()
    model.save(tmp_path / "model.npz")
    rewrite_header(tmp_path / "model.npz", lambda header: header.pop("block_weights"))
    loaded = LabelledCoupledCP.load(tmp_path / "model.npz")
    assert (loaded.blocks, loaded.block_weights) == (BLOCKS, [])
    with pytest.raises(ValueError, match="to those that it was fitted with"):
        fold_in_coupled(loaded, make_new("user"), "user")
    loaded.block_weights = OMEGAS
    expected = fold_in_coupled(model, make_new("user"), "user").rows
    np.testing.assert_array_equal(fold_in_coupled(loaded, make_new("user"), "user").rows, expected)


@pytest.mark.parametrize("wrong", [[1.0], [1.0, 2.0, -1.0], [1.0, 2.0, "x"], 3.0, [1, 2, 3]])
def test_damaged_block_weights_are_refused(tmp_path, wrong):
    make_model()[0].save(tmp_path / "model.npz")
    rewrite_header(tmp_path / "model.npz", lambda header: header.update(block_weights=wrong))
    with pytest.raises(ValueError, match="is damaged, or not a saved LabelledCoupledCP"):
        LabelledCoupledCP.load(tmp_path / "model.npz")


MATRIX = np.ones((2, SIZES["tag"]))
NAMES = ("user", "tag")
WRONG = [
    ([(MATRIX, NAMES)], "shop", {}, ValueError, "mode is 'shop', expected one of"),
    ([(MATRIX, ("user", "item"))], "user", {}, ValueError, "expected those of a block of the mod"),
    ([(MATRIX, NAMES)], "item", {}, ValueError, "expected also 'item'"),
    ([(MATRIX[:, 1:], NAMES)], "user", {}, ValueError, "has size 7 in mode 'tag', expected 8"),
    ([], "user", {}, ValueError, "blocks is empty"),
    ([(MATRIX, "user")], "user", {}, TypeError, "expected \\(data, names of its modes\\)"),
    ([(MATRIX * np.nan, NAMES)], "user", {}, ValueError, "nan"),
    ([(MATRIX, NAMES)], "user", {"l2_reg": -1}, ValueError, "l2_reg is -1"),
    ([(MATRIX, NAMES)], "user", {"missing": "nan"}, ValueError, "missing is 'nan', expected"),
    (
        [(MATRIX, {"user": [1, 2], "tag": [*LABELS["tag"][:7], "other"]})],
        "user",
        {},
        ValueError,
        r"blocks\[0\] has the label 'other' of mode 'tag', which the model has not",
    ),
    (
        [(MATRIX, NAMES), (np.ones((3, SIZES["day"])), ("user", "day"))],
        "user",
        {},
        ValueError,
        r"blocks\[1\] has size 3 in mode 'user', expected 2, as blocks\[0\] has",
    ),
    (
        [
            (MATRIX, NAMES),
            (np.ones((2, SIZES["day"])), {"user": [1, 2], "day": LABELS["day"]}),
        ],
        "user",
        {},
        ValueError,
        r"blocks\[0\] has no labels of mode 'user', expected some",
    ),
]


@pytest.mark.parametrize(("blocks", "mode", "options", "kind", "message"), WRONG)
def test_wrong_input(blocks, mode, options, kind, message):
    with pytest.raises(kind, match=message):
        fold_in_coupled(make_model()[0], blocks, mode, **options)


def test_other_models_are_refused():
    cp = make_model()[0].cp_tensors[0]
    with pytest.raises(TypeError, match="model is a LabelledCP, expected a CoupledCP"):
        fold_in_coupled(cp, [(MATRIX, NAMES)], "user")
