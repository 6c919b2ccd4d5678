"""What a worker does when another one, or it itself, closes."""

import asyncio
import pickle
from types import SimpleNamespace

import pytest
from distributed.core import Status

from tensorly_flycoo.dask import WorkerLost, actor


@pytest.mark.parametrize(
    ("status", "num_warnings"), [(Status.running, 1), (Status.closing_gracefully, 0)]
)
@pytest.mark.parametrize("error", [RuntimeError("ConnectionPool is closed"), OSError("closed")])
def test_a_parcel_that_does_not_arrive(status, num_warnings, error, caplog):
    """A worker that closes, as after `scale`, has no connections any more: no reason to warn."""

    async def fail(**_):
        raise error

    worker = SimpleNamespace(status=status, rpc=lambda address: SimpleNamespace(actor_execute=fail))
    asyncio.run(actor._deliver(worker, "tcp://1", "key", 0, {}))
    assert len(caplog.messages) == num_warnings


@pytest.mark.parametrize("was_loading", [False, True])
def test_what_a_lost_worker_advises(was_loading):
    lost = pickle.loads(pickle.dumps(WorkerLost(["tcp://1", "tcp://2"], was_loading)))
    assert lost.addresses == ("tcp://1", "tcp://2")
    assert str(lost).startswith("lost tcp://1, tcp://2")
    assert ("x.recover()" in str(lost)) is not was_loading
    assert ("load it again" in str(lost)) is was_loading
