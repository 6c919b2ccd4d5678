"""Tensors that a cluster loads: those of one process, to the bit."""

import os
import signal
import sys
import threading
import time
from unittest import mock

import dask.dataframe
import numpy as np
import pandas as pd
import pytest
import tensorly as tl
from local_clusters import wait_for_file

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    from_dataframe,
    mttkrp,
    save,
    save_slabs,
    write_tns,
)
from tensorly_flycoo import open_slabs as open_here
from tensorly_flycoo.base.reporting import listen
from tensorly_flycoo.dask import (
    WorkerLost,
    cluster_layout,
    from_dask_dataframe,
    loading,
    open_slabs,
    read_parquet,
    read_tns,
)
from tensorly_flycoo.io import slab_folder
from tensorly_flycoo.io.checkpoint import find_digest
from tensorly_flycoo.spread import building, whole_layout
from tensorly_flycoo.testing import random_tensor

MODES = ["user", "shop", "day"]


@pytest.fixture(scope="module")
def table():
    """Rows with many duplicates, whose sums depend on their sequence."""
    rng = np.random.default_rng(0)
    size = 5000
    return pd.DataFrame(
        {
            "user": [f"user {n}" for n in rng.zipf(1.6, size) % 300],
            "shop": rng.integers(0, 9, size) * 7,
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 40, size), "D"),
            "price": rng.standard_normal(size) * 10.0 ** rng.integers(-8, 8, size),
        }
    )


@pytest.fixture(scope="module")
def files(table, tmp_path_factory):
    """The table in files with several row groups each."""
    folder = tmp_path_factory.mktemp("parquet")
    for number, start in enumerate(range(0, len(table), 1800)):
        part = table.iloc[start : start + 1800]
        part.to_parquet(folder / f"part-{number}.parquet", row_group_size=500)
    return folder


def check_same(found, expected):
    """Compare a tensor on a cluster with one that is here."""
    assert (found.shape, found.nnz, found.dtype) == (expected.shape, expected.nnz, expected.dtype)
    assert find_digest(found) == find_digest(expected)
    assert [slab.rows for slab in found._layout.slabs] == [
        slab.rows for slab in expected._layout.slabs
    ]
    draws = [np.random.default_rng(n).random((size, 3)) for n, size in enumerate(found.shape)]
    factors = [factor.astype(found.dtype) for factor in draws]
    for mode in range(found.ndim):
        np.testing.assert_array_equal(mttkrp(found, factors, mode), mttkrp(expected, factors, mode))


@pytest.mark.parametrize(("values", "count"), [("price", 1), ("price", 3), (None, 2)])
def test_parquet(client, addresses, table, files, values, count):
    expected = from_dataframe(table, MODES, values, slabs=4)
    options, stages = {"client": client, "workers": addresses[:count]}, []
    with listen(stages.append):
        found = read_parquet(files, MODES, values, slabs=4, **options)
    assert stages == [
        f"reading 3 parts on {count} workers",
        "exchanging and sorting nonzeros for 4 slabs",
    ]
    assert isinstance(found, LabelledTensor)
    assert found.tensor.workers == tuple(addresses[:count])
    for name in MODES:
        np.testing.assert_array_equal(found.labels[name], expected.labels[name])
    check_same(found.tensor, expected.tensor)


def test_the_partitions_do_not_matter(client, files, table, monkeypatch):
    import tensorly_flycoo.dask.partitions as partitions

    expected = from_dataframe(table, MODES, "price", slabs=8).tensor
    for num_rows in (1, 700):
        monkeypatch.setattr(partitions, "_PARTITION_ROWS", num_rows)
        check_same(read_parquet(files, MODES, "price", slabs=8, client=client).tensor, expected)


@pytest.mark.parametrize(("nnz", "count"), [(1, 2), (2**18, 2), (2**20 - 1, 7), (2**25 * 9, 9)])
def test_small_tensors_have_few_slabs(nnz, count, monkeypatch):
    """Commands for each slab cost more than what they compute."""
    monkeypatch.setattr(loading, "Cluster", lambda *_: None)
    monkeypatch.setattr(loading.PartitionedData, "_read", lambda *_: (nnz, (3,), None, None))
    builder = mock.Mock()
    monkeypatch.setattr(loading, "ClusterBuilder", builder)
    loading.PartitionedData([], None).place(None, [])
    assert builder.call_args.args[3] == count


