"""TTMc: the oracle against einsum, and the CPU engine against the oracle.

Every tolerance is `error_bounds.bound_ttmc`.
"""

import numba
import numpy as np
import pytest
import reference
from error_bounds import bound_ttmc
from problems import make_problem, poison_spare

from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.format.primitives import TTMC

LAYOUTS = ("remap", "replicated", "indexed")
SHAPE = (7, 30, 6, 3, 5)


@pytest.fixture
def small_tiles(monkeypatch):
    """Cut tiles and buckets so small that tiny tensors have many of both."""
    monkeypatch.setattr(cpu, "TILE_SIZE", 16)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 64)


def make_factors(shape, ranks, dtype="float64"):
    rng = np.random.default_rng(1)
    return [rng.standard_normal(size).astype(dtype) for size in zip(shape, ranks, strict=True)]


pytestmark = pytest.mark.usual_limits("groups", "prefixes")  # the engine is called with modes


def compute(x, factors, mode):
    """Compute one mode into memory full of nan."""
    inputs = {n: factor for n, factor in enumerate(factors) if n != mode}
    num_columns = int(np.prod([factor.shape[1] for factor in inputs.values()]))
    out = np.full((x.shape[mode], num_columns), np.nan, x.dtype)
    poison_spare(x)
    x._layout.apply(TTMC, cpu.CPU, inputs, mode, out)
    return out


def check(result, x, problem, factors, mode):
    """Compare the result of `x` with the oracle, entry by entry."""
    arguments = (problem.coords, problem.values, problem.shape, factors, mode)
    bound = bound_ttmc(x, *arguments)
    assert (np.abs(result - reference.ttmc(*arguments)) <= bound).all()


@pytest.mark.parametrize("mode", range(4))
def test_the_oracle_agrees_with_einsum(mode):
    problem = make_problem((4, 3, 5, 2), 40)
    factors = make_factors(problem.shape, (2, 3, 1, 4))
    dense = np.zeros(problem.shape)
    np.add.at(dense, tuple(problem.coords), problem.values)
    others = "abcd".replace("abcd"[mode], "")
    terms = ",".join(f"{n}{n.upper()}" for n in others)
    inputs = [factor for n, factor in enumerate(factors) if n != mode]
    expected = np.einsum(f"abcd,{terms}->{'abcd'[mode]}{others.upper()}", dense, *inputs)
    found = reference.ttmc(problem.coords, problem.values, problem.shape, factors, mode)
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("ndim", "dtype"),
    [
        (1, "float64"),
        (2, "float32"),
        (3, "float64"),
        *[pytest.param(*case, marks=pytest.mark.slow) for case in [(3, "float32"), (5, "float64")]],
    ],
)
def test_every_ndim(small_tiles, ndim, dtype):
    problem = make_problem(SHAPE[:ndim], 300, dtype=dtype, skew=2)
    factors = make_factors(problem.shape, (3, 4, 3, 4, 3)[:ndim], dtype)
    x = problem.tensor()
    for mode in [*range(ndim), 0]:
        check(compute(x, factors, mode), x, problem, factors, mode)


@pytest.mark.parametrize(
    "ranks", [(1, 1, 1), (1, 9, 2), (7, 1, 17), (8, 3, 33), (16, 16, 16), (40, 70, 5)]
)
def test_every_rank(small_tiles, ranks):
    """With and without padding of columns to whole vectors."""
    problem = make_problem((40, 30, 10), 500, skew=2)
    factors = make_factors(problem.shape, ranks)
    x = problem.tensor()
    for mode in range(3):
        check(compute(x, factors, mode), x, problem, factors, mode)


def test_layouts_agree_to_the_bit_in_any_order_of_modes(small_tiles):
    problem = make_problem((40, 3, 30), 500, skew=2)
    factors = make_factors(problem.shape, (3, 4, 5))
    tensors = [problem.tensor(layout=layout) for layout in LAYOUTS]
    for mode in (1, 1, 0, 2, 0):
        results = [compute(x, factors, mode) for x in tensors]
        check(results[0], tensors[0], problem, factors, mode)
        assert len({result.tobytes() for result in results}) == 1


def test_the_number_of_threads_changes_no_bit(small_tiles):
    """A row over all tiles: its parts are added in the order of the tiles."""
    problem = make_problem((1, 40, 30), 500)
    factors = make_factors(problem.shape, (3, 4, 5))
    x, num_threads = problem.tensor(), numba.get_num_threads()
    try:
        seen = set()
        for count in range(1, num_threads + 1):
            numba.set_num_threads(count)
            seen.add(compute(x, factors, 0).tobytes())
    finally:
        numba.set_num_threads(num_threads)
    assert len(seen) == 1


def test_inputs_may_come_in_any_order(small_tiles):
    """The order of the inputs is the order of the columns."""
    problem = make_problem((9, 8, 7, 6), 300)
    factors = make_factors(problem.shape, (2, 3, 4, 5))
    x, shape = problem.tensor(), (8, 5, 2, 4)
    out = np.full((8, 40), np.nan)
    inputs = {n: factors[n] for n in (3, 0, 2)}
    x._layout.apply(TTMC, cpu.CPU, inputs, 1, out)
    columns = out.reshape(shape).transpose(0, 2, 3, 1).reshape(8, -1)
    check(columns, x, problem, factors, 1)


@pytest.mark.parametrize("skew", [1, 9], ids=["few nonzeros a row", "rows over several tiles"])
def test_slots_keep_only_nonempty_rows(small_tiles, skew):
    problem = make_problem((4000, 8, 7), 300, skew=skew)
    problem.coords[0] = 3999 - problem.coords[0]  # crowded rows last: their slots are others
    factors = make_factors(problem.shape, (2, 3, 4))
    x, used = problem.tensor(), np.unique(problem.coords[0])
    slots = np.full(4000, 2**32 - 1, np.uint32)  # slots of empty rows are out of range
    slots[used] = np.arange(used.size)
    out = np.full((used.size, 12), np.nan)
    inputs = {1: factors[1], 2: factors[2]}
    x._layout.apply(TTMC, cpu.CPU, inputs, 0, out, slots=slots)
    spread = np.zeros((4000, 12))
    spread[used] = out
    check(spread, x, problem, factors, 0)


@pytest.mark.usual_limits("groups", "prefixes", "slabs")
def test_no_nonzeros():
    problem = make_problem((4, 5, 6), 0)
    factors = make_factors(problem.shape, (2, 3, 4))
    assert (compute(problem.tensor(), factors, 1) == 0).all()


def test_factors_that_are_not_contiguous(small_tiles):
    problem = make_problem((9, 8, 7), 300)
    factors = make_factors(problem.shape, (2, 3, 4))
    x = problem.tensor()
    strided = [np.asfortranarray(factor) for factor in factors]
    assert compute(x, strided, 1).tobytes() == compute(x, factors, 1).tobytes()
