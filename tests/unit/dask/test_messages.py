"""Functions and arguments that workers cannot be sent, or cannot unpickle."""

import logging
import sys
import threading

import numpy as np
import pytest

from tensorly_flycoo import save_slabs
from tensorly_flycoo.dask import open_slabs
from tensorly_flycoo.dask.messages import SITE, Call, Ref
from tensorly_flycoo.testing import planted_tensor


@pytest.fixture(scope="module")
def x(tmp_path_factory, client):
    path = tmp_path_factory.mktemp("folders") / "x.flycoo"
    save_slabs(path, planted_tensor((9, 8, 7), 2, 40, random_state=0)[0], slabs=2)
    return open_slabs(path, client=client)


def test_sealed_calls_are_the_same():
    array, shift = np.arange(3.0), 4
    call = Call.of(lambda x: x + shift, [array, [Ref(5), SITE]], {"out": Ref(3)}, (7,))
    assert len(call.arrays) == 1  # not copied into the pickle
    assert call.keys == (7,)
    function, args, kwargs = call.open()
    np.testing.assert_array_equal(function(args[0]), array + 4)
    assert args[1] == [Ref(5), SITE]
    assert kwargs == {"out": Ref(3)}


def test_what_cannot_be_sent_is_refused_at_once(x):
    lock = threading.Lock()

    def apply(values):
        with lock:
            return values * 2

    cluster, worker = x._cluster, x._cluster.workers[0]
    before = cluster.run(worker, int, "5")
    with pytest.raises(TypeError, match=r"cannot be sent to workers: .*lock"):
        x.map(apply)
    with pytest.raises(TypeError, match=r"<built-in method acquire .* cannot be sent to workers"):
        cluster.call(worker, lock.acquire)
    with pytest.raises(TypeError, match=r"<unlocked _thread.lock .* cannot be sent to workers"):
        cluster.call(worker, str, [[1, lock]])
    assert cluster.fetch(before) == [5]  # no other command was dropped
    assert (2 * x).norm() == 2 * x.norm()


def test_what_cannot_be_pickled_is_one_error_without_a_log(caplog, capfd):
    lock = threading.Lock()
    logger = logging.getLogger("distributed")
    logger.addHandler(caplog.handler)  # Dask's do not propagate
    try:
        with pytest.raises(TypeError, match=r"<lambda> .* cannot be sent to workers: .*lock"):
            Call.of(np.add, [lambda: lock], {}, (1,))
    finally:
        logger.removeHandler(caplog.handler)
    assert (caplog.text, *capfd.readouterr()) == ("", "", "")


def test_functions_of_a_script_are_sent_by_value(monkeypatch):
    function = eval("lambda x: x + 1", {"__name__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "function", function, raising=False)
    function.__qualname__ = "function"
    call = Call.of(function, [np.arange(3)], {}, (1,))
    monkeypatch.delattr(sys.modules["__main__"], "function")  # as on a worker
    opened, args, _ = call.open()
    np.testing.assert_array_equal(opened(*args), [1, 2, 3])


def test_a_function_of_a_module_that_workers_lack(x, tmp_path, monkeypatch):
    path = tmp_path / "module_of_the_client.py"
    path.write_text("def double(values):\n    return values * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    from module_of_the_client import double

    with pytest.raises(ModuleNotFoundError, match="module_of_the_client") as caught:
        x.map(double)
    assert "on worker tcp://" in caught.value.__notes__[0]
    assert x.map(lambda values: values * 2).norm() == 2 * x.norm()
