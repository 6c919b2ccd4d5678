"""TensorLy's loops on a cluster: the bits of one process, for any number of workers."""

import math
import pickle
import time

import numpy as np
import pytest
import tensorly as tl
from local_clusters import wait_for_addresses
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import (
    DensifyError,
    FlycooTensor,
    LabelledTensor,
    Progress,
    anomaly_scores,
    decomposition,
    evaluate,
    fold_in,
    mttkrp,
    mttkrps,
    open_slabs,
    recommend,
    save,
    save_slabs,
    select_rank,
    set_precision,
    stats,
    uncertainty,
)
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.dask import ClusterTensor
from tensorly_flycoo.dask import open_slabs as open_on_workers
from tensorly_flycoo.dask.cluster import Cluster
from tensorly_flycoo.engines.cpu.engine import CPU, CpuEngine
from tensorly_flycoo.io import slab_folder
from tensorly_flycoo.io.checkpoint import find_digest
from tensorly_flycoo.loop.initial_guess import spread_factors
from tensorly_flycoo.spread import row_shards
from tensorly_flycoo.spread.row_shards import RowShards
from tensorly_flycoo.tensor.labelled import Labels
from tensorly_flycoo.testing import planted_tensor

SHAPE, RANK, NUM_SLABS = (30, 20, 40), 3, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    x = planted_tensor(SHAPE, RANK, 400, noise=0.1, random_state=0)[0]
    coords, values = x.nonzeros()
    path = tmp_path_factory.mktemp("folders") / "x.flycoo"
    save_slabs(path, FlycooTensor(coords, np.abs(values), x.shape), slabs=NUM_SLABS)
    return path


@pytest.fixture(scope="module")
def tensors(folder, client):
    """The tensor on 1, 2 and 3 workers."""
    addresses = wait_for_addresses(client, 3)
    return [
        open_on_workers(folder, client=client, workers=addresses[:count]) for count in (1, 2, 3)
    ]


def open_here(folder, monkeypatch):
    """Open the folder in this process, with row-sharded factors."""
    with monkeypatch.context() as patch:
        patch.setattr(CPU, "devices", OneDevice())
        return open_slabs(folder)


def draw_start():
    rng = np.random.default_rng(0)
    return CPTensor((np.ones(RANK), [rng.random((size, RANK)) for size in SHAPE]))


@pytest.mark.parametrize("mode", range(3))
def test_mttkrp(tensors, folder, mode):
    factors, weights = draw_start().factors, np.array([1.0, 2.0, -1.0])
    expected = mttkrp(open_slabs(folder), factors, mode, weights=weights)
    for x in tensors:
        np.testing.assert_array_equal(mttkrp(x, factors, mode, weights=weights), expected)
        sharded = spread_factors(x, factors)
        found = mttkrp(x, sharded, mode, weights=weights)
        assert isinstance(found, RowShards)
        np.testing.assert_array_equal(found.to_numpy(), expected)
        found = mttkrps(x, sharded, weights=weights)[mode]
        np.testing.assert_array_equal(found.to_numpy(), expected)


def describe(x):
    """Return the same identifier in all processes: that of a function has its address."""
    return str(x).partition(" at 0x")[0]


def go_on(model, error):
    """Do not stop."""


def halve_small(rows):
    """A proximal operator of one's own."""
    return np.where(abs(rows) < 0.1, rows / 2, rows)