def test_indices(client, tmp_path):
    rng = np.random.default_rng(1)
    coords, values = rng.integers(0, 50, (2, 3000)), rng.random(3000).astype(np.float32)
    table = pd.DataFrame({"a": coords[0], "b": coords[1], "v": values})
    table.to_parquet(tmp_path / "x.parquet", row_group_size=1000)
    found = read_parquet(
        tmp_path / "x.parquet", ["a", "b"], "v", indices=True, slabs=3, client=client
    )
    shape = tuple(coords.max(axis=1) + 1)
    check_same(found, FlycooTensor(coords, values, shape, slabs=3))


def test_dask_dataframe(client, table):
    df = dask.dataframe.from_pandas(table, npartitions=5, sort=False)
    found = from_dask_dataframe(df, MODES, "price", slabs=4, client=client)
    expected = from_dataframe(table, MODES, "price", slabs=4)
    assert found.labels["user"].tolist() == expected.labels["user"].tolist()
    check_same(found.tensor, expected.tensor)


def test_ordered_categories(client, tmp_path):
    sizes = pd.CategoricalDtype(["S", "M", "L"], ordered=True)
    table = pd.DataFrame({"size": pd.Series(list("LSMSLM"), dtype=sizes), "shop": list("abcabc")})
    for number in range(2):
        table[3 * number :][:3].to_parquet(tmp_path / f"{number}.parquet")
    df = dask.dataframe.from_pandas(table, npartitions=2, sort=False)
    options = {"modes": ["size", "shop"], "slabs": 2, "client": client}
    for found in (from_dask_dataframe(df, **options), read_parquet(tmp_path, **options)):
        assert found.labels["size"].tolist() == ["S", "M", "L"]
        assert found.labels.ordered == ("size",)


def test_large_ids_beside_a_file_without_rows(client, tmp_path):
    table = pd.DataFrame({"a": np.arange(2**60, 2**60 + 5), "b": 0, "n": 1.0})
    table.to_parquet(tmp_path / "0.parquet")
    table[:0].astype({"a": float}).to_parquet(tmp_path / "1.parquet")
    found = read_parquet(tmp_path, ["a", "b"], "n", client=client)
    assert (found.labels["a"].tolist(), found.nnz) == (table["a"].tolist(), 5)


def test_incomplete_rows_are_dropped(client, table, tmp_path):
    """Labels that occur in no other row go with them, here a day and a time of day."""
    table = table.assign(
        day=table["day"].mask(np.arange(5000) == 7, pd.Timestamp("2024-05-01 12:30"))
    )
    table = table.assign(user=table["user"].mask(np.arange(5000) < 10))
    table.assign(user=table["user"].mask(np.arange(5000) % 7 == 0)).to_parquet(
        tmp_path / "x.parquet", row_group_size=500
    )
    found = read_parquet(tmp_path, MODES, "price", missing="drop", slabs=3, client=client)
    complete = pd.read_parquet(tmp_path).dropna()
    expected = from_dataframe(complete, MODES, "price", slabs=3)
    for name in MODES:
        np.testing.assert_array_equal(found.labels[name], expected.labels[name])
    check_same(found.tensor, expected.tensor)


@pytest.mark.parametrize(
    ("layout", "chosen"),
    [
        ("auto", "indexed"),
        pytest.param(None, "indexed", marks=pytest.mark.slow),
        ("replicated", "replicated"),
        pytest.param("remap", "remap", marks=pytest.mark.slow),
    ],
)
def test_layouts(client, tmp_path, layout, chosen):
    x = random_tensor((30, 20, 9, 8), 2000, random_state=0, layout=layout, slabs=3)
    write_tns(tmp_path / "x.tns", x)
    found = read_tns(tmp_path / "x.tns", x.shape, layout=layout, slabs=3, client=client)
    assert found.layout == x.layout == chosen
    check_same(found, x)


def test_tns(client, addresses, tmp_path):
    rng, paths = np.random.default_rng(2), []
    coords, values = rng.integers(0, 30, (3, 900)), rng.standard_normal(900)
    for number in range(3):
        part = slice(300 * number, 300 * number + 300)
        paths.append(tmp_path / f"{number}.tns")
        lines = [
            " ".join(map(str, [*(c + 1), repr(float(v))]))
            for c, v in zip(coords[:, part].T, values[part], strict=True)
        ]
        paths[-1].write_text("\n".join(lines) + "\n")
    expected = FlycooTensor(coords, values, (30, 30, 35), slabs=3)
    for given in (paths, tmp_path):
        found = read_tns(given, (30, 30, 35), slabs=3, client=client, workers=addresses[:1])
        check_same(found, expected)
    with pytest.raises(ValueError, match="index_base is 2, expected one of"):
        read_tns(tmp_path, index_base=2, client=client)


