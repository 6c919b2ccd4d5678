"""The paper's experiments on its tensors: its kernel beside ours, part by part.

What a tensor's row has of ours is as in the other tables; "published" is of the paper's kernel.
"""

import functools
import itertools

import cupy
import numpy as np
import profiling
from balance import largest_share_of_tiles
from experiments import LAYOUTS, Experiments, make_grouped_steps
from report import RANK, describe_groups
from tensors import Problem, build, draw_factors, free_memory
from timing import time_call, time_once, time_steps

from .kernel import PaperTensor, make_steps
from .partitioning import bound_optimum, deal_mode, partition_mode

#: The paper's tensors, drawn apart, and with real pairs where figures of these are known.
TENSORS = (
    "amazon", "delicious", "music", "nell-1", "nell-1, real pairs", "twitch", "vast",
    "vast, real pairs",
)  # fmt: skip

#: What is measured of each tensor.
PARTS = ("sweeps", "readings", "columns", "tiles", "ncu")

#: The paper's P, and tile sizes of ours.
NUM_COLUMNS = (64, 32, 16, 8, 4, 2, 1)
TILE_SIZES = (128, 256, 512, 1024)

#: Partitions for each multiprocessor: the paper has one.
PARTITIONS_PER_MULTIPROCESSOR = (1, 2, 4)

#: What the paper leaves open: how indices are assigned, and how a partition is ordered.
ASSIGNMENTS = {"least filled": partition_mode, "cyclic": deal_mode}
ORDERS = {"by index": True, "as they come": False}

#: The most nonzeros in all parts but the sweeps; modes keep their sizes. With P = 1 a sweep takes
#: a microsecond for each nonzero, mode and multiprocessor.
_MOST_NONZEROS = 20_000_000

#: Seconds to spend on a median that is one of many figures.
_SHORT_S = 0.3


