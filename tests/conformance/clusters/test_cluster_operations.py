"""Operations on a cluster besides loops: the results of one process, to the bit."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from local_clusters import wait_for_addresses

from tensorly_flycoo import (
    FlycooTensor,
    cp_fit,
    diagnose,
    open_slabs,
    replicability,
    save_slabs,
    select_rank,
)
from tensorly_flycoo.dask import open_slabs as open_on_workers
from tensorly_flycoo.dask.cluster import Cluster
from tensorly_flycoo.dask.cluster_layout import ClusterLayout
from tensorly_flycoo.decomposition import (
    coupled_parafac,
    generalized_parafac,
    non_negative_parafac,
    parafac,
)
from tensorly_flycoo.io.checkpoint import find_digest
from tensorly_flycoo.loop.holding_out import hold_out

SHAPE, NUM_SLABS = (30, 20, 40), 5


def draw_nonzeros():
    rng = np.random.default_rng(0)
    places = rng.choice(np.prod(SHAPE), 300, replace=False)
    return np.stack(np.unravel_index(places, SHAPE)), rng.integers(1, 5, 300) + 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folders") / "x.flycoo"
    save_slabs(path, [draw_nonzeros()], SHAPE, slabs=NUM_SLABS)
    return path


@pytest.fixture(scope="module")
def tensors(folder, client):
    """The tensor on 1, 2 and 3 workers."""
    addresses = wait_for_addresses(client, 3)
    return [open_on_workers(folder, client=client, workers=addresses[:n]) for n in (1, 2, 3)]


def make_mask():
    """Mark nonzeros and zeros as missing."""
    coords = np.concatenate([draw_nonzeros()[0][:, ::7], [[0, 29], [1, 19], [2, 39]]], axis=1)
    return sparse.COO(coords, np.zeros(coords.shape[1]), SHAPE, fill_value=1.0)


def run_tucker(x):
    core, factors = tl.decomposition.tucker(x, [2, 3, 4], n_iter_max=2)
    return [core, *factors]


def run_partial_tucker(x, modes):
    return tl.decomposition.partial_tucker(x, [3, 2], modes=modes, n_iter_max=1)[0][1]


def run_adam(x, **options):
    options = {"loss": "poisson_log", "random_state": 0, "n_iter_max": 2} | options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorly_flycoo.decomposition.adam._NUM_STEPS", 3)
        return generalized_parafac(x, 3, **options).factors


def run_coupled(x):
    blocks = [(x, ["a", "b", "c"]), (np.arange(30.0).reshape(-1, 1), ["a", "d"])]
    return coupled_parafac(blocks, 2, random_state=0, n_iter_max=2)


DECOMPOSITIONS = {
    "tucker": run_tucker,
    "mask": lambda x: (
        parafac(x, 3, mask=make_mask(), init="svd", svd_mask_repeats=1, n_iter_max=2).factors
    ),
    "poisson with a mask": lambda x: (
        generalized_parafac(x, 3, mask=make_mask(), random_state=0, n_iter_max=2).factors
    ),
    "samples": lambda x: run_adam(x, samples=(20, 30)),
    "coupled": lambda x: [*run_coupled(x).factors.values()],
}
SLOW = {
    "poisson": lambda x: generalized_parafac(x, 3, random_state=0, n_iter_max=3).factors,
    "replicability": lambda x: [
        factor
        for model in replicability(x, 2, 0, 2, 2, random_state=0, n_iter_max=2).models
        for factor in model.factors
    ],
    "truncated": lambda x: run_adam(x.map(np.ceil), samples=(20, 1), loss="zero_truncated_poisson"),
    "partial tucker": lambda x: run_partial_tucker(x.astype(np.float32), [0, 2]),
    "select_rank": lambda x: select_rank(x, [1, 2], n_runs=2, random_state=0, n_iter_max=2).models[
        1
    ][1],
    "samples with a mask": lambda x: run_adam(x, samples=(20, 30), mask=make_mask()),
    "counts from svd": lambda x: (
        generalized_parafac(x, 3, init="svd", random_state=0, n_iter_max=1).factors
    ),
    "non-negative with a mask": lambda x: (
        non_negative_parafac(
            x, 3, mask=make_mask(), init="random", random_state=0, n_iter_max=2
        ).factors
    ),
}


@pytest.mark.parametrize(
    "name", [*DECOMPOSITIONS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_decompositions(tensors, folder, name):
    decompose = {**DECOMPOSITIONS, **SLOW}[name]
    with tl.backend_context("flycoo"):
        expected = [array.tobytes() for array in decompose(open_slabs(folder))]
        for x in tensors:
            assert [tl.to_numpy(array).tobytes() for array in decompose(x)] == expected


def test_the_steps_of_an_epoch_look_up_nonzeros_together(tensors, monkeypatch):
    waits, fetch = [], Cluster.fetch
    monkeypatch.setattr(Cluster, "fetch", lambda *args: waits.append(1) or fetch(*args))
    for num_steps in (1, 50):
        monkeypatch.setattr("tensorly_flycoo.decomposition.adam._NUM_STEPS", num_steps)
        options = {"loss": "zero_truncated_poisson", "samples": (20, 30), "random_state": 0}
        generalized_parafac(tensors[1].map(np.ceil), 2, n_iter_max=1, **options)
        waits.append(0)
    first, second, _ = "".join(map(str, waits)).split("0")
    assert first == second


@pytest.mark.slow
def test_factors_of_counts_are_sent_once(tensors, monkeypatch):
    sent, scatter = [], ClusterLayout.scatter

    def count_arrays(layout, factor, mode):
        if isinstance(factor, np.ndarray):
            sent.append(mode)
        return scatter(layout, factor, mode)

    monkeypatch.setattr(ClusterLayout, "scatter", count_arrays)
    generalized_parafac(tensors[1], 2, random_state=0, n_iter_max=1)
    assert sent == [0, 1, 2, 0, 1, 2]  # the guess, and each new factor before the next product


def test_held_out_entries(tensors, folder):
    def draw(x):
        return hold_out(x, x.nnz // 10, np.random.RandomState(0))

    for x in tensors:
        np.testing.assert_array_equal(draw(x), draw(open_slabs(folder)))


def test_a_mask_of_zeros_leaves_the_tensor_as_it_is(tensors):
    mask = sparse.COO([[0], [1], [2]], [0.0], SHAPE, fill_value=1.0)
    with tl.backend_context("flycoo"):
        model = parafac(tensors[1], 2, mask=mask, init="random", random_state=0, n_iter_max=1)
    assert model.factors[0].shape == (30, 2)


OPERATIONS = {
    "2 * x": lambda x: 2 * x,
    "-x / 3": lambda x: -x / 3,
    "x ** 2": lambda x: x**2,
    "log1p": np.log1p,
    "0 * x": lambda x: 0 * x,
    "zeros": lambda x: x.map(lambda values: np.maximum(values - 2, 0)),
    "float32": lambda x: x.astype(np.float32),
    "transpose": lambda x: x.transpose(2, 0, 1),
    "a row": lambda x: x[3],
    "rows of the cut mode": lambda x: x[..., 39:3:-2],
    "a list": lambda x: x[:, [3, 0, 3, 19]],
    "no nonzeros": lambda x: (x * 0)[:5],
    "a fibre": lambda x: x[3, :, 5],
    "sum over mode 1": lambda x: (x / 3).sum(axis=1),
    "sum over the cut mode": lambda x: (x / 3).sum(axis=-1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(tensors, folder, name):
    expected = OPERATIONS[name](open_slabs(folder))
    for x in tensors[1:]:
        found = OPERATIONS[name](x)
        assert (found.nnz, found.norm(), found.device) == (expected.nnz, expected.norm(), "dask")
        assert find_digest(found) == find_digest(expected)
        ranges = [[slab.rows for slab in y._layout.slabs] for y in (found, expected)]
        assert ranges[0] == ranges[1]


def test_numbers_and_vectors(tensors, folder):
    coords, _ = draw_nonzeros()

    def measure(x):
        numbers = x.sum(), x.mean(), x.max(), (-x).min(), x.norm(), x[*coords[:, 7]], x[0, 0, 0]
        vectors = (x / 3).sum(axis=(0, 1)), (x / 3).sum((0, 2)), x.sum(axis=2).mean(axis=1)
        return [(array.dtype, array.shape, array.tobytes()) for array in (*numbers, *vectors)]

    expected = measure(open_slabs(folder))
    for x in tensors:
        assert measure(x) == expected


def test_fits(tensors, folder):
    model = generalized_parafac(open_slabs(folder), 2, random_state=0, n_iter_max=2)

    def measure(x):
        masked = cp_fit(x, model, mask=make_mask(), loss="poisson_count")
        return cp_fit(x, model), cp_fit(x, model, loss="poisson_count"), masked

    expected = measure(open_slabs(folder))
    for x in tensors:
        assert measure(x) == expected


def test_a_diagnosis(tensors, folder):
    """Of least squares, with digits, and of counts."""
    counts = generalized_parafac(open_slabs(folder), 2, random_state=0, n_iter_max=2)
    models = counts, (counts.weights, counts.factors)
    for model in models:
        expected = diagnose(open_slabs(folder), model)
        for x in tensors:
            found = diagnose(x, model)
            assert repr(found) == repr(expected)
            assert found.error == expected.error
            np.testing.assert_array_equal(found.noise, expected.noise)


def test_values_that_are_not_finite(tensors):
    with pytest.raises(ValueError, match="not finite"):
        tensors[1].map(lambda values: values * 1e308)


def test_a_loss_that_is_not_defined(tmp_path, client):
    x = FlycooTensor([[0, 1, 2], [2, 0, 1]], [1.0, -2.0, 3.0], (3, 3))
    save_slabs(tmp_path / "x", x, slabs=2)
    with pytest.raises(ValueError, match=r"tensor holds -2\.0, expected numbers of 0 or more"):
        generalized_parafac(open_on_workers(tmp_path / "x", client=client), 2)
