"""The paper's experiments on its tensors: its kernel beside ours, part by part.

What a tensor's row has of ours is as in the other tables; "published" is of the paper's kernel.
"""

import functools
import itertools

import cupy
import numpy as np
import profiling
from balance import largest_share_of_tiles
from experiments import (
    LAYOUTS,
    Experiments,
    make_grouped_steps,
    make_sweep,
    paper_bytes_per_nonzero,
)
from report import RANK, describe_groups
from tensors import Problem, build, draw_factors, free_memory
from timing import time_call, time_once, time_steps, tuned

from .kernel import PaperTensor, make_steps
from .libraries import measure_libraries
from .partitioning import bound_optimum, deal_mode, partition_mode

#: The paper's tensors, drawn apart, and with real pairs where figures of these are known.
TENSORS = (
    "amazon", "delicious", "music", "nell-1", "nell-1, real pairs", "twitch", "vast",
    "vast, real pairs",
)  # fmt: skip

#: What is measured of each tensor: all but the sweeps and other libraries with fewer nonzeros.
PARTS = ("sweeps", "settings", "readings", "accuracy", "tiles", "libraries", "ncu")

#: What is measured with real pairs, too.
_OF_REAL_PAIRS = ("sweeps", "libraries", "ncu")

#: The paper's P with one partition for each multiprocessor, as it has, and with more of them.
NUM_COLUMNS = {1: (256, 128, 64, 32, 16, 8, 4, 2, 1), 2: (128, 64, 32), 4: (128, 64, 32)}

#: Tile sizes of ours.
TILE_SIZES = (128, 256, 512, 1024)

#: What the paper leaves open: how indices are assigned, and how a partition is ordered.
ASSIGNMENTS = {"least filled": partition_mode, "cyclic": deal_mode}
ORDERS = {"by index": True, "as they come": False}

#: The most nonzeros where there are fewer; modes are as much shorter. With P = 1 the paper's kernel
#: takes a microsecond or two for each nonzero of the fullest partition.
_MOST_NONZEROS = 5_000_000

#: Seconds to spend on a median, and of a sweep that is timed only once.
_SHORT_S, _LONG_S = 0.3, 0.1

#: Seconds that a library's program may take for a tensor.
_LIBRARY_S = 600


