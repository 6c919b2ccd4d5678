"""Links between GPUs of several processes, with a simulated NCCL."""

import threading
import time

import numpy as np
import pytest
from simulated_nccl import Array, load_processes

from tensorly_flycoo.base.devices import LinkBroken

COUNT = 3


@pytest.fixture
def loaded(monkeypatch):
    module, nccl = load_processes(monkeypatch)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.02)
    return module, nccl


@pytest.fixture
def links(loaded):
    module, _ = loaded
    name = module.NcclLink.make_name()
    links = [module.NcclLink(number, COUNT, name, lambda: True) for number in range(COUNT)]
    for link in links:
        assert link.wait(10)
    yield links
    for link in links:
        link.close()


def wait_for(is_so):
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_gpus_have_names(loaded):
    assert loaded[0].list_gpus() == ["00ff", "01ff"]
    assert loaded[0].has_nccl()


def test_a_link_waits_for_all(loaded):
    module, _ = loaded
    name = module.NcclLink.make_name()
    first = module.NcclLink(0, 2, name, lambda: True)
    assert not first.wait(0.1)
    second = module.NcclLink(1, 2, name, lambda: True)
    assert first.wait(10)
    assert second.wait(10)
    first.close()
    second.close()


def test_an_exchange(links):
    """Each sends two arrays to each other one; they arrive in their order."""
    rng = np.random.default_rng(0)
    sent = rng.random((COUNT, COUNT, 2, 5))
    received = np.zeros_like(sent)

    def exchange(number):
        peers = [peer for peer in range(COUNT) if peer != number for _ in range(2)]
        places = [(peer, n % 2) for n, peer in enumerate(peers)]
        links[number].exchange(
            [(Array(sent[number, peer, n]), peer) for peer, n in places],
            [(Array(received[peer, number, n]), peer) for peer, n in places],
        )

    threads = [threading.Thread(target=exchange, args=(number,)) for number in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    others = ~np.eye(COUNT, dtype=bool)
    np.testing.assert_array_equal(received[others], sent[others])


def test_a_link_that_is_closed_lets_an_exchange_end(links, loaded):
    target = Array(np.zeros(5))
    thread = threading.Thread(target=links[0].exchange, args=([], [(target, 1)]))
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive()
    loaded[0]._LAUNCH_SECONDS = 0.1
    links[0].close()
    thread.join(10)
    assert not thread.is_alive()
    links[0].exchange([], [(target, 1)])  # does nothing


def test_a_link_that_is_not_needed_closes_itself(loaded):
    module, nccl = loaded
    is_needed = True
    link = module.NcclLink(0, 1, module.NcclLink.make_name(), lambda: is_needed)
    assert link.wait(10)
    is_needed = False
    wait_for(lambda: nccl.num_aborted == 1)


@pytest.mark.parametrize("moment", ["start", "later"])
def test_errors_of_nccl(loaded, moment):
    module, nccl = loaded
    nccl.failing = {moment}
    link = module.NcclLink(0, 1, module.NcclLink.make_name(), lambda: True)

    def check():
        link.wait(10)
        wait_for(lambda: nccl.num_aborted == 1)
        link.check()

    with pytest.raises(LinkBroken, match=r"NCCL cannot connect .* NCCL_ERROR.* NCCL_DEBUG=INFO"):
        check()