LOOPS = [
    ("parafac", {"init": "random", "random_state": 0}),
    ("parafac", {"init": "random", "random_state": 0, "normalize_factors": True}),
    pytest.param("parafac", {"normalize_factors": True}, marks=pytest.mark.slow),
    ("parafac", {"l2_reg": 0.1}),
    pytest.param("parafac", {"linesearch": True, "n_iter_max": 9}, marks=pytest.mark.slow),
    ("parafac", {"linesearch": "nesterov", "n_iter_max": 9}),
    ("parafac", {"linesearch": "gauss-newton", "n_iter_max": 9}),
    ("parafac", {"orthogonalise": True}),
    pytest.param("parafac", {"fixed_modes": [0]}, marks=pytest.mark.slow),
    ("parafac", {"smoothness": 5.0}),
    ("parafac", {"callback": go_on}),
    ("parafac", {"init": "svd"}),
    ("non_negative_parafac", {"init": "svd", "svd": "randomized_svd", "random_state": 0}),
    pytest.param("non_negative_parafac", {"normalize_factors": True}, marks=pytest.mark.slow),
    ("non_negative_parafac_hals", {}),
    pytest.param("non_negative_parafac_hals", {"smoothness": {0: 5.0}}, marks=pytest.mark.slow),
    pytest.param("non_negative_parafac_hals", {"init": "svd"}, marks=pytest.mark.slow),
    ("constrained_parafac", {"non_negative": True}),
    pytest.param("constrained_parafac", {"prox": halve_small}, id="prox"),
    pytest.param("constrained_parafac", {"group_lasso": 0.001}, marks=pytest.mark.slow),
    # The steps of this one wait for the workers hundreds of times.
    pytest.param("constrained_parafac", {"l2_reg": 0.001}, marks=pytest.mark.slow),
    pytest.param("constrained_parafac", {"l1_reg": 0.001}, marks=pytest.mark.slow),
    pytest.param("constrained_parafac", {"init": "svd", "l2_reg": 0.1}, marks=pytest.mark.slow),
]


@pytest.mark.filterwarnings("ignore:It is not recommended", "ignore:init is taken")
@pytest.mark.filterwarnings("ignore:The HALS algorithm")
@pytest.mark.parametrize(("name", "options"), LOOPS, ids=describe)
def test_loops(tensors, folder, name, options, monkeypatch):
    options = {"init": draw_start(), "n_iter_max": 4, "return_errors": True, **options}

    def decompose(x):
        with tl.backend_context("flycoo"):
            is_ours = {"smoothness", "prox"} & options.keys()  # TensorLy's have no such option
            home = decomposition if is_ours else tl.decomposition
            found, errors = getattr(home, name)(x, RANK, **options)
            return [float(e) for e in errors], [tl.to_numpy(f).tobytes() for f in found.factors]

    expected = decompose(open_here(folder, monkeypatch))
    for x in tensors:
        assert decompose(x) == expected


def test_mixed_precision(tensors, folder, monkeypatch):
    """Workers round factors to the bits of one process."""
    monkeypatch.setattr(CpuEngine, "narrow_pays", lambda *arguments: True)

    def decompose(x):
        options = {"init": draw_start(), "n_iter_max": 4, "tol": 0, "return_errors": True}
        with tl.backend_context("flycoo"), set_precision("mixed"):
            found, errors = decomposition.parafac(x, RANK, **options)
            return [float(e) for e in errors], [tl.to_numpy(f).tobytes() for f in found.factors]

    expected = decompose(open_here(folder, monkeypatch))
    for x in tensors:
        assert decompose(x) == expected


def count_traffic(x, monkeypatch):
    """Count the waits of each iteration, and what workers send each other: arrays and bytes."""
    fetch, transfer, counts = Cluster.fetch, Cluster.transfer, [[0, 0, 0]]

    def count_wait(cluster, objects):
        counts[-1][0] += 1
        return fetch(cluster, objects)

    def count_moves(cluster, moves):
        for array, _ in moves:
            counts[-1][1] += 1
            counts[-1][2] += math.prod(array.shape) * array.dtype.itemsize
        return transfer(cluster, moves)

    with monkeypatch.context() as patch, tl.backend_context("flycoo"):
        patch.setattr(Cluster, "fetch", count_wait)
        patch.setattr(Cluster, "transfer", count_moves)
        callback = lambda *_: counts.append([0, 0, 0])  # noqa: E731
        decomposition.parafac(x, RANK, 5, draw_start(), tol=0, callback=callback)
    return counts[2:-1]


def test_an_iteration_waits_for_the_workers_once(tensors, monkeypatch):
    assert [waits for waits, _, _ in count_traffic(tensors[1], monkeypatch)] == [1] * 4


#: Divisions of the modes, and the number of first modes whose prefixes are numbered.
GROUPS = {
    "a product": (((0, 1), (2,)), 0),
    "that is cut": (((0,), (1, 2)), 0),
    "all": (((0, 1, 2),), 0),
    "numbered": (((0,), (1,), (2,)), 2),
}


