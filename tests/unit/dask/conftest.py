"""One cluster of three processes for all tests."""

import pytest

pytest.importorskip("distributed")


@pytest.fixture(scope="session")
def cluster():
    from distributed import LocalCluster

    options = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": "2GB"}
    with LocalCluster(n_workers=3, **options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def client(cluster):
    from distributed import Client

    with Client(cluster, direct_to_workers=True) as client:
        yield client


@pytest.fixture
def addresses(client):
    return sorted(client.nthreads())
