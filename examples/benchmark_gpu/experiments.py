"""The measurements of one tensor: one function per table fills in the tensor's row.

A row is a dictionary of plain numbers; names that end in ``_s`` are seconds.
"""

import functools
import math
import sys
import traceback

import cupy
import numpy as np
from als import time_als
from balance import largest_partition, largest_share_of_tiles
from gather_only import time_gather_only
from report import RANK, describe_groups
from stages import add_time_to_fit
from tensors import build, draw_factors, free_memory
from timing import time_call, time_steps, tuned
from whole import WAYS, measure_calls, prepare_call

from tensorly_flycoo.engines.cuda import engine as cuda
from tensorly_flycoo.engines.cuda import tuning
from tensorly_flycoo.format.primitives import MTTKRP
from tensorly_flycoo.ops.mttkrp import LastPass, multiply

LAYOUTS = ("replicated", "indexed", "remap")

#: Ranks unsuited to 16-byte loads or powers of two, compared with the next multiple of 16.
ODD_RANKS = {10: 16, 25: 32, 31: 32, 50: 64}

#: Seconds to spend on a median that is one of many figures.
_SHORT_S = 0.5

#: The constants that the table of tiles varies.
TILE_SETTINGS = (
    {},
    {"MAX_TILE_SIZE": 256},
    {"MAX_TILE_SIZE": 512},
    {"MAX_TILE_SIZE": 1024},
    {"BLOCK_SIZE": 64, "MAX_TILE_SIZE": 512},
    {"BLOCK_SIZE": 256},
    {"BUCKET_SIZE": 2**16},
    {"BUCKET_SIZE": 2**20},
)

#: Layouts that each table needs, in float32.
LAYOUTS_OF = {
    "speed": LAYOUTS,
    "remapping": ("remap",),
    "building": LAYOUTS,
    "bytes": LAYOUTS,
    "balance": ("replicated",),
    "ranks": ("remap",),
    "als": ("remap",),
    "float64": ("remap",),
    "tiles": (),
    "whole": (),
    "groups": (),
}


