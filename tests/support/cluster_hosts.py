"""Run a cluster of four hosts and unplug one of them: ``python cluster_hosts.py`` (Linux, root).

The hosts are network namespaces of this machine with addresses of their own, made by iproute2 and
joined by a bridge: a scheduler with the client, and three workers. Prints what happens; the exit
status is 1 if bits differ, or a host that is unplugged is not named within `LIMIT` seconds.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster_kills import NUM_ITERATIONS, resume, run, save_folder
from distributed import Client

import tensorly_flycoo.dask
from tensorly_flycoo import Progress, open_slabs
from tensorly_flycoo.base.devices import OneDevice
from tensorly_flycoo.engines import select_engine

NUM_WORKERS, LIMIT = 3, 100.0
NETWORK, BRIDGE, HOST = "10.87.0", "flycoo0", "flycoo-{}"
SCHEDULER = f"tcp://{NETWORK}.1:8786"


def run_ip(command):
    subprocess.run(["ip", *command.split()], check=True)


def enter(number, *command):
    """Return a command line that runs on a host."""
    return ["ip", "netns", "exec", HOST.format(number), sys.executable, *command]


@contextlib.contextmanager
def start_hosts():
    """Make host 0, which has the bridge, and one for each worker."""
    try:
        for number in range(NUM_WORKERS + 1):
            run_ip(f"netns add {HOST.format(number)}")
            run_ip(f"-n {HOST.format(number)} link set lo up")
        first = HOST.format(0)
        run_ip(f"-n {first} link add {BRIDGE} type bridge")
        run_ip(f"-n {first} addr add {NETWORK}.1/24 dev {BRIDGE}")
        run_ip(f"-n {first} link set {BRIDGE} up")
        for number in range(1, NUM_WORKERS + 1):
            host = HOST.format(number)
            run_ip(f"-n {first} link add port{number} type veth peer name eth0 netns {host}")
            run_ip(f"-n {first} link set port{number} master {BRIDGE} up")
            run_ip(f"-n {host} addr add {NETWORK}.{number + 1}/24 dev eth0")
            run_ip(f"-n {host} link set eth0 up")
        yield
    finally:
        for number in range(NUM_WORKERS + 1):
            subprocess.run(["ip", "netns", "del", HOST.format(number)], check=False)


@contextlib.contextmanager
def start_dask():
    """Start the scheduler on host 0, and a worker on each of the others."""
    folder = tempfile.mkdtemp()
    commands = [enter(0, "-m", "dask", "scheduler", "--host", f"{NETWORK}.1", "--no-dashboard")]
    for number in range(1, NUM_WORKERS + 1):
        options = ["--host", f"{NETWORK}.{number + 1}", "--nthreads", "1", "--no-dashboard"]
        options += ["--local-directory", folder]
        commands.append(enter(number, "-m", "dask", "worker", SCHEDULER, *options))
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(Path(folder, "log"), "w"))
        for command in commands:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield


def unplug(times):
    run_ip(f"-n {HOST.format(0)} link set port{NUM_WORKERS} down")
    times.append(time.monotonic())


def compare(folder):
    """Decompose on the hosts, from host 0; return whether all went as it should."""
    save_folder(folder / "x.flycoo")
    engine = select_engine("cpu")
    engine.devices = OneDevice()  # shards the rows of factors, as a cluster does
    here = open_slabs(folder / "x.flycoo", device="cpu")
    engine.devices = None
    expected = run(here)
    with Client(SCHEDULER, direct_to_workers=True, timeout=60) as client:
        client.wait_for_workers(NUM_WORKERS, timeout=120)
        there = tensorly_flycoo.dask.open_slabs(folder / "x.flycoo", client=client)
        print("workers:", *there.workers, flush=True)
        is_right = run(there) == expected
        print("bits are those of one process:", is_right, flush=True)
        times = []
        checkpoint = folder / "run.npz"
        with Progress(NUM_ITERATIONS, show=None, checkpoint=checkpoint, every=1) as progress:

            def call(*arguments):
                progress(*arguments)
                if len(progress.errors) == NUM_ITERATIONS // 2:
                    unplug(times)

            try:
                run(there, callback=call)
                raise AssertionError("a host was unplugged, and nobody noticed")
            except tensorly_flycoo.dask.WorkerLost as error:
                seconds = time.monotonic() - times[0]
                is_named = f"{NETWORK}.{NUM_WORKERS + 1}" in str(error)
                print(f"after {seconds:.1f} s: {error}", flush=True)
        start = time.monotonic()
        there.recover()
        print(f"recovered in {time.monotonic() - start:.1f} s on", *there.workers, flush=True)
        _, resumed = resume(there, checkpoint)
        print("resumed to the same bits:", resumed == expected, flush=True)
    return is_right and is_named and seconds < LIMIT and resumed == expected


def main():
    if sys.argv[1:] == ["compare"]:
        sys.exit(not compare(Path(tempfile.mkdtemp())))
    with start_hosts(), start_dask():
        sys.exit(subprocess.run(enter(0, __file__, "compare"), check=False).returncode)


if __name__ == "__main__":
    main()