class PaperExperiments(Experiments):
    """The measurement of one tensor, as in `Experiments`."""

    def __init__(self, name, options, deadline, save):
        super().__init__(
            Problem(name, options.alphas[0], True, options.scale), options, deadline, save
        )
        self.tables = {"remapping", "building", "bytes"}
        self.num_partitions = cupy.cuda.Device().attributes["MultiProcessorCount"]
        self.row["published"] = {"num_partitions": self.num_partitions}

    def run(self, part):
        """Measure a part, as far as time and memory allow."""
        self._attempt(part, getattr(self, f"_run_{part}"))

    def _run_sweeps(self):
        nonzeros, shape = self.problem.draw(np.float32), self.problem.shape
        outputs = [cupy.zeros((size, RANK), np.float32) for size in shape]
        self._attempt("published", self._run_published, nonzeros, outputs)
        self._attempt("default", self._run_default, nonzeros, outputs)
        del outputs
        for layout in LAYOUTS:
            self._attempt(layout, self._run_layout, nonzeros, layout)

    def _run_published(self, nonzeros, outputs):
        """Time the paper's kernel: building, computing alone, and with remapping."""
        shape, row = self.problem.shape, self.row["published"]
        nothing = cupy.zeros((len(shape), 1), np.int32), cupy.zeros(1, np.float32)
        PaperTensor(*nothing, (1,) * len(shape), 1)  # compiles
        make = functools.partial(PaperTensor, *nonzeros, shape, self.num_partitions)
        x, row["build_s"] = time_call(make)
        free_memory()
        row["bytes_per_nonzero"] = x.nbytes / self.problem.nnz
        factors = draw_factors(shape, RANK, np.float32)
        steps = itertools.chain(*make_steps(x, factors, outputs))
        seconds = time_steps(list(steps), self.options.repeats).reshape(-1, 3)
        for name, modes in zip(("compute_s", "zero_s", "remap_s"), seconds.T, strict=True):
            row[name] = modes.tolist()
        row["balance"] = [
            self._measure_balance(rows, size, starts)
            for rows, size, starts in zip(nonzeros[0], shape, x.starts, strict=True)
        ]

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

    def _run_default(self, nonzeros, outputs):
        """Time ours as users get it, with groups of modes, and compare the results."""
        x, _ = build(*nonzeros, self.problem.shape, None, "auto")
        free_memory()
        factors = draw_factors(x.shape, RANK, x.dtype)
        outs = [cupy.empty_like(output) for output in outputs]
        steps = make_grouped_steps(x, factors, outs)
        tile_size, count = x._layout.tile_size, self.num_partitions
        self.row["default"] = {
            "layout": x.layout, "groups": describe_groups(x.groups),
            "sweep_s": float(time_steps(steps, self.options.repeats).sum()),
            "bytes_per_nonzero": x.nbytes / x.nnz, "tile_size": tile_size,
            "balance": largest_share_of_tiles(x.nnz, tile_size, count) / (x.nnz / count),
        }  # fmt: skip
        if "remap_s" in self.row["published"]:
            pairs = zip(outs, outputs, strict=True)
            self.row["published"]["difference"] = max(compare(*pair) for pair in pairs)

    def _draw_some(self):
        """Draw the tensor with at most `_MOST_NONZEROS`."""
        problem = self.problem
        share = min(1.0, _MOST_NONZEROS / problem.nnz)
        some = Problem(problem.name, problem.alpha, True, problem.scale, share)
        self.row["published"]["fewer_nnz"] = some.nnz
        return some.draw(np.float32)

    def _make_some_steps(self, nonzeros, num_partitions, *reading):
        """Return a function of P that returns what computes a sweep of the paper's kernel."""
        shape = self.problem.shape
        x = PaperTensor(*nonzeros, shape, num_partitions, *reading)
        free_memory()
        factors = draw_factors(shape, RANK, np.float32)
        outputs = [cupy.empty((size, RANK), np.float32) for size in shape]

        def make(num_columns=32):
            return [
                step for mode in make_steps(x, factors, outputs, num_columns) for step in mode[1:]
            ]

        return make

    def _run_readings(self):
        """Time the readings of the paper's text."""
        nonzeros, times = self._draw_some(), {}
        for (name, assign), (order, by_row) in itertools.product(
            ASSIGNMENTS.items(), ORDERS.items()
        ):
            make = self._make_some_steps(nonzeros, self.num_partitions, assign, by_row)
            times[f"{name}, {order}"] = float(time_steps(make(), 3, _SHORT_S).sum())
        self.row["published"]["readings_s"] = times

    def _run_columns(self):
        """Time the paper's P, and more partitions than multiprocessors."""
        nonzeros, row = self._draw_some(), self.row["published"]
        row["partitions_s"] = {}
        for ratio in PARTITIONS_PER_MULTIPROCESSOR:
            make = self._make_some_steps(nonzeros, ratio * self.num_partitions)
            if ratio == 1:
                time_once(make())  # compiles
                times = {count: float(time_once(make(count)).sum()) for count in NUM_COLUMNS}
                row["columns_s"] = {str(count): seconds for count, seconds in times.items()}
            row["partitions_s"][str(ratio)] = float(time_steps(make(), 3, _SHORT_S).sum())

    def _run_tiles(self):
        nonzeros = self._draw_some()
        for size in TILE_SIZES:
            setting = {"MAX_TILE_SIZE": size}
            self._attempt(f"tiles of {size}", self._run_tile_setting, nonzeros, setting)

    def _run_ncu(self):
        problem = self.problem
        variants = profiling.list_variants(len(problem.shape))
        launches = profiling.profile(problem, len(variants), self.deadline.remaining_s())
        if launches is None:
            self._skip("ncu", "it gave no figures")
        else:
            profiling.print_launches(problem.name, launches, variants)
            self.row["ncu"] = [
                {"variant": variant, "mode": mode, **launch}
                for (variant, mode), launch in zip(variants, launches, strict=True)
            ]


def compare(found, expected):
    """Return the largest difference, relative to the largest expected value."""
    return float(abs(found - expected).max() / abs(expected).max())
