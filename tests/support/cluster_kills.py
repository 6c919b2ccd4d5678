"""Kill a worker, and a client, at random moments: ``python cluster_kills.py [WORKERS [CLIENTS]]``.

Each of the first kills ends a worker, of three or as many as ``--workers`` says: every other one
while a tensor is opened or decomposed, the others in one of the iterations, which take less time.
Each of the second ends a client process. Prints one line for each; the exit status is 1 if an error
came late, bits differ, or something was not freed.
"""

import argparse
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import tensorly as tl
from distributed import Client
from local_clusters import start_cluster

from tensorly_flycoo import Progress, save_slabs
from tensorly_flycoo.dask import WorkerLost, open_slabs
from tensorly_flycoo.testing import planted_tensor

RANK, NUM_ITERATIONS, LIMIT = 8, 25, 10.0

RUN = """
import sys, tensorly as tl
import tensorly_flycoo.dask
from distributed import Client
tl.set_backend("flycoo")
client = Client(sys.argv[1], direct_to_workers=True)
x = tensorly_flycoo.dask.open_slabs(sys.argv[2], client=client)
print("opened", flush=True)
tl.decomposition.parafac(x, 8, n_iter_max=100000, tol=0, random_state=0)
"""


def run(x, init="svd", callback=None, done=0):
    options = {"n_iter_max": NUM_ITERATIONS - done, "tol": 0, "random_state": 0, "init": init}
    with tl.backend_context("flycoo"):
        found = tl.decomposition.parafac(x, RANK, **options, callback=callback)
        return [tl.to_numpy(factor).tobytes() for factor in found.factors]


def resume(x, checkpoint):
    """Go on from a checkpoint, if there is one; return its iteration, and the factors."""
    with Progress(NUM_ITERATIONS, show=None, checkpoint=checkpoint) as progress:
        init = progress.resume()
        done = getattr(init, "iteration", 0)
        return done, run(x, init, progress, done)


def save_folder(path):
    """Save the tensor that all this is about."""
    x = planted_tensor((3000, 2000, 4000), RANK, 20_000, noise=0.1, random_state=0)[0]
    save_slabs(path, x, slabs=6)


def count_machines():
    return sum(thread.name == "tensorly_flycoo" for thread in threading.enumerate())


def wait_for_pids(client, count):
    """Wait until there are `count` workers; return their processes by address."""
    deadline = time.monotonic() + 120
    while True:
        try:
            pids = client.run(os.getpid)
            if len(pids) == count:
                return pids
        except OSError:  # of a worker that was just killed
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"Dask has not started a worker again: {client.nthreads()}")
        time.sleep(0.2)


def wait_for_nothing(client):
    """Return the seconds until no worker has an actor."""
    start = time.monotonic()
    while time.monotonic() < start + 3 * LIMIT:
        gc.collect()
        if not any(client.run(count_machines, on_error="ignore").values()):
            break
        time.sleep(0.1)
    return time.monotonic() - start


class Killer:
    """Kills a worker some seconds after so many callbacks, and knows when."""

    def __init__(self, pid, num_callbacks, longest):
        self.time, self._num_callbacks = None, num_callbacks
        self._timer = threading.Timer(random.uniform(0, longest), self._kill, (pid,))
        self.look(0)

    def look(self, num_called):
        if num_called == self._num_callbacks:
            self._timer.start()

    def _kill(self, pid):
        self.time = time.monotonic()
        os.kill(pid, signal.SIGKILL)

    def wait(self):
        self._timer.join()


def kill_worker(client, count, path, checkpoint, expected, *moment):
    """Return what happened, and whether it is right; the moment is as `Killer` takes it."""
    checkpoint.unlink(missing_ok=True)
    pids = wait_for_pids(client, count)
    addresses = sorted(pids)
    victim, x = random.choice(addresses), None
    killer = Killer(pids[victim], *moment)
    try:
        x = open_slabs(path, client=client, workers=addresses)
        with Progress(NUM_ITERATIONS, show=None, checkpoint=checkpoint, every=1) as progress:

            def call(*arguments):
                progress(*arguments)
                killer.look(len(progress.errors))

            found = run(x, callback=call)
        killer.wait()
        return "killed after the end", found == expected
    except WorkerLost as error:
        seconds, is_named = time.monotonic() - killer.time, victim in str(error)
    except OSError as error:  # Dask's, while actors were started
        seconds, is_named = time.monotonic() - killer.time, False
        print(type(error), error)
    for _ in range(3):
        try:
            if x is None:
                x = open_slabs(path, client=client)
            else:
                x.recover()
            break
        except WorkerLost:
            time.sleep(1)
    done, found = resume(x, checkpoint)
    is_right = seconds < LIMIT and is_named and found == expected
    return f"WorkerLost after {seconds:.2f} s, resumed at iteration {done}", is_right


def kill_client(client, path, longest):
    """Return what happened, and whether it is right."""
    arguments = [sys.executable, "-c", RUN, client.scheduler.address, path]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    process.stdout.readline()
    time.sleep(random.uniform(0, longest))
    process.kill()
    process.wait()
    seconds = wait_for_nothing(client)
    return f"all was freed after {seconds:.1f} s", seconds < LIMIT


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worker_kills", nargs="?", type=int, default=30)
    parser.add_argument("client_kills", nargs="?", type=int, default=10)
    parser.add_argument("--workers", type=int, default=3)
    options = parser.parse_args()
    path = Path(tempfile.mkdtemp())
    save_folder(path / "x.flycoo")
    failures = 0
    connection = {"direct_to_workers": True}
    with start_cluster(options.workers) as address, Client(address, **connection) as client:
        expected = run(open_slabs(path / "x.flycoo", client=client))
        start = time.monotonic()
        run(open_slabs(path / "x.flycoo", client=client))
        longest = time.monotonic() - start
        print(f"a run takes {longest:.1f} s", flush=True)
        for number in range(options.worker_kills):
            moment = (random.randint(1, NUM_ITERATIONS), 0.05) if number % 2 else (0, longest)
            arguments = (path / "x.flycoo", path / "run.npz", expected, *moment)
            text, is_right = kill_worker(client, options.workers, *arguments)
            print(f"worker {number}: {text}{'' if is_right else ': WRONG'}", flush=True)
            failures += not is_right
        wait_for_nothing(client)
        for number in range(options.client_kills):
            text, is_right = kill_client(client, str(path / "x.flycoo"), 3.0)
            print(f"client {number}: {text}{'' if is_right else ': WRONG'}", flush=True)
            failures += not is_right
    total = options.worker_kills + options.client_kills
    print(f"{total - failures} of {total} right", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