class PaperExperiments(Experiments):
    """The measurement of one tensor, as in `Experiments`."""

    def __init__(self, problem, options, deadline, save):
        super().__init__(problem, options, deadline, save)
        self.tables = {"remapping", "building", "bytes"}
        self.num_partitions = cupy.cuda.Device().attributes["MultiProcessorCount"]
        self.row["published"] = {"num_partitions": self.num_partitions}

    def run(self, part):
        """Measure a part, as far as time and memory allow."""
        if part in _OF_REAL_PAIRS or "real pairs" not in self.problem.name:
            self._attempt(part, getattr(self, f"_run_{part}"))

    def _run_sweeps(self):
        nonzeros = self.problem.draw(np.float32)
        self._attempt("published", self._run_published, nonzeros)
        self._attempt("default", self._run_default, nonzeros)
        for layout in LAYOUTS:
            self._attempt(layout, self._run_layout, nonzeros, layout)

    def _run_published(self, nonzeros):
        """Time the paper's kernel: building, computing alone, and with remapping."""
        shape, row = self.problem.shape, self.row["published"]
        nothing = cupy.zeros((len(shape), 1), np.int32), cupy.zeros(1, np.float32)
        PaperTensor(*nothing, (1,) * len(shape), 1)  # compiles
        make = functools.partial(PaperTensor, *nonzeros, shape, self.num_partitions)
        x, row["build_s"] = time_call(make)
        free_memory()
        row["formula"] = paper_bytes_per_nonzero(shape, self.problem.nnz)
        row["bytes_per_nonzero"] = x.nbytes / self.problem.nnz
        steps = list(itertools.chain(*make_steps(x, *draw_matrices(shape))))
        seconds = self._time(steps).reshape(-1, 3)
        for name, modes in zip(("compute_s", "zero_s", "remap_s"), seconds.T, strict=True):
            row[name] = modes.tolist()
        row["balance"] = [
            self._measure_balance(rows, size, starts)
            for rows, size, starts in zip(nonzeros[0], shape, x.starts, strict=True)
        ]

    def _time(self, steps):
        """Time steps of the paper's kernel: once if they take long."""
        time_once(steps)  # compiles
        seconds = time_once(steps)
        if seconds.sum() > _LONG_S:
            return seconds
        return time_steps(steps, self.options.repeats, _SHORT_S)

    def _measure_balance(self, rows, size, starts):
        """Divide the fullest partition of one mode, and a bound of it, by the mean."""
        row_nnz, count = cupy.bincount(rows, minlength=size), self.num_partitions
        mean = rows.size / count
        dealt = cupy.bincount(deal_mode(row_nnz, count, cupy), row_nnz, minlength=count)
        return {
            "least filled": float(cupy.diff(starts).max()) / mean,
            "cyclic": float(dealt.max()) / mean,
            "optimum, at least": bound_optimum(row_nnz, count, cupy) / mean,
        }

    def _run_default(self, nonzeros):
        """Time ours as users get it, with groups of modes."""
        x, _ = build(*nonzeros, self.problem.shape, None, "auto")
        free_memory()
        steps = make_grouped_steps(x, *draw_matrices(x.shape))
        tile_size, count = x._layout.tile_size, self.num_partitions
        self.row["default"] = {
            "layout": x.layout, "groups": describe_groups(x.groups),
            "sweep_s": float(time_steps(steps, self.options.repeats).sum()),
            "bytes_per_nonzero": x.nbytes / x.nnz, "tile_size": tile_size,
            "balance": largest_share_of_tiles(x.nnz, tile_size, count) / (x.nnz / count),
        }  # fmt: skip

    def _shrink(self):
        """Return the tensor with at most `_MOST_NONZEROS`."""
        problem = self.problem
        share = min(1.0, _MOST_NONZEROS / problem.nnz)
        problem = Problem(problem.name, problem.alpha, True, share * problem.scale)
        self.row["published"]["fewer_nnz"] = problem.nnz
        return problem

    def _run_settings(self):
        """Time the paper's P, and more partitions than multiprocessors."""
        problem, row = self._shrink(), self.row["published"]
        nonzeros, matrices = problem.draw(np.float32), draw_matrices(problem.shape)
        row["settings_s"] = {}
        for ratio, counts in NUM_COLUMNS.items():
            x = PaperTensor(*nonzeros, problem.shape, ratio * self.num_partitions)
            row["settings_s"][str(ratio)] = {
                str(count): float(self._time(list_steps(x, *matrices, count)).sum())
                for count in counts
            }
        x, _ = build(*nonzeros, problem.shape, "remap")
        steps = make_sweep(x, RANK)[-1]
        row["fewer_s"] = float(time_steps(steps, self.options.repeats, _SHORT_S).sum())

    def _run_readings(self):
        """Time the readings of the paper's text."""
        problem, times = self._shrink(), {}
        nonzeros, matrices = problem.draw(np.float32), draw_matrices(problem.shape)
        for assignment, order in itertools.product(ASSIGNMENTS, ORDERS):
            reading = ASSIGNMENTS[assignment], ORDERS[order]
            x = PaperTensor(*nonzeros, problem.shape, self.num_partitions, *reading)
            seconds = self._time(list_steps(x, *matrices))
            times[f"{assignment}, {order}"] = float(seconds.sum())
        self.row["published"]["readings_s"] = times

    def _run_accuracy(self):
        """Compare the paper's kernel, and ours, in float32 with ours in float64."""
        problem = self._shrink()
        coords, values = problem.draw(np.float32)
        factors, outputs = draw_matrices(problem.shape)
        for step in list_steps(
            PaperTensor(coords, values, problem.shape, self.num_partitions), factors, outputs
        ):
            step()
        ours, exact = (
            compute_sweep(coords, values.astype(dtype), problem.shape, factors)
            for dtype in (np.float32, np.float64)
        )
        for name, outs in (("error", outputs), ("our_error", ours)):
            pairs = zip(outs, exact, strict=True)
            self.row["published"][name] = max(compare(*pair) for pair in pairs)

    def _run_tiles(self):
        """Time ours by remap with tiles of other sizes."""
        problem, times = self._shrink(), {}
        nonzeros = problem.draw(np.float32)
        for size in TILE_SIZES:
            with tuned(MAX_TILE_SIZE=size):
                x, _ = build(*nonzeros, problem.shape, "remap")
                seconds = time_steps(make_sweep(x, RANK)[-1], self.options.repeats, _SHORT_S)
            times[str(x._layout.tile_size)] = float(seconds.sum())
        self.row["tiles_s"] = times

    def _run_libraries(self):
        """Time the programs of other libraries, if there are any, while the GPU is theirs alone."""
        if not self.options.library:
            return
        coords, values = self.problem.draw(np.float32)
        factors = draw_factors(self.problem.shape, RANK, np.float32)
        expected = compute_sweep(coords, values, self.problem.shape, factors)
        arrays = coords.get(), values.get(), *([a.get() for a in x] for x in (factors, expected))
        del coords, values, factors, expected
        free_memory()
        limit_s = min(_LIBRARY_S, self.deadline.remaining_s())
        rows = measure_libraries(self.options.library, *arrays, limit_s)
        self.row["libraries"] = rows
        self.row["failed"] += [row["name"] for row in rows if "failed" in row]

    def _run_ncu(self):
        problem = self._shrink()
        variants = profiling.list_variants(len(problem.shape))
        limit_s = min(100, self.deadline.remaining_s())
        launches = profiling.profile(problem, len(variants), limit_s)
        if launches is None:
            self._skip("ncu", "it gave no figures")
        else:
            profiling.print_launches(problem.name, launches, variants)
            self.row["ncu"] = [
                {"variant": variant, "mode": mode, **launch}
                for (variant, mode), launch in zip(variants, launches, strict=True)
            ]


def draw_matrices(shape):
    """Return factors, and arrays for the MTTKRPs."""
    outputs = [cupy.empty((size, RANK), np.float32) for size in shape]
    return draw_factors(shape, RANK, np.float32), outputs


def list_steps(x, factors, outputs, num_columns=32):
    """Return what computes a sweep of the paper's kernel."""
    return [step for mode in make_steps(x, factors, outputs, num_columns) for step in mode[1:]]


def compute_sweep(coords, values, shape, factors):
    """Compute all MTTKRPs by ours, in the type of the values."""
    x, _ = build(coords, values, shape, "indexed")
    _, outs, steps = make_sweep(x, RANK, [factor.astype(x.dtype) for factor in factors])
    for step in steps:
        step()
    return outs


def compare(found, expected):
    """Return the largest difference, relative to the largest expected value."""
    return float(abs(found - expected).max() / abs(expected).max())
