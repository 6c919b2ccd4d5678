"""How much of their bounds the rounding errors of the kernels take, and what is recorded of that.

    python tests/support/error_ratios.py cpu   # or cuda

writes the ratios of this machine's engine to `error_ratios.json`. A bound holds for any numbers;
errors of long sums are far below it, for roundings mostly cancel. So a kernel could get much worse
and still keep to its bound. A test fails if the largest ratio of an error and its bound, in rows of
`LEAST_ROW_NNZ` nonzeros or more, is more than `TOLERATED` times the recorded one. Results on CPUs
have the same bits on any machine; on a GPU they depend on its kind, by which tiles are cut.
"""

import json
import sys
from pathlib import Path

import numpy as np
import reference
import reference_ratios
from error_bounds import bound_mttkrp, bound_ratios, bound_ttmc

from tensorly_flycoo import FlycooTensor, mttkrp
from tensorly_flycoo.base.array_modules import move
from tensorly_flycoo.engines.cpu import products
from tensorly_flycoo.format.primitives import MTTKRP_OF_RATIOS, TTMC

TABLE = Path(__file__).with_name("error_ratios.json")

#: A test fails above so many times the recorded ratio.
TOLERATED = 4

SHAPE, NNZ, LEAST_ROW_NNZ = (6, 3000, 20), 60_000, 1000
SMALLEST = 1e-30
DTYPES, RANKS = ("float32", "float64"), (3, 16, 33)


def draw(dtype, rank):
    """Draw distinct cells, of which a few rows have most, and positive values and factors."""
    rng = np.random.default_rng(0)
    sizes = np.array(SHAPE)[:, None]
    coords = np.unique((sizes * rng.random((3, NNZ)) ** 3).astype(np.int64), axis=1)
    draw_positive = lambda *size: (0.1 + rng.random(size)).astype(dtype)  # noqa: E731
    factors = [draw_positive(size, rank) for size in SHAPE]
    return coords, draw_positive(coords.shape[1]), factors


def measure_mttkrp(device, dtype, rank, **options):
    """Return the errors of all modes, and their bounds."""
    coords, values, factors = draw(dtype, rank)
    x = FlycooTensor(coords, values, SHAPE, device=device, **options)
    on_device = [x._engine.xp.asarray(factor) for factor in factors]
    for mode in range(3):
        exact = reference.mttkrp(coords, values, SHAPE, factors, mode)
        found = move(mttkrp(x, on_device, mode), np)
        yield found - exact, bound_mttkrp(x, coords, values, factors, mode)


def measure_slabs(device, dtype, rank):
    return measure_mttkrp(device, dtype, rank, slabs=5)


def measure_groups(device, dtype, rank):
    return measure_mttkrp(device, dtype, rank, groups=[(0,), (1, 2)])


def measure_ratios(device, dtype, rank):
    coords, values, factors = draw(dtype, rank)
    x = FlycooTensor(coords, values, SHAPE, device=device, groups=None)
    on_device = dict(enumerate(map(x._engine.xp.asarray, factors)))
    for mode, size in enumerate(SHAPE):
        out = x._engine.xp.empty((size, rank), dtype)
        x._layout.apply(MTTKRP_OF_RATIOS, x._engine, on_device, mode, out, smallest=SMALLEST)
        problem = (coords, values, SHAPE, factors, mode, SMALLEST)
        exact, _ = reference_ratios.mttkrp_of_ratios(*problem)
        yield move(out, np) - exact, bound_ratios(x, coords, values, factors, mode, SMALLEST)[0]


def measure_ttmc(device, dtype, rank):
    """Each factor has about the root of the rank of columns."""
    coords, values, factors = draw(dtype, rank)
    factors = [
        np.ascontiguousarray(factor[:, : int(rank**0.5) + n]) for n, factor in enumerate(factors)
    ]
    x = FlycooTensor(coords, values, SHAPE, device=device, groups=None)
    for mode, size in enumerate(SHAPE):
        inputs = {n: x._engine.xp.asarray(f) for n, f in enumerate(factors) if n != mode}
        num_columns = np.prod([factor.shape[1] for factor in inputs.values()])
        out = x._engine.xp.empty((size, int(num_columns)), dtype)
        x._layout.apply(TTMC, x._engine, inputs, mode, out)
        problem = (coords, values, SHAPE, factors, mode)
        yield move(out, np) - reference.ttmc(*problem), bound_ttmc(x, *problem)


def measure_gram(device, dtype, rank):
    """Return the largest ratio of a Gram matrix of a tall one."""
    factor = np.random.default_rng(0).random((40_000, rank)).astype(dtype)
    if device == "cpu":
        found = products.multiply_transposed(factor, factor)
        bound = reference.columns_error_bound(factor, factor, dtype, in_dtype=products.CACHED_ROWS)
    else:
        from tensorly_flycoo.engines.cuda import tall

        found = move(tall.gram_blocks(move(factor, tall.cupy)).to_array(), np).sum(axis=0)
        widths = (tall.tuning.choose_rows_per_block(len(factor)), tall.tuning.GRAM_SEGMENT)
        bound = reference.columns_error_bound(factor, factor, np.float64, widths)
    error = np.abs(found - reference.product_of_columns(factor, factor))
    return float((error / bound).max())


KERNELS = {
    "mttkrp": measure_mttkrp,
    "mttkrp in slabs": measure_slabs,
    "mttkrp in groups": measure_groups,
    "mttkrp of ratios": measure_ratios,
    "ttmc": measure_ttmc,
}
CASES = [
    f"{k}, {dtype}, rank {rank}" for k in (*KERNELS, "gram") for dtype in DTYPES for rank in RANKS
]


def measure(case, device):
    """Return the largest ratio of an error and its bound, in long rows."""
    kernel, dtype, rank_text = case.split(", ")
    rank = int(rank_text.removeprefix("rank "))
    if kernel == "gram":
        return measure_gram(device, dtype, rank)
    coords, _, _ = draw(dtype, 1)
    largest = []
    results = KERNELS[kernel](device, dtype, rank)
    for mode, (error, bound) in enumerate(results):
        is_long = np.bincount(coords[mode], minlength=SHAPE[mode]) >= LEAST_ROW_NNZ
        largest.append((np.abs(error[is_long]) / bound[is_long]).max(initial=0))
    return float(max(largest))


def find_name(device):
    """Return the name of the processor by which ratios are recorded."""
    if device == "cpu":
        return "cpu"
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()


def find_limit(case, device):
    """Return the largest ratio that is tolerated; for a GPU that is not recorded, of all GPUs."""
    table = json.loads(TABLE.read_text())
    name = find_name(device)
    of_gpus = {key: ratios for key, ratios in table.items() if key != "cpu"}
    recorded = [table[name]] if name in table else list(of_gpus.values())
    return TOLERATED * max(ratios[case] for ratios in recorded)


def main():
    (device,) = sys.argv[1:]
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    table[find_name(device)] = {case: float(f"{measure(case, device):.2e}") for case in CASES}
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    for case, ratio in table[find_name(device)].items():
        print(f"{case}: {ratio:.1e}")


if __name__ == "__main__":
    main()
