"""Labelled models, fits and new rows on the GPU, compared with the CPU."""

import cupy
import numpy as np
import pandas as pd
import pytest
import tensorly as tl
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac

from tensorly_flycoo import (
    FlycooCP,
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    RaggedTensor,
    anomaly_scores,
    best_of,
    cp_fit,
    cp_to_entries,
    decomposition,
    evaluate,
    fold_in,
    from_dataframe,
    mttkrp,
    recommend,
    select_rank,
    stats,
)
from tensorly_flycoo.models import LabelledParafac2, LabelledTucker
from tensorly_flycoo.testing import random_tensor

# The first mode is tall: its algebra has kernels of its own.
SHAPE, RANK = (40_000, 40, 50), 3
LABELS = {"user": np.arange(40_000), "item": [f"item {n}" for n in range(40)],
          "day": np.arange("2020-01-01", "2020-02-20", dtype="datetime64[D]")}  # fmt: skip
LABELS = {name: np.asarray(labels) for name, labels in LABELS.items()}
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def make_pair(dtype, nnz=100_000):
    """Make the same tensor on the CPU and on the GPU."""
    coords, values = random_tensor(SHAPE, nnz, random_state=0, device="cpu").nonzeros()
    return [
        FlycooTensor(coords, values, SHAPE, dtype=dtype, device=name) for name in ("cpu", "cuda")
    ]


def make_models(dtype):
    """Make the same model on the CPU and on the GPU."""
    rng = np.random.RandomState(0)
    factors = [rng.standard_normal((size, RANK)).astype(dtype) for size in SHAPE]
    weights = (rng.random_sample(RANK) + 0.5).astype(dtype)
    return (weights, factors), (cupy.asarray(weights), [cupy.asarray(f) for f in factors])


def assert_near(found, expected, dtype, factor=1):
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == dtype
    bound = factor * (1e-12 if dtype == "float64" else 1e-4)
    assert np.abs(found.get() - expected).max() <= bound * np.abs(expected).max()


@DTYPES
def test_the_form_and_the_file(dtype, tmp_path):
    on_cpu, on_gpu = (LabelledCP(model, LABELS) for model in make_models(dtype))
    for found, expected in zip((on_gpu.weights, *on_gpu.factors),
                               (on_cpu.weights, *on_cpu.factors), strict=True):  # fmt: skip
        assert_near(found, expected, dtype)
    on_gpu.save(tmp_path / "cp.npz")
    loaded = LabelledCP.load(tmp_path / "cp.npz")
    assert np.array_equal(loaded.factors[0], on_gpu.factors[0].get())
    assert loaded.names == on_gpu.names
    assert [list(component) for component in on_gpu.top("item", 3)] == [
        list(component) for component in on_cpu.top("item", 3)
    ]
    assert on_gpu.to_frames()[1][0].shape == (40_000, RANK)
    assert len(on_gpu.plot(top=2).axes) == 9
    tidy = [cp.to_tidy().drop(columns="value") for cp in (on_gpu, on_cpu)]
    pd.testing.assert_frame_equal(*tidy)


@DTYPES
def test_fits(dtype):
    for held_out in (False, True):
        found, tolerance = [], 1e-10 if dtype == "float64" else 1e-4
        for x, model in zip(make_pair(dtype), make_models(dtype), strict=True):
            coords, values = x._sorted_nonzeros()
            entries = (coords[:, ::7], values[::7]) if held_out else None
            found.append(cp_fit(x, model, held_out=entries))
        assert found[1] == pytest.approx(found[0], rel=tolerance)


@DTYPES
@pytest.mark.parametrize("non_negative", [False, True])
@pytest.mark.parametrize("mode", [0, 2])
def test_new_rows(mode, non_negative, dtype):
    (x_cpu, x_gpu), (cpu_model, gpu_model) = make_pair(dtype), make_models(dtype)
    expected = fold_in(cpu_model, x_cpu, mode, non_negative=non_negative)
    found = fold_in(gpu_model, x_gpu, mode, non_negative=non_negative)
    assert_near(found, expected, dtype, factor=10)


