"""One cluster of three processes for all tests."""

import pytest


@pytest.fixture(scope="session")
def client():
    from distributed import Client
    from local_clusters import start_cluster

    options = {"direct_to_workers": True}
    with start_cluster(3, memory_limit="2GB") as address, Client(address, **options) as client:
        yield client


@pytest.fixture
def addresses(client):
    from local_clusters import wait_for_addresses

    return wait_for_addresses(client, 3)