def test_errors_name_the_partition(client, table, tmp_path):
    table.assign(price=np.where(np.arange(5000) == 3000, np.nan, 1.0)).to_parquet(
        tmp_path / "x.parquet"
    )
    match = r"partition 0 of .*x\.parquet: column 'price' has no value in row 3000"
    with pytest.raises(ValueError, match=match):
        read_parquet(tmp_path, MODES, "price", client=client)
    df = dask.dataframe.from_pandas(table, npartitions=2, sort=False)
    for read, data in ((read_parquet, tmp_path), (from_dask_dataframe, df)):
        with pytest.raises(ValueError, match=r"has no column 'sum', expected one of .*'price'"):
            read(data, MODES, "sum", client=client)
    with pytest.raises(ValueError, match="missing is 'ignore', expected one of"):
        read_parquet(tmp_path, MODES, missing="ignore", client=client)
    with pytest.raises(ValueError, match=r"zeros is 'keep'.* call from_dataframe in one process"):
        read_parquet(tmp_path, MODES, zeros="keep", client=client)
    with pytest.raises(TypeError, match="column 'user' is of object, expected integers"):
        read_parquet(tmp_path, MODES, indices=True, client=client)
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "nowhere", MODES, client=client)


def test_options_that_it_lacks_are_named():
    df = dask.dataframe.from_pandas(pd.DataFrame({"a": [1], "v": [1.0]}))
    with pytest.raises(TypeError, match=r"from_dask_dataframe has no option 'aggregate', .* added"):
        from_dask_dataframe(df, ["a"], "v", aggregate="mean")
    with pytest.raises(
        TypeError, match=r"no option 'label', expected some of indices, missing, .*"
    ):
        from_dask_dataframe(df, ["a"], "v", label={})


def kill(client, address):
    """Kill a worker, and wait until Dask has noticed it."""
    os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while address in client.nthreads():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def list_keys(x):
    """Return the slabs' keys on their workers, by slab."""
    return {n: slab.layout.held.key for n, slab in enumerate(x._layout.slabs)}


def test_recover_loads_lost_slabs(client, addresses, table, files):
    """And leaves the others, also if what was lost had been made by an operation."""
    x = read_parquet(files, MODES, "price", slabs=4, client=client, workers=addresses).tensor
    y, keys, victim = np.negative(x**2) * 3, list_keys(x), x.workers[0]
    homes = [slab.home for slab in x._layout.slabs]
    kill(client, victim)
    with pytest.raises(WorkerLost, match=victim):
        mttkrp(x, [np.ones((size, 2)) for size in x.shape], 0)
    y.recover()
    x.recover()
    expected = from_dataframe(table, MODES, "price", slabs=4).tensor
    check_same(x, expected)
    check_same(y, -(expected**2) * 3)
    assert victim not in (*x.workers, *y.workers)
    kept = {n for n, key in list_keys(x).items() if key == keys[n]}
    assert kept == {n for n, home in enumerate(homes) if home > 0}
    x.recover()  # does nothing
    check_same(2 * y, -(expected**2) * 6)


APART = ((0,), (1,), (2,))


@pytest.mark.parametrize(("groups", "count"), [(((0, 1), (2,)), 0), (APART, 2), (APART, None)])
def test_groups(client, addresses, table, files, groups, count, monkeypatch):
    """Each slab numbers its own prefixes, also one that is loaded again.

    Without a count, groups are chosen again for the nonzeros that are left without duplicates.
    """
    for module in (cluster_layout, whole_layout):
        monkeypatch.setattr(module, "find_groups", lambda *_: (groups, count))
    monkeypatch.setattr(building, "find_groups", lambda *_: (((0, 1), (2,)), 0))
    expected = from_dataframe(table, MODES, "price", slabs=4).tensor
    x = read_parquet(files, MODES, "price", slabs=4, client=client, workers=addresses).tensor
    assert x.groups == expected.groups == ((0, 1), (2,))
    check_same(x, expected)
    for slab, other in zip(x._layout.slabs, expected._layout.slabs, strict=True):
        assert slab.layout.record_format == other.layout.record_format
    x._cluster.workers[2].is_lost = True
    x.recover()
    check_same(x, expected)