def test_recommendations():
    """Small integers, so that many predictions are equal."""
    rng, shape = np.random.RandomState(0), SHAPE[:2]
    model = None, [rng.randint(-2, 3, (size, RANK)).astype(float) for size in shape]
    on_gpu = None, [cupy.asarray(factor) for factor in model[1]]
    entries = [random_tensor(shape, 100_000, random_state=n, device="cpu") for n in (0, 1)]
    known, held_out = [(x, FlycooTensor(*x.nonzeros(), shape, device="cuda")) for x in entries]
    for mode, ids in ((0, [3, 39_999, 3]), (1, None)):
        pairs = zip((model, on_gpu), known, strict=True)
        expected, found = (recommend(cp, mode, ids, 20, exclude=x) for cp, x in pairs)
        assert [list(of.items()) for of in found] == [list(of.items()) for of in expected]
    pairs = zip((model, on_gpu), held_out, known, strict=True)
    expected, found = (evaluate(cp, other, exclude=x) for cp, other, x in pairs)
    assert found == pytest.approx(expected, rel=1e-12)


def test_weights_that_tensorly_made_on_the_host():
    """As its CPTensor does under the backend "numpy", whatever the factors are."""
    rng = np.random.RandomState(0)
    factors = [rng.rand(size, RANK) for size in SHAPE]
    coords = np.array([[0, 3], [1, 2], [0, 4]])
    with tl.backend_context("numpy"):
        model = CPTensor((None, [cupy.asarray(factor) for factor in factors]))
    expected = cp_to_entries((None, factors), coords)
    assert_near(cp_to_entries(model, cupy.asarray(coords)), expected, "float64")
    assert len(recommend(model, 0, [0, 1], 5)[0]) == 5


def test_from_a_frame_to_new_rows():
    rng = np.random.RandomState(0)
    frame = pd.DataFrame(rng.randint(0, 20, (2000, 3)), columns=["a", "b", "c"])
    x = from_dataframe(frame, ["a", "b", "c"])
    assert isinstance(x, LabelledTensor)
    assert x.device == "cuda"
    cp = parafac(x, 2, n_iter_max=5, init="random", random_state=0)
    assert isinstance(cp, LabelledCP)
    assert isinstance(cp.factors[0], np.ndarray)  # as the table is
    rows = cp.transform(frame, "c").to_numpy()
    assert np.abs(rows - cp.factors[2]).max() <= 1e-12
    entries = cp_to_entries(cp, frame.to_numpy().T)
    assert np.array_equal(cp.predict(frame), entries)
    assert float(tl.cp_norm(cp)) == pytest.approx(float(tl.norm(tl.cp_to_tensor(cp))))
    plain = {"linesearch": False}  # as parafac
    model = FlycooCP(2, n_starts=1, n_iter_max=5, random_state=0, options=plain).fit(x)
    assert model.score(x) == pytest.approx(cp_fit(x, cp).fit)
    assert 0 < model.score(x[np.arange(5)]) < 1  # of rows that are found there


def test_a_labelled_tensor_is_computed_with():
    x = make_pair("float64")[1]
    labelled = LabelledTensor(x, LABELS)
    factors = make_models("float64")[1][1]
    assert "device" not in tl.context(labelled)
    assert bool((mttkrp(labelled, factors, 1) == mttkrp(x, factors, 1)).all())
    on_host = mttkrp(labelled, [factor.get() for factor in factors], 1)
    np.testing.assert_array_equal(on_host, mttkrp(x, factors, 1).get())
    assert float(tl.norm(labelled)) == float(tl.norm(x))
    assert stats(labelled).nnz == x.nnz
    assert tl.unfold(labelled, 1).shape == (40, 2_000_000)
    for found in (cupy.float64(2) * labelled, labelled + labelled, labelled.tensor + labelled):
        assert found.labels == labelled.labels
        assert float(found.norm()) == pytest.approx(2 * float(x.norm()))
    assert bool((labelled.sum([*LABELS][1:]) == x.sum((1, 2))).all())


def test_a_model_on_the_other_side_is_moved():
    (_, x), (cpu_model, gpu_model) = make_pair("float64"), make_models("float64")
    assert cp_fit(x, cpu_model) == cp_fit(x, gpu_model)
    assert bool((fold_in(cpu_model, x, 0) == fold_in(gpu_model, x, 0)).all())


