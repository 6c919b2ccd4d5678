"""Draw pictures for judging a decomposition of a sparse tensor: the flights of flights.py.

tensorly-viz draws the components, the errors of several starts, and fit and core consistency for
several numbers of components. Matplotlib draws the rest: the nonzeros in the rows of each mode, and
how evenly the paper's partitions and our tiles spread the load. This example needs more packages
than the others: pip install ".[examples,pictures]".

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
from tensorly.cp_tensor import cp_normalize
from tensorly.decomposition import parafac
from tlviz.visualisation import components_plot, optimisation_diagnostic_plots, scree_plot

from tensorly_flycoo import FlycooTensor, Progress

MODES = ("carrier", "origin", "destination", "day", "hour")
#: Multiprocessors of a large GPU, and nonzeros of a tile on it.
NUM_WORKERS, TILE_SIZE = 132, 2048


def decompose(x, rank, seed, iterations):
    """Run parafac; return the CP tensor, and the errors of the start and of each iteration."""
    with Progress(iterations, show=None) as progress:
        options = {"init": "random", "random_state": seed, "tol": 1e-5, "callback": progress}
        cp_tensor = parafac(x, rank, n_iter_max=iterations, **options)
    return cp_normalize(cp_tensor), progress.errors


def core_consistency(x, cp_tensor):
    """Compute the core consistency in percent; tensorly-viz's own needs the dense tensor.

    The least-squares core for the factors is the tensor times their pseudo-inverses. With the right
    number of components it is close to superdiagonal.
    """
    weights, factors = cp_tensor
    factors = [factors[0] * weights, *factors[1:]]
    core = tl.tenalg.multi_mode_dot(x, [np.linalg.pinv(factor) for factor in factors])
    ideal = np.zeros(core.shape)
    np.einsum("r" * core.ndim + "->r", ideal)[...] = 1  # a view of the superdiagonal
    return 100 * (1 - np.sum((core - ideal) ** 2) / len(weights))


def draw_components(cp_tensor, path):
    """Draw each mode's factor, one line per component."""
    styles = [{"marker": "."} if len(factor) < 30 else {"linewidth": 0.8}
              for factor in cp_tensor.factors]  # fmt: skip
    figure, panels = components_plot(cp_tensor, plot_kwargs=styles)
    figure.set_size_inches(18, 4)
    for axes, mode in zip(panels, MODES, strict=True):
        axes.set_xlabel(mode)
        if mode != MODES[-1]:
            axes.get_legend().remove()
    panels[-1].legend([f"{r + 1}" for r in range(cp_tensor.rank)], loc="upper left",
                      bbox_to_anchor=(1, 1), title="component")  # fmt: skip
    save(figure, path)


def draw_starts(error_logs, iterations, path):
    """Draw the error of each iteration for several starts."""
    logs = [errors[1:] for errors in error_logs]  # without the error of the start itself
    figure, _ = optimisation_diagnostic_plots(logs, iterations)
    figure.set_size_inches(12, 5)
    figure.subplots_adjust(bottom=0.3, wspace=0.35)
    save(figure, path)


def draw_ranks(x, cp_tensors, fits, path):
    """Draw fit and core consistency for each number of components."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    consistencies = {rank: core_consistency(x, cp_tensor) for rank, cp_tensor in cp_tensors.items()}
    for axes, name, values in zip(
        figure.subplots(1, 2), ("Fit", "Core consistency"), (fits, consistencies), strict=True
    ):
        scree_plot(cp_tensors, None, errors=values, metric=name, ax=axes)
        axes.set(xlabel="number of components", xticks=list(cp_tensors))
    axes.set_yscale("symlog", linthresh=100)  # far below 0 for too many components
    axes.set_ylim(2 * min(-50, *consistencies.values()), 150)
    save(figure, path)
    return consistencies


def draw_rows(x, path):
    """Draw the nonzeros per row of each mode, and the load of the busiest worker."""
    coords, _ = x.nonzeros()
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    loads = {}
    for mode, rows in enumerate(coords):
        sizes = np.sort(np.bincount(rows, minlength=x.shape[mode]))[::-1]
        left.plot(np.arange(1, len(sizes) + 1), sizes, ".-", label=f"{MODES[mode]} ({len(sizes)})")
        busiest = largest_partition(*np.unique(sizes, return_counts=True), NUM_WORKERS)
        loads[MODES[mode]] = busiest * NUM_WORKERS / x.nnz
    left.set(xscale="log", yscale="log", xlabel="row, fullest first", ylabel="nonzeros")
    left.set_title("nonzeros per row of each mode")
    right.set_title("load balance")
    left.legend()
    tiles = largest_share_of_tiles(x.nnz, TILE_SIZE, NUM_WORKERS) * NUM_WORKERS / x.nnz
    bars = right.bar(list(loads), list(loads.values()), label="rows in partitions (Algorithm 1)")
    right.bar_label(bars, fmt="{:.1f}")
    right.axhline(tiles, color="C1", label=f"tiles of {TILE_SIZE} nonzeros: {tiles:.2f}")
    right.axhline(1, color="gray", linewidth=0.8)
    right.set(ylabel=f"load of the busiest of {NUM_WORKERS}\n(1 is even)")
    right.legend()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
    return loads, tiles


def save(figure, path):
    """Write a figure and print its path."""
    figure.savefig(path, dpi=90)
    print(f"Wrote {path}")


def main(argv=None):
    """Draw all pictures and return the data in them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--starts", type=int, default=4, help="starts of the largest rank")
    parser.add_argument("--iterations", type=int, default=50, help="most iterations of parafac")
    parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures")
    arguments = parser.parse_args(argv)
    arguments.output.mkdir(parents=True, exist_ok=True)

    tl.set_backend("flycoo")
    x = FlycooTensor.from_coo(build_tensor()[0], device="cpu")
    runs = {rank: decompose(x, rank, 0, arguments.iterations) for rank in arguments.ranks}
    cp_tensors = {rank: cp_tensor for rank, (cp_tensor, _) in runs.items()}
    fits = {rank: 1 - errors[-1] for rank, (_, errors) in runs.items()}
    largest = max(arguments.ranks)
    logs = [decompose(x, largest, seed, arguments.iterations)[1]
            for seed in range(arguments.starts)]  # fmt: skip

    draw_components(cp_tensors[largest], arguments.output / "components.png")
    draw_starts(logs, arguments.iterations, arguments.output / "starts.png")
    consistencies = draw_ranks(x, cp_tensors, fits, arguments.output / "ranks.png")
    loads, tiles = draw_rows(x, arguments.output / "rows.png")

    assert all(np.isfinite(fit) for fit in fits.values())
    if 1 in consistencies:
        assert abs(consistencies[1] - 100) < 1  # one component is always consistent
    assert all(load >= 0.99 for load in loads.values())
    return {"x": x, "cp_tensors": cp_tensors, "consistencies": consistencies, "loads": loads,
            "tiles": tiles}  # fmt: skip


if __name__ == "__main__":
    main()
