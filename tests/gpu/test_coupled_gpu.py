"""Coupled CP on a GPU gives what it gives on a CPU."""

import cupy
import numpy as np
import pytest
import scipy.sparse
import tensorly as tl

from tensorly_flycoo import FlycooTensor, LabelledTensor, coupled_parafac, fold_in, recommend
from tensorly_flycoo.models import LabelledCoupledCP
from tensorly_flycoo.testing import random_tensor

EVENTS, TAGS, REGIONS = ("user", "item", "day"), ("user", "tag"), ("day", "region", "user")
#: More rows than `tall_skinny.MIN_TALL_ROWS`.
SHAPE = (40_000, 300, 50)


def make_blocks(device, dtype=np.float64):
    x = random_tensor(SHAPE, 30_000, random_state=0, device="cpu").astype(dtype)
    tags = scipy.sparse.random_array((SHAPE[0], 20), density=0.05, rng=0, dtype=dtype)
    regions = np.random.RandomState(0).random_sample((50, 4, SHAPE[0])).astype(dtype)
    x = FlycooTensor(*x.nonzeros(), SHAPE, device=device)
    return [(x, EVENTS), (tags, TAGS), (regions, REGIONS)]  # the last two are in host memory


@pytest.mark.parametrize("nn_modes", [None, "all"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gpu_finds_the_model_of_a_cpu(dtype, nn_modes):
    options = {"n_iter_max": 3, "random_state": 0, "nn_modes": nn_modes, "tol": 0}
    found, expected = (
        coupled_parafac(make_blocks(device, dtype), 4, **options) for device in ("cuda", "cpu")
    )
    tolerance = 1e-3 if dtype == np.float32 else 1e-8
    assert found.errors == pytest.approx(expected.errors, rel=tolerance)
    for name, factor in found.factors.items():
        assert isinstance(factor, cupy.ndarray)
        assert factor.dtype == dtype
        assert abs(factor.get() - expected.factors[name]).max() <= tolerance
    for cp, other in zip(found.cp_tensors, expected.cp_tensors, strict=True):
        assert isinstance(cp.weights, cupy.ndarray)
        assert cp.weights.get() == pytest.approx(other.weights, rel=tolerance)


@pytest.mark.parametrize("l2_reg", [0, 0.1])
def test_unknown_rows(l2_reg):
    """The tags of half of the users are unknown."""
    users, models = np.arange(SHAPE[0]), []
    for device in ("cuda", "cpu"):
        (x, _), (tags, _), _ = make_blocks(device)
        labels = {"user": users, "item": np.arange(SHAPE[1]), "day": np.arange(SHAPE[2])}
        side = {"user": users[::2], "tag": np.arange(20)}
        blocks = [(x, labels), (tags.tocsr()[::2], side)]
        options = {"missing": "unknown", "n_iter_max": 3, "random_state": 0, "tol": 0}
        models.append(coupled_parafac(blocks, 4, l2_reg=l2_reg, **options))
    found, expected = models
    assert found.errors == pytest.approx(expected.errors, rel=1e-8)
    for name, factor in found.factors.items():
        assert abs(factor.get() - expected.factors[name]).max() <= 1e-8


def test_files_of_labelled_models(tmp_path):
    """Of factors on the GPU; loaded, they are on the host."""
    x, tags = make_blocks("cuda")[0][0], np.ones((2, 3))
    labels = {name: np.arange(size) for name, size in zip(EVENTS, SHAPE, strict=True)}
    blocks = [(x, labels), (tags, {"user": [3, 5], "tag": list("abc")})]
    model = coupled_parafac(blocks, 2, missing="unknown", n_iter_max=2, random_state=0)
    model.save(tmp_path / "model.npz")
    loaded = LabelledCoupledCP.load(tmp_path / "model.npz")
    assert isinstance(model.factors["user"], cupy.ndarray)
    for frame, other in zip(loaded.to_frames()[1], model.to_frames()[1], strict=True):
        assert frame.equals(other)
    assert np.array_equal(loaded.weights, model.weights.get())


def test_a_triangle_of_cupy_arrays_from_a_model():
    random = cupy.random.default_rng(0)
    sizes = {"a": 30, "b": 20, "c": 10}
    blocks = [
        (random.random((sizes[first], sizes[second])), (first, second))
        for first, second in ("ab", "bc", "ca")
    ]
    whole = coupled_parafac(blocks, 3, random_state=0, n_iter_max=6, tol=0)
    half = coupled_parafac(blocks, 3, random_state=0, n_iter_max=3, tol=0)
    rest = coupled_parafac(blocks, 3, init=half, n_iter_max=3, tol=0)
    assert half.errors + rest.errors == pytest.approx(whole.errors, rel=1e-9)


def test_labels_move_rows_on_a_gpu():
    users = np.arange(SHAPE[0])
    (x, _), (tags, _), _ = make_blocks("cuda")
    labels = {"user": users, "item": range(SHAPE[1]), "day": range(SHAPE[2])}
    found = coupled_parafac(
        [(x, labels), (tags.tocsr()[::-1], {"user": users[::-1], "tag": range(20)})],
        3, random_state=0, n_iter_max=3,
    )  # fmt: skip
    expected = coupled_parafac([(x, EVENTS), (tags, TAGS)], 3, random_state=0, n_iter_max=3)
    assert found.errors == pytest.approx(expected.errors, rel=1e-9)
    assert found.cp_tensors[1].names == TAGS


def test_blocks_on_two_devices_are_refused():
    (x, _), *_ = make_blocks("cuda")
    (other, _), *_ = make_blocks("cpu")
    with pytest.raises(TypeError, match=r"blocks\[1\] is on the device 'cpu', expected 'cuda'"):
        coupled_parafac([(x, EVENTS), (other, EVENTS)], 2)


def make_ratings(device, dtype=np.float64):
    """Return ratings with unknown cells, genres, and tags with unknown cells, of 200 films."""
    rng = np.random.default_rng(0)
    films = np.array([f"film {n}" for n in range(200)])
    stars = rng.random((500, 3)) @ rng.random((3, 200))
    table = rng.random((200, 8)).astype(dtype)
    ratings = np.where(rng.random(stars.shape) < 0.1, stars, 0)[:, 20:].astype(dtype)
    tags = np.where(rng.random((200, 5)) < 0.3, rng.random((200, 5)), 0).astype(dtype)
    of_ratings = {"user": np.arange(500), "film": films[20:]}  # the first films are not rated
    of_tags = {"film": films, "tag": np.arange(5)}
    return [
        LabelledTensor(FlycooTensor.from_dense(ratings, device=device), of_ratings, "all"),
        (table, {"film": films, "genre": np.arange(8)}),
        LabelledTensor(FlycooTensor.from_dense(tags, device=device), of_tags, "all"),
    ]


@pytest.mark.parametrize("nn_modes", [None, "all"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("numbers", [(0,), (0, 1), (0, 2), (0, 1, 2)], ids=str)
def test_unknown_cells(numbers, dtype, nn_modes):
    options = {"l2_reg": 0.05, "n_iter_max": 3, "random_state": 0, "nn_modes": nn_modes, "tol": 0}
    found, expected = (
        coupled_parafac([make_ratings(device, dtype)[n] for n in numbers], 4, **options)
        for device in ("cuda", "cpu")
    )
    tolerance = 1e-3 if dtype == np.float32 else 1e-9
    assert found.errors == pytest.approx(expected.errors, rel=tolerance)
    assert found.absent == expected.absent
    for name, factor in found.factors.items():
        # Results mirror the input: a LabelledTensor is in host memory.
        assert isinstance(factor, np.ndarray)
        assert factor.dtype == dtype
        assert abs(factor - expected.factors[name]).max() <= tolerance


@pytest.mark.parametrize("numbers", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2)], ids=str)
def test_new_rows_beside_unknown_cells(numbers):
    """The same model on both devices: cells that new data lack are unknown, as in its fit."""
    options = {"l2_reg": 0.05, "n_iter_max": 3, "random_state": 0}
    model = coupled_parafac(make_ratings("cpu"), 4, **options)
    rows = []
    for device in ("cuda", "cpu"):
        new = []
        for n in numbers:
            data, labels = make_ratings(device)[n]
            taken = data[:, :9] if n == 0 else data[:9]
            new.append((taken, labels | {"film": [f"new {number}" for number in range(9)]}))
        rows.append(tl.to_numpy(fold_in(model, new, "film")))
        longer = model.extend(new, "film")
        best = recommend(longer.cp_tensors[0], "film", ["new 3"], 3, of="user")
        rows.append([*best[0].values()])
    found, best, expected, other = rows
    assert abs(found - expected).max() <= 1e-10 * abs(expected).max()
    assert best == pytest.approx(other, rel=1e-9)


def test_unknown_cells_have_the_same_bits_in_every_run():
    options = {"l2_reg": 0.05, "n_iter_max": 3, "random_state": 0}
    found, other = (coupled_parafac(make_ratings("cuda"), 4, **options) for _ in range(2))
    assert found.errors == other.errors
    for name, factor in found.factors.items():
        assert np.array_equal(factor, other.factors[name])