class Experiments:
    """The measurement of one tensor, table by table, as far as time and memory allow.

    Attributes
    ----------
    row : dict
        The figures; "skipped" and "failed" list what is missing. `save` is called whenever it
        grows.
    """

    def __init__(self, problem, options, deadline, save):
        self.options = options
        self.save = save
        self.deadline = deadline
        self.tables = set(options.tables)
        self.problem = problem
        self.row = {
            "tensor": problem.name, "alpha": problem.alpha, "scattered": problem.is_scattered,
            "scale": problem.scale, "shape": problem.shape, "nnz": problem.nnz,
            "sweeps_s": {}, "build_s": {}, "bytes_per_nonzero": {}, "skipped": [], "failed": [],
        }  # fmt: skip

    def run(self):
        """Measure all the tables that the options ask for."""
        if self.tables - {"whole", "groups", "float64", "ncu"}:
            self._attempt("all", self._run_float32)
        if "groups" in self.tables:
            self._attempt("groups", self._run_groups)
        if "whole" in self.tables:
            self._attempt("whole", self._run_whole)
        if "float64" in self.tables:
            self._attempt("float64", self._run_float64)

    def _attempt(self, name, function, *arguments):
        """Call a function; if it fails or runs out of time or memory, note that and go on."""
        try:
            if self.deadline.remaining_s() <= 0:
                self._skip(name, "the time is over")
            else:
                print(f"{self.problem.name}: {name} ...", file=sys.stderr, flush=True)
                function(*arguments)
        except MemoryError:  # CuPy's, too
            self._skip(name, "it does not fit the GPU's memory")
        except Exception:
            # Keep the other figures; the program reports the failure at the end.
            self.row["failed"].append(name)
            print(f"{self.problem.name}: {name} FAILED", flush=True)
            traceback.print_exc()
        free_memory()
        self.save()

    def _skip(self, name, why):
        self.row["skipped"].append(f"{name}: {why}")
        print(f"{self.problem.name}: skipped {name}: {why}", flush=True)

    def _run_float32(self):
        nonzeros = self.problem.draw(np.float32)
        for layout in LAYOUTS:
            if any(layout in LAYOUTS_OF[table] for table in self.tables if table in LAYOUTS_OF):
                self._attempt(layout, self._run_layout, nonzeros, layout)
        if "tiles" in self.tables:
            for setting in TILE_SETTINGS:
                self._attempt(f"tiles {setting}", self._run_tile_setting, nonzeros, setting)

    def _run_layout(self, nonzeros, layout):
        x = self._build(nonzeros, layout)
        self.row["bytes_per_nonzero"][layout] = x.nbytes / x.nnz
        if self.tables - {"bytes", "balance", "ncu"}:
            for rank in sorted({RANK, *self.options.ranks}):
                self._attempt(f"{layout}, rank {rank}", self._run_rank, x, rank)
        if layout == "replicated" and "balance" in self.tables:
            self._attempt("balance", self._run_balance, x)
        if layout == "remap" and "ranks" in self.tables:
            for rank in sorted({*ODD_RANKS, *ODD_RANKS.values()} - {RANK, *self.options.ranks}):
                self._attempt(f"rank {rank}", self._run_rank, x, rank)
            for rank in ODD_RANKS:
                self._attempt(f"rank {rank}, aligned", self._run_aligned_rows, x, rank)
        if layout == "remap" and "als" in self.tables:
            self._attempt("als", self._run_als, x)

    def _build(self, nonzeros, layout):
        """Build a tensor; for the table twice, because the first build compiles kernels."""
        make = functools.partial(build, *nonzeros, self.problem.shape, layout)
        (x, num_distinct), self.row["build_s"][f"{layout}, first"] = time_call(make)
        if "building" in self.tables:
            del x
            (x, num_distinct), self.row["build_s"][layout] = time_call(make)
        self.row["distinct_nnz"] = num_distinct
        free_memory()
        return x

    def _run_rank(self, x, rank):
        """Time the sweeps of a layout and their references."""
        factors, outs, steps = make_sweep(x, rank)
        is_asked_for = rank in {RANK, *self.options.ranks}
        limit = {} if is_asked_for else {"limit_s": _SHORT_S}
        self._note_sweep(x.layout, rank, time_steps(steps, self.options.repeats, **limit))
        if x.layout == "replicated" and is_asked_for and "speed" in self.tables:
            seconds, setting = time_gather_only(x._layout, factors, self.options.repeats)
            self._note_sweep("gather only", rank, seconds)
            self.row.setdefault("gather_setting", {})[str(rank)] = setting
            writes = [functools.partial(out.fill, 0) for out in outs]
            self._note_sweep("write", rank, time_steps(writes, self.options.repeats))
        if x.layout == "remap" and is_asked_for and self.tables & {"speed", "remapping"}:
            seconds = time_remap_off(x._layout, factors, outs, steps, self.options.repeats)
            self._note_sweep("remap off", rank, seconds)

    def _run_aligned_rows(self, x, rank):
        """Time factors with the memory layout that `tl.solve` gives them in parafac."""
        row_nbytes = tuning.choose_row_nbytes(rank * x.dtype.itemsize)
        factors = [cuda.pad_rows(f, row_nbytes) for f in draw_factors(x.shape, rank, x.dtype)]
        _, _, steps = make_sweep(x, rank, factors)
        seconds = time_steps(steps, self.options.repeats, limit_s=_SHORT_S)
        self._note_sweep("remap, aligned rows", rank, seconds)

    def _note_sweep(self, name, rank, seconds):
        self.row["sweeps_s"].setdefault(name, {})[str(rank)] = seconds.tolist()

    def _run_balance(self, x):
        num_workers = cupy.cuda.Device().attributes["MultiProcessorCount"]
        mean = max(1, x.nnz / num_workers)
        self.row["balance"] = [
            {
                "algorithm_1": largest_partition(*count_rows(x._layout, mode), num_workers) / mean,
                "tiles": largest_share_of_tiles(x.nnz, x._layout.tile_size, num_workers) / mean,
            }
            for mode in range(x.ndim)
        ]

    def _run_als(self, x):
        factors = draw_factors(x.shape, RANK, x.dtype)
        sweep_s = sum(self.row["sweeps_s"]["remap"][str(RANK)])
        self.row["als"] = time_als(x, factors, sweep_s, self.options.repeats)

    def _run_tile_setting(self, nonzeros, setting):
        with tuned(**setting):
            x, _ = build(*nonzeros, self.problem.shape, "remap")
            free_memory()
            steps = make_sweep(x, RANK)[-1]
            seconds = time_steps(steps, self.options.repeats, _SHORT_S)
            row = {
                "tile_size": x._layout.tile_size,
                "threads": tuning.choose_block_size(x._layout.tile_size),
                "bucket_size": tuning.BUCKET_SIZE, "sweep_s": float(seconds.sum()),
            }  # fmt: skip
        self.row.setdefault("tiles", []).append(row)

    def _run_groups(self):
        """Time sweeps and iterations with all modes apart, and with the groups of the default."""
        nonzeros = self.problem.draw(np.float32)
        for layout in LAYOUTS:
            for groups in (None, "auto"):
                name = f"groups, {layout}, {groups}"
                self._attempt(name, self._run_grouped, nonzeros, layout, groups)

    def _run_grouped(self, nonzeros, layout, groups):
        x, _ = build(*nonzeros, self.problem.shape, layout, groups)
        free_memory()
        factors = draw_factors(x.shape, RANK, x.dtype)
        outs = [cupy.empty((size, RANK), x.dtype) for size in x.shape]
        steps = make_grouped_steps(x, factors, outs)
        sweep_s = float(time_steps(steps, self.options.repeats).sum())
        del outs, steps
        row = {
            "layout": layout, "groups": describe_groups(x.groups), "is_default": groups == "auto",
            "sweep_s": sweep_s, "bytes_per_nonzero": x.nbytes / x.nnz,
            "iteration_s": time_als(x, factors, sweep_s, self.options.repeats)["iteration_s"],
        }  # fmt: skip
        self.row.setdefault("groups", []).append(row)

    def _run_whole(self):
        """Time calls on a tensor built as users build it, with repeated coordinates merged."""
        nonzeros = [array.get() for array in self.problem.draw(np.float32)]
        free_memory()
        measures = []
        for way in WAYS:
            self._attempt(f"whole, {', '.join(way)}", self._prepare_call, nonzeros, way, measures)
        calls = [{"tensor": self.problem.name, **call} for call in measure_calls(measures)]
        if calls:
            add_time_to_fit(calls, None)
            self.row["whole"] = calls

    def _prepare_call(self, nonzeros, way, measures):
        measures.append(prepare_call(*nonzeros, self.problem.shape, *way))

    def _run_float64(self):
        nonzeros = self.problem.draw(np.float64)
        x, _ = build(*nonzeros, self.problem.shape, "remap")
        del nonzeros
        free_memory()
        steps = make_sweep(x, RANK)[-1]
        self._note_sweep("remap, float64", RANK, time_steps(steps, self.options.repeats))