def make_small(device):
    x = abs(random_tensor((5, 6, 7), 100, random_state=0, device="cpu")).map(np.ceil)
    x = FlycooTensor(*x.nonzeros(), x.shape, device=device)
    return LabelledTensor(x, {"user": list("edcba"), "item": range(6), "day": list("uvwxyzo")})


@pytest.mark.parametrize("name", ["tucker", "non_negative_tucker", "parafac2", "best_of"])
def test_other_models_keep_labels(name, tmp_path):
    """Of a table on the GPU they are NumPy's, as of one on the CPU, with its labels."""
    rank, options = 2 if name == "parafac2" else [2, 2, 2], {"n_iter_max": 3, "random_state": 0}

    def decompose(x):
        if name == "best_of":
            return best_of("tucker", x, rank, 2, **options).best
        x = RaggedTensor(x, drop_empty=True) if name == "parafac2" else x
        return getattr(decomposition, name)(x, rank, **options)

    found, expected = (decompose(make_small(device)) for device in ("cuda", "cpu"))
    assert type(found) is (LabelledParafac2 if name == "parafac2" else LabelledTucker)
    assert found.labels.keys() == expected.labels.keys()
    for frame, other in zip(found.to_frames()[1], expected.to_frames()[1], strict=True):
        assert frame.index.tolist() == other.index.tolist()
        np.testing.assert_allclose(np.abs(frame), np.abs(other), atol=1e-9)
    found.save(tmp_path / "model.npz")
    loaded = type(found).load(tmp_path / "model.npz")
    pd.testing.assert_frame_equal(loaded.to_tidy(), found.to_tidy(), check_dtype=False)


@pytest.mark.parametrize("kind", [LabelledTucker, LabelledParafac2])
def test_other_models_of_arrays_on_the_gpu(kind, tmp_path):
    x = make_small("cuda")
    if kind is LabelledTucker:
        plain = decomposition.tucker(x.tensor, [1, 2, 3], n_iter_max=2)
    else:
        slices = [x.tensor[n] for n in range(5)]
        plain = decomposition.parafac2(slices, 2, n_iter_max=2, random_state=0)
    assert isinstance(plain.factors[0], cupy.ndarray)
    model = kind(plain, x.labels)
    assert isinstance(model.factors[0], cupy.ndarray)
    model.save(tmp_path / "model.npz")
    loaded = kind.load(tmp_path / "model.npz")
    assert np.array_equal(loaded.factors[0], plain.factors[0].get())
    frames, expected = model.to_frames(), loaded.to_frames()
    np.testing.assert_array_equal(frames[0], expected[0])
    for frame, other in zip(frames[1], expected[1], strict=True):
        np.testing.assert_allclose(frame, other, atol=1e-12)
    assert [[*of] for of in model.top("day", 2)] == [[*of] for of in loaded.top("day", 2)]
    assert len(model.plot(top=2).axes) == 3 * len(model.components)
    assert "<table>" in model._repr_html_()


def test_tables_of_a_tensor_on_the_gpu():
    on_gpu, on_cpu = make_small("cuda"), make_small("cpu")
    means = None, [np.full((size, 1), 0.8) for size in on_cpu.shape]
    found, expected = (anomaly_scores(x, means) for x in (on_gpu, on_cpu))
    pd.testing.assert_frame_equal(found, expected)
    for labels in (["a", "e"], slice("d", "b")):
        part = on_gpu.take("user", labels)
        assert part.device == "cuda"
        pd.testing.assert_frame_equal(part.to_frame(), on_cpu.take("user", labels).to_frame())


@pytest.mark.parametrize("method", ["tucker", "non_negative_tucker", "parafac2"])
def test_held_out_losses_of_other_models(method):
    """The same entries are held out on both sides."""
    options = {"n_runs": 2, "random_state": 0, "n_iter_max": 3, "method": method}
    found, expected = (
        select_rank(make_small(device).tensor, [1, 2], **options) for device in ("cuda", "cpu")
    )
    for score, other in zip(found.scores, expected.scores, strict=True):
        assert score.rank == other.rank
        assert score[1:5] == pytest.approx(other[1:5], rel=1e-6, abs=1e-9)