@pytest.mark.slow
def test_recover_notices_that_the_data_have_changed(client, addresses, tmp_path):
    numbers = np.arange(60)
    table = pd.DataFrame({"a": numbers % 20, "b": numbers // 20, "v": numbers + 1.0})
    changed = [table.assign(v=table.v + 1), table.assign(a=table.a + 1), table[:-1]]
    table.to_parquet(tmp_path / "x.parquet")
    options = {"slabs": 3, "client": client, "workers": addresses}
    x = read_parquet(tmp_path, ["a", "b"], "v", **options).tensor
    x._cluster.workers[2].is_lost = True
    for other in changed:
        other.to_parquet(tmp_path / "x.parquet")
        with pytest.raises(RuntimeError, match="not those that were loaded"):
            x.recover()
    table.to_parquet(tmp_path / "x.parquet")
    x.recover()
    check_same(x, from_dataframe(table, ["a", "b"], "v", slabs=3).tensor)


@pytest.mark.parametrize("layout", ["replicated", "indexed"])
def test_a_folder_that_workers_write(client, addresses, table, files, tmp_path, layout):
    """The files that one process writes; opened here, and on more workers, with the labels."""
    options = {"slabs": 4, "layout": layout}
    expected = from_dataframe(table, MODES, "price", **options)
    x = read_parquet(files, MODES, "price", client=client, workers=addresses[:2], **options)
    save_slabs(tmp_path / "x", x, layout=layout)
    save_slabs(tmp_path / "y", expected, slabs=4, layout=layout)
    for file in (tmp_path / "y").iterdir():
        assert (tmp_path / "x" / file.name).read_bytes() == file.read_bytes()
    for found in (open_here(tmp_path / "x"), open_slabs(tmp_path / "x", client=client)):
        assert found.labels.keys() == expected.labels.keys()
        for name in MODES:
            np.testing.assert_array_equal(found.labels[name], expected.labels[name])
        check_same(found.tensor, expected.tensor)
        with tl.backend_context("flycoo"):
            cp = tl.decomposition.parafac(found, 2, 3, init="random", random_state=0)
        assert isinstance(cp, LabelledCP)


def test_what_workers_cannot_write_is_refused(client, addresses, files, tmp_path, monkeypatch):
    x = read_parquet(files, MODES, "price", slabs=4, client=client)
    with pytest.raises(ValueError, match=r"slabs, dtype and layout are \[8.*but \[4"):
        save_slabs(tmp_path / "x", x, slabs=8)
    with pytest.raises(ValueError, match=r"call save_slabs\(path, x\)"):
        save(tmp_path / "x.npz", x)
    monkeypatch.setattr(slab_folder, "_name_slab", lambda number: f"nowhere/{number}.npz")
    with pytest.raises(FileNotFoundError, match=r"/x'[^/]*on worker tcp://"):
        save_slabs(tmp_path / "x", x)
    assert not list(tmp_path.iterdir())


def limit_files(nbytes):
    """Let a worker write files of so many bytes at most; return the limit before."""
    import resource

    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, most))
    return before


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of files")
def test_a_full_disk_of_a_worker(client, addresses, files, tmp_path):
    x = read_parquet(files, MODES, "price", slabs=4, client=client)
    before = client.run(limit_files, 5000, workers=addresses[:1])[addresses[0]]
    try:
        with pytest.raises(OSError, match=r"/x'[^/]*on worker tcp://"):
            save_slabs(tmp_path / "x", x)
    finally:
        client.run(limit_files, before, workers=addresses[:1])
    assert not list(tmp_path.iterdir())
    save_slabs(tmp_path / "x", x)
    assert open_slabs(tmp_path / "x", client=client).tensor.sum() == x.tensor.sum()


def test_a_read_that_is_interrupted(client, table, tmp_path):
    begun, end = tmp_path / "begun", tmp_path / "end"

    @dask.delayed
    def compute(part):
        begun.touch()
        wait_for_file(end)
        return part

    def interrupt():
        if wait_for_file(begun):
            os.kill(os.getpid(), signal.SIGINT)

    parts = [compute(table[:2500]), compute(table[2500:])]
    df = dask.dataframe.from_delayed(parts, meta=table[:0])
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        from_dask_dataframe(df, MODES, "price", slabs=4, client=client)
    thread.join()
    end.touch()
    found = from_dask_dataframe(df, MODES, "price", slabs=4, client=client)
    check_same(found.tensor, from_dataframe(table, MODES, "price", slabs=4).tensor)
