"""On a cluster
============

Factorise a year of flights on a Dask cluster: here one of two processes on this machine.

The table of flights (see the example of their patterns) is written as twelve .parquet files, one a
month. The workers read them, exchange the rows, and build their slabs of the tensor; factors are
spread over the workers too. TensorLy's parafac runs in this process, unchanged. With the address of
another scheduler the same lines run on its workers, if they see the folder.

Run it::

    python examples/cluster.py
    python examples/cluster.py --address tcp://10.0.0.1:8786 --folder /shared/flights
"""

import argparse
import tempfile
from pathlib import Path

import tensorly as tl
from distributed import Client, LocalCluster
from flights import build_table
from showing import format_largest, list_shares, list_totals

import tensorly_flycoo.dask
from tensorly_flycoo import Progress


def write_months(table, folder):
    """Write the flights of each month to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for month, rows in table.groupby(table["day"].dt.month):
        rows.to_parquet(folder / f"month-{month:02d}.parquet")


def connect(address):
    """Return a client of a scheduler, or of a new cluster on this machine."""
    if address is None:
        address = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    return Client(address, direct_to_workers=True)


def print_components(cp_tensor):
    """Print the share, the largest destinations and carriers of each component."""
    all_shares, totals = list_shares(cp_tensor), list_totals(cp_tensor)
    for r, share in enumerate(totals / totals.sum()):
        print(f"component {r}, {share:.1%} of the model:")
        for mode in ("carrier", "origin", "destination"):
            print(f"  {mode:12}{format_largest(all_shares[mode][r], 3)}")


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--address", help="of a scheduler; by default a cluster is started here")
    parser.add_argument("--folder", type=Path, help="for the files; all workers must see it")
    parser.add_argument("--rank", type=int, default=6, help="number of components")
    parser.add_argument("--iterations", type=int, default=50, help="most iterations of parafac")
    arguments = parser.parse_args(argv)

    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="flights-"))
    table = build_table()
    write_months(table, folder)
    tl.set_backend("flycoo")
    with connect(arguments.address) as client:
        x = tensorly_flycoo.dask.read_parquet(folder, list(table), client=client)
        print(f"{x}\nin {x.slabs} slabs on {len(x.workers)} workers", flush=True)
        with Progress(arguments.iterations, show="log", log_every=10) as progress:
            options = {"n_iter_max": arguments.iterations, "tol": 1e-5, "callback": progress}
            cp_tensor = tl.decomposition.parafac(x, arguments.rank, **options)
        if arguments.address is None:
            client.cluster.close()
    print_components(cp_tensor)
    return {"x": x, "cp_tensor": cp_tensor, "errors": progress.errors}


if __name__ == "__main__":
    main()