def make_sweep(x, rank, factors=None):
    """Return factors, arrays for the results, and a function for each mode."""
    factors = draw_factors(x.shape, rank, x.dtype) if factors is None else factors
    outs = [cupy.empty((size, rank), x.dtype) for size in x.shape]
    steps = [
        functools.partial(x._layout.apply, MTTKRP, cuda.CUDA, list_others(factors, mode), mode, out)
        for mode, out in enumerate(outs)
    ]
    return factors, outs, steps


def make_grouped_steps(x, factors, outs):
    """Return a function for each mode of a sweep in which modes of a group share a pass."""
    last_pass = LastPass()
    return [
        functools.partial(multiply, x._layout, x._engine, factors, mode, last_pass, out=out)
        for mode, out in enumerate(outs)
    ]


def list_others(factors, mode):
    """Return the factors that the MTTKRP of a mode reads, by mode."""
    return {n: factor for n, factor in enumerate(factors) if n != mode}


def time_remap_off(layout, factors, outs, steps, repeats):
    """Time the remap layout's modes without writing the records for the next mode.

    Records are still pulled from their bucket through ids. Each mode is then computed again with
    remapping, untimed, so that the next mode finds its records.
    """

    def compute(mode):
        assert layout.mode == mode
        others = list_others(factors, mode)
        layout.apply(MTTKRP, cuda.CUDA, others, mode, outs[mode], stays=True)

    both = [
        step for mode, on in enumerate(steps) for step in (functools.partial(compute, mode), on)
    ]
    return time_steps(both, repeats)[::2]


def count_rows(layout, mode):
    """Return the distinct row sizes of a mode in nonzeros, ascending, and the rows of each size."""
    rows = layout.record_format.rows(layout.copies[mode], mode, cupy)
    lasts = cupy.flatnonzero(rows[1:] != rows[:-1])
    ends = cupy.concatenate([cupy.full(1, -1, lasts.dtype), lasts, cupy.full(1, rows.size - 1)])
    sizes, num_rows = cupy.unique(cupy.diff(ends), return_counts=True)
    return sizes.get(), num_rows.get()


def paper_bytes_per_nonzero(shape, nnz, value_nbytes=4):
    """Return the bytes per nonzero of the paper's two copies: remap ids, coordinates, value."""
    bits = len(shape) * math.ceil(math.log2(max(2, nnz)))
    bits += sum(math.ceil(math.log2(size)) for size in shape)
    return 2 * (bits / 8 + value_nbytes)
