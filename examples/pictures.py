"""Pictures for judging a model
============================

Draw pictures for judging a decomposition of a sparse tensor: the flights of flights.py.

- ranks.png: scores of models with several numbers of components, one of which is suggested;
- starts.png: errors of several starts with that number, drawn by tensorly-viz;
- components.png: the components of the best start;
- rows.png: the nonzeros in the rows of each mode, and how evenly the paper's partitions and our
  tiles spread the load.

This example needs more packages than the others: pip install -e ".[examples,pictures]".

Run it::

    python examples/pictures.py
    python examples/pictures.py --ranks 1 2 3 4 6 8 --starts 5 --output folder
"""

import argparse
from pathlib import Path

import numpy as np
import tensorly as tl
from benchmark_gpu.balance import largest_partition, largest_share_of_tiles
from flights import build_tensor
from matplotlib.figure import Figure
from showing import save, save_components

from tensorly_flycoo.models import best_of, select_rank

try:
    from tlviz.visualisation import optimisation_diagnostic_plots
except ImportError as error:
    need = 'pictures.py needs tensorly-viz: pip install -e ".[examples,pictures]"'
    raise SystemExit(f"{need} ({error})") from None

#: Multiprocessors of a large GPU, and nonzeros of a tile on it.
NUM_WORKERS, TILE_SIZE = 132, 2048

RANKS_NOTE = """The suggested rank is the lowest with a held-out loss within one
standard error of the least, and with runs that agree.
Core consistency near 100 %: components do not interact.
Match near 1: all starts find the same components."""


def draw_ranks(selection, path):
    """Draw the scores of all ranks, the suggested one dashed, and explain them."""
    figure = selection.plot()[0].figure
    figure.supxlabel(RANKS_NOTE, size=10)
    save(figure, path)


def draw_starts(starts, iterations, path):
    """Draw the last error of each start, and the errors of its iterations."""
    figure, (left, right) = optimisation_diagnostic_plots(starts.errors, iterations)
    left.set(xlabel="start", xticks=range(len(starts.runs)), ylabel="last relative error")
    right.set(xlabel="iteration", ylabel="relative error", yscale="linear")
    figure.set_size_inches(11, 4.5)
    figure.subplots_adjust(top=0.88, bottom=0.3, wspace=0.3)
    rank, match = starts.best.rank, f"mean match with the best one {starts.match:.2f}"
    figure.suptitle(f"{len(starts.runs)} starts with {rank} components, {match}", size=14)
    save(figure, path)


def draw_rows(x, path):
    """Draw the nonzeros per row of each mode, and the load of the busiest worker."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    loads = {}
    for mode, rows, size in zip(x.labels, x.nonzeros()[0], x.shape, strict=True):
        sizes = np.sort(np.bincount(rows, minlength=size))[::-1]
        left.plot(np.arange(1, size + 1), sizes, ".-", label=f"{mode} ({size})")
        busiest = largest_partition(*np.unique(sizes, return_counts=True), NUM_WORKERS)
        loads[mode] = busiest * NUM_WORKERS / x.nnz
    left.set(xscale="log", yscale="log", xlabel="row, fullest first", ylabel="nonzeros")
    left.set_title("nonzeros per row of each mode")
    left.legend()
    tiles = largest_share_of_tiles(x.nnz, TILE_SIZE, NUM_WORKERS) * NUM_WORKERS / x.nnz
    bars = right.bar(list(loads), list(loads.values()), label="rows in partitions (Algorithm 1)")
    right.bar_label(bars, fmt="{:.1f}", padding=6)
    right.axhline(tiles, color="C1", label=f"tiles of {TILE_SIZE} nonzeros: {tiles:.2f}")
    right.axhline(1, color="gray", linewidth=0.8)
    right.set(ylabel=f"load of the busiest of {NUM_WORKERS} workers\n(1 is even)")
    right.set_title("load balance")
    right.margins(y=0.1)
    right.legend()
    save(figure, path)
    return loads, tiles


def main(argv=None):
    """Draw all pictures and return the data in them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--starts", type=int, default=4, help="starts of each rank")
    parser.add_argument("--iterations", type=int, default=50, help="most iterations of parafac")
    parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures")
    arguments = parser.parse_args(argv)
    arguments.output.mkdir(parents=True, exist_ok=True)

    tl.set_backend("flycoo")
    x = build_tensor(device="cpu")
    options = {"random_state": 0, "n_iter_max": arguments.iterations, "tol": 1e-5}
    selection = select_rank(x, arguments.ranks, arguments.starts, **options)
    print(selection)
    starts = best_of(tl.decomposition.parafac, x, selection.rank, arguments.starts, **options)
    draw_ranks(selection, arguments.output / "ranks.png")
    draw_starts(starts, arguments.iterations, arguments.output / "starts.png")
    title = f"The flights in {selection.rank} components"
    save_components(starts.best, arguments.output / "components.png", title, top=5)
    loads, tiles = draw_rows(x, arguments.output / "rows.png")
    return {"selection": selection, "starts": starts, "loads": loads, "tiles": tiles}


if __name__ == "__main__":
    main()