@pytest.mark.parametrize(
    "division",
    [
        "a product",
        "numbered",
        pytest.param("that is cut", marks=pytest.mark.slow),
        pytest.param("all", marks=pytest.mark.slow),
    ],
)
def test_groups_move_no_more(division, tensors, folder, client, addresses, tmp_path, monkeypatch):
    """Each worker contracts its own results; the bits are those of one process."""
    groups, num_numbered = GROUPS[division]
    monkeypatch.setattr(slab_folder, "find_groups", lambda *_: (groups, num_numbered))
    save_slabs(tmp_path / "x", open_slabs(folder), slabs=NUM_SLABS)
    here, factors = open_here(tmp_path / "x", monkeypatch), draw_start().factors

    def decompose(x):
        with tl.backend_context("flycoo"):
            found = decomposition.parafac(x, RANK, 4, draw_start(), tol=0)
            return [tl.to_numpy(factor).tobytes() for factor in found.factors]

    expected = decompose(here)
    for count in (1, 2, 3):
        options = {"client": client, "workers": addresses[:count]}
        x = open_on_workers(tmp_path / "x", **options)
        assert x.groups == here.groups == (groups if num_numbered == 0 else ((0, 1), (2,)))
        assert decompose(x) == expected
        for mode in range(3):
            found = mttkrp(x, factors, mode)
            assert found.tobytes() == mttkrp(open_slabs(tmp_path / "x"), factors, mode).tobytes()
        plain = tensors[count - 1]
        assert count_traffic(x, monkeypatch) == count_traffic(plain, monkeypatch)


def test_a_loop_that_needs_no_result_waits_for_the_workers(tensors, client):
    """Each call under way has a connection of its own."""
    options = {"init": "random", "random_state": 0, "tol": 0}  # computes no errors
    with tl.backend_context("flycoo"):
        x, num_open = tensors[1], client.rpc.open
        tl.decomposition.parafac(x, RANK, n_iter_max=60, **options)
    assert client.rpc.open <= num_open + 2 * len(x.workers)


def test_gram_matrices_that_workers_compute(tensors, monkeypatch):
    factors = draw_start().factors
    for x in tensors:
        factor = spread_factors(x, factors)[0]
        gram = row_shards.replicate_gram(factor.T, factor)
        expected = np.dot(factor.T, factor)
        np.testing.assert_array_equal(gram, expected)
        scale = np.arange(1.0, RANK + 1)
        found = (np.ones((RANK, RANK)) * gram + 0.5).T * scale.reshape(-1, 1)
        assert (found.shape, found.dtype, found.ndim) == ((RANK, RANK), np.float64, 2)
        expected_product = (expected + 0.5).T * scale.reshape(-1, 1)
        np.testing.assert_array_equal(found, expected_product)
        np.testing.assert_array_equal(np.linalg.inv(found), np.linalg.inv(expected_product))
        np.testing.assert_array_equal(found @ scale, expected_product @ scale)
        assert np.add.reduce(found, axis=None) == np.add.reduce(expected_product, axis=None)
        solved = row_shards.solve(found, factor.T).to_numpy()
        np.testing.assert_array_equal(
            solved, row_shards.solve(expected_product, factor.T).to_numpy()
        )


def test_a_factor_changes_its_dtype(tensors):
    factors = draw_start().factors
    for x in tensors:
        found = spread_factors(x, factors)[0].astype(np.float32)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found.to_numpy(), factors[0].astype(np.float32))


