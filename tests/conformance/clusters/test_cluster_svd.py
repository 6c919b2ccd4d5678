"""Singular vectors of unfoldings on a cluster: the bits of one process, without its nonzeros."""

import numpy as np
import pytest
import tensorly as tl
from tensorly.tenalg.svd import svd_interface

from tensorly_flycoo import open_slabs, save_slabs
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.dask import cluster_layout
from tensorly_flycoo.dask import open_slabs as open_on_workers
from tensorly_flycoo.dask.messages import SITE
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.svd import eigen
from tensorly_flycoo.svd import gram as gram_module
from tensorly_flycoo.svd.gram import UnfoldingGram
from tensorly_flycoo.svd.nndsvd import make_left_vectors_non_negative
from tensorly_flycoo.svd.unfolding import Unfolding

#: Shapes of tensors: any one, one with few columns along its cut mode, and one of few columns
#: along another one, since most indices of the cut mode have no nonzeros.
SHAPES = {"any": (30, 20, 40), "few": (300, 3, 4), "holes": (90, 100)}
RANK = 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    rng = np.random.default_rng(0)
    found = {}
    for name, shape in SHAPES.items():
        places = rng.choice(np.prod(shape), 800, replace=False)
        coords = np.stack(np.unravel_index(places, shape))
        if name == "holes":
            coords[1] -= coords[1] % 20
        found[name] = tmp_path_factory.mktemp("folders") / f"{name}.flycoo"
        save_slabs(found[name], [(coords, rng.standard_normal(800))], shape, slabs=5)
    return found


@pytest.fixture
def tensors(request, folders, client, monkeypatch):
    """A tensor here, with row-sharded factors, and on 1, 2 and 3 workers."""
    path, addresses = folders[getattr(request, "param", "any")], sorted(client.nthreads())
    there = [open_on_workers(path, client=client, workers=addresses[:n]) for n in (1, 2, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(CPU, "devices", OneDevice())
        return open_slabs(path), there


@pytest.mark.parametrize("tensors", SHAPES, indirect=True)
def test_vectors(tensors):
    check_vectors(*tensors)


@pytest.mark.parametrize("way", ["iterated", pytest.param("formed", marks=pytest.mark.slow)])
def test_each_way_to_the_eigenvectors(tensors, way, monkeypatch):
    monkeypatch.setattr(gram_module, "is_cheap_to_form", lambda *sizes: False)
    monkeypatch.setattr(UnfoldingGram, "is_cheap_to_form", lambda gram: way == "formed")
    monkeypatch.setattr(eigen, "_MOST", 3)
    check_vectors(*tensors)


def check_vectors(here, there):
    def decompose(x):
        found = []
        for mode in range(x.ndim):
            unfolding = Unfolding(x, mode)
            left, values = unfolding.svd(RANK)
            sketched = unfolding.randomized_svd(RANK, np.random.RandomState(0))
            positive = make_left_vectors_non_negative(unfolding, left.copy(), values)
            found += [left, values, *sketched, positive]
        return [array.tobytes() for array in found]

    expected = decompose(here)
    for x in there:
        assert decompose(x) == expected


@pytest.mark.parametrize("tensors", ["few"], indirect=True)
def test_what_a_failed_call_has_left_is_forgotten(tensors):
    here, there = tensors
    cluster = there[1]._cluster
    nonzeros = np.zeros((2, 5), np.int64), np.ones(5)
    for worker in cluster.workers:
        cluster.call(worker, cluster_layout.keep_nonzeros, [SITE, 99, nonzeros], num_results=0)
    expected, found = (Unfolding(x, 0).svd(RANK)[0] for x in (here, there[1]))
    np.testing.assert_array_equal(found, expected)


def test_the_interface_of_tensorly(tensors):
    here, there = tensors
    with tl.backend_context("flycoo"):
        expected, found = (
            svd_interface(tl.unfold(x, 0), "truncated_svd", RANK)[:2] for x in (here, there[1])
        )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(tl.to_numpy(a), tl.to_numpy(b))