def test_the_digest_is_that_of_the_whole_tensor(tensors, folder):
    assert find_digest(tensors[2]) == find_digest(open_slabs(folder))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("parafac", {"tol": 0}),
        pytest.param("constrained_parafac", {"non_negative": True}, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_gives_the_same_bits(tensors, name, options, tmp_path):
    function, path = getattr(decomposition, name), tmp_path / "run.npz"

    def run(x, n_iter_max, init, **more):
        with tl.backend_context("flycoo"):
            found = function(x, RANK, n_iter_max=n_iter_max, init=init, **options, **more)
            return [tl.to_numpy(factor) for factor in found.factors]

    expected = run(tensors[1], 6, draw_start())
    with Progress(6, show=None, checkpoint=path, every=1) as progress:
        run(tensors[1], 2, draw_start(), callback=progress)
    with Progress(6, show=None, checkpoint=path) as progress:
        found = run(tensors[2], 4, progress.resume(), callback=progress)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_events_of_dask(client, folder):
    """The phases of loading, and iterations that a Progress is told of."""
    num_old = len(client.get_events("tensorly_flycoo"))
    x = open_on_workers(folder, client=client)
    with tl.backend_context("flycoo"), Progress(2, show=None) as progress:
        tl.decomposition.parafac(x, RANK, 2, draw_start(), callback=progress)
    fit = f"fit {1 - progress.errors[1]:.6f}, change {progress.errors[0] - progress.errors[1]:+.1e}"
    iteration = {"action": "parafac", "iteration": 1, "state": fit}
    while len(events := client.get_events("tensorly_flycoo")[num_old:]) < 3:
        time.sleep(0.01)
    events = [event for _, event in events]
    assert {"action": f"loading {NUM_SLABS} slabs on 3 workers"} in events
    assert iteration in events
    assert iteration in [event for _, event in client.get_events("all")]


def test_what_it_is(client, addresses, folder):
    x = open_on_workers(folder, client=client, workers=addresses[:2])
    assert isinstance(x, ClusterTensor)
    assert x.workers == tuple(addresses[:2])
    here = open_slabs(folder)
    assert (x.shape, x.nnz, x.dtype, x.norm(), x.slabs, x.device) == (
        *(here.shape, here.nnz, here.dtype, here.norm(), here.slabs),
        "dask",
    )


def test_empty_rows(tmp_path, client):
    coords = [[0, 3, 0], [5, 2, 2], [9, 9, 1]]
    save_slabs(tmp_path / "x", [(np.array(coords), np.ones(3))], (4, 7, 12), slabs=3)
    here, there = open_slabs(tmp_path / "x"), open_on_workers(tmp_path / "x", client=client)
    for mode in range(3):
        expected = here._layout.find_empty_rows(mode)
        np.testing.assert_array_equal(there._layout.find_empty_rows(mode), expected)


def make_model():
    return CPTensor((None, draw_start().factors))


#: What docs/clusters.md says is refused.
REFUSED = {
    "nonzeros": lambda x: x.nonzeros(),
    "to_coo": lambda x: x.to_coo(),
    "iteration": list,
    "pickle": pickle.dumps,
    "sum of tensors": lambda x: x + x,
    "difference of tensors": lambda x: x - x,
    "product of an unfolding": lambda x: tl.unfold(x, 0) @ np.ones((x.shape[1] * x.shape[2], 2)),
    "mode_dot with a vector": lambda x: tl.tenalg.mode_dot(x, np.ones(x.shape[0]), 0),
    "concatenate": lambda x: np.concatenate([x, x]),
    "inner product": lambda x: tl.tenalg.inner(x, x),
    "to_frame": lambda x: LabelledTensor(x, Labels([*map(np.arange, x.shape)])).to_frame(),
    "stats": stats,
    "anomaly_scores": lambda x: anomaly_scores(x, make_model()),
    "evaluate": lambda x: evaluate(make_model(), x),
    "recommend": lambda x: recommend(make_model(), 0, exclude=x),
    "uncertainty": lambda x: uncertainty(x, make_model()),
    "fold_in": lambda x: fold_in(make_model(), x, 0, loss="poisson_count"),
    "select_rank": lambda x: select_rank(x, [1, 2], method="observed_parafac", n_runs=1),
    "observed_parafac": lambda x: decomposition.observed_parafac(x, 2),
    "parafac2": lambda x: decomposition.parafac2(x, 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_reads_the_nonzeros_is_refused(tensors, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        tl.backend_context("flycoo"),
        pytest.raises(TypeError, match="the nonzeros of this tensor are on a cluster"),
    ):
        REFUSED[name](tensors[1])
    assert not any(tmp_path.iterdir())


def test_other_refusals(tensors, tmp_path):
    x, here = tensors[1], FlycooTensor([[0], [0], [0]], [1.0], SHAPE)
    with pytest.raises(ValueError, match="call save_slabs"):
        save(tmp_path / "x.npz", x)
    for other in (here, here.to_coo()):
        with pytest.raises(TypeError, match="devices 'dask' and 'cpu' differ"):
            x + other
    with pytest.raises(DensifyError, match="leave sparsity out"), tl.backend_context("flycoo"):
        decomposition.parafac(x, 2, sparsity=0.1, n_iter_max=1)
