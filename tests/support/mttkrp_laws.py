"""Known answers of MTTKRP, and laws of MTTKRP and parafac, for any device, layout and dtype.

Results of small integers are not rounded and are compared exactly. Others must be within the bound
of their order of additions, `error_bounds.bound_mttkrp`, or bitwise the same if the law says so.
Each function whose name starts with ``check_`` takes ``device``, ``layout`` and ``dtype``.
"""

import itertools
import math

import numpy as np
import reference
import tensorly as tl
from error_bounds import bound_mttkrp, list_pieces
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, mttkrp, mttkrps
from tensorly_flycoo.base.array_modules import move
from tensorly_flycoo.testing import planted_tensor

SHAPE, NNZ, RANK = (30, 2, 40), 900, 3
ALS_SHAPE, ALS_RANK, NUM_ITERATIONS = (12, 9, 10), 3, 6

#: Safety factor for rounding errors that a few draws miss, as in `rounding`.
_SAFETY = 10

#: Strassen's algorithm multiplies 2 x 2 matrices by seven products. Rows are matrix entries.
STRASSEN = [
    np.array([[1, 0, 1, 0, 1, -1, 0], [0, 0, 0, 0, 1, 0, 1],
              [0, 1, 0, 0, 0, 1, 0], [1, 1, 0, 1, 0, 0, -1]]),
    np.array([[1, 1, 0, -1, 0, 1, 0], [0, 0, 1, 0, 0, 1, 0],
              [0, 0, 0, 1, 0, 0, 1], [1, 0, -1, 0, 1, 0, 1]]),
    np.array([[1, 0, 0, 1, -1, 0, 1], [0, 0, 1, 0, 1, 0, 0],
              [0, 1, 0, 1, 0, 0, 0], [1, -1, 1, 0, 0, 1, 0]]),
]  # fmt: skip


def draw_problem(dtype, shape=SHAPE, nnz=NNZ, rank=RANK, seed=0):
    """Draw distinct cells, many of them in low rows, with values and factors that need rounding."""
    rng = np.random.default_rng(seed)
    sizes = np.array(shape)[:, None]
    coords = np.unique((sizes * rng.random((len(shape), nnz)) ** 2).astype(np.int64), axis=1)
    coords = coords[:, rng.permutation(coords.shape[1])]
    values = rng.standard_normal(coords.shape[1]).astype(dtype)
    return coords, values, [rng.standard_normal((size, rank)).astype(dtype) for size in shape]


def make_matmul_tensor(m, n, p):
    """List the nonzeros, all 1, of the tensor that multiplies (m, n) by (n, p) matrices."""
    i, j, k = (index.ravel() for index in np.indices((m, n, p)))
    return np.stack([i * n + j, j * p + k, i * p + k]), np.ones(m * n * p), (m * n, n * p, m * p)


def compute_all(x, factors):
    """Compute all modes in turn on the tensor's device; return NumPy arrays."""
    factors = [move(factor, x._engine.xp) for factor in factors]
    return [move(mttkrp(x, factors, mode), np) for mode in range(x.ndim)]


def assert_same_bits(found, expected):
    """Compare lists of arrays bit by bit."""
    assert [array.dtype for array in found] == [array.dtype for array in expected]
    assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]


def assert_within_bound(found, x, coords, values, factors, mode):
    """Compare one result of the tensor `x` with the oracle."""
    exact = reference.mttkrp(coords, values, x.shape, factors, mode)
    assert found.dtype == x.dtype
    assert (np.abs(found - exact) <= bound_mttkrp(x, coords, values, factors, mode)).all()


def check_matrices_are_multiplied(device, layout, dtype, sizes=(5, 6, 7), rank=3):
    """Columns of factors hold matrices row by row; MTTKRP of a mode multiplies two of them.

    T[ij, jk, ik] = 1, so mode 2 gives A B, mode 0 gives C B^T and mode 1 gives A^T C.
    """
    (m, n, p), rng = sizes, np.random.default_rng(0)
    coords, values, shape = make_matmul_tensor(m, n, p)
    x = FlycooTensor(coords, values, shape, dtype=dtype, layout=layout, device=device)
    a, b, c = (rng.integers(-8, 9, (rank, *size)) for size in [(m, n), (n, p), (m, p)])
    factors = [matrices.reshape(rank, -1).T.astype(dtype) for matrices in (a, b, c)]
    expected = [c @ b.transpose(0, 2, 1), a.transpose(0, 2, 1) @ c, a @ b]
    for found, product in zip(compute_all(x, factors), expected, strict=True):
        np.testing.assert_array_equal(found, product.reshape(rank, -1).T)


def check_strassen_is_exact(device, layout, dtype):
    """MTTKRP of an exact CP tensor is a factor times the Hadamard product of the other Grams."""
    coords, values, shape = make_matmul_tensor(2, 2, 2)
    dense = np.zeros(shape)
    dense[tuple(coords)] = values
    np.testing.assert_array_equal(np.einsum("ir,jr,kr->ijk", *STRASSEN), dense)
    x = FlycooTensor(coords, values, shape, dtype=dtype, layout=layout, device=device)
    found = compute_all(x, [factor.astype(dtype) for factor in STRASSEN])
    for mode, result in enumerate(found):
        a, b = (STRASSEN[n].T @ STRASSEN[n] for n in range(3) if n != mode)
        np.testing.assert_array_equal(result, STRASSEN[mode] @ (a * b))


def check_planted_factors_are_recovered(device, layout, dtype):
    """parafac recovers the factors of an exact CP tensor up to rounding, from a start near them.

    At the solution one step solves normal equations with an MTTKRP that is off by its bound.
    """
    options = {"random_state": 0, "dtype": dtype, "layout": layout, "device": device}
    x, planted = planted_tensor((40, 30, 20), 3, 300, **options)
    xp, rng = x._engine.xp, np.random.default_rng(0)
    start = [xp.asarray((f + 0.1 * rng.random(f.shape)).astype(dtype)) for f in planted]
    with tl.backend_context("flycoo"):
        init = CPTensor((xp.ones(3, dtype), start))
        found = parafac(x, 3, init=init, n_iter_max=40, tol=0)
    row_nnz = max(np.bincount(rows).max() for rows in x.nonzeros()[0])
    planted = [factor / np.linalg.norm(factor, axis=0) for factor in planted]
    for mode, factor in enumerate(found.factors):
        factor = move(factor, np) / np.linalg.norm(move(factor, np), axis=0)
        a, b = (planted[n].T @ planted[n] for n in range(3) if n != mode)
        bound = (row_nnz + x.ndim) * np.finfo(dtype).eps * np.linalg.cond(a * b)
        assert np.abs(factor - planted[mode]).max() <= bound < 1e-2


def check_modes_may_be_permuted(device, layout, dtype):
    """Each result is within the error bound."""
    coords, values, factors = draw_problem(dtype)
    for order in itertools.permutations(range(len(SHAPE))):
        shape = [SHAPE[n] for n in order]
        x = FlycooTensor(coords[list(order)], values, shape, layout=layout, device=device)
        found = compute_all(x, [factors[n] for n in order])
        for result, mode in zip(found, order, strict=True):
            turned = (coords[list(order)], values, [factors[n] for n in order])
            assert_within_bound(result, x, *turned, order.index(mode))


def check_all_modes_together(device, layout, dtype):
    """`mttkrps` gives what single calls do, also in slabs."""
    shape = (6, 5, 4, 7)
    coords, values, factors = draw_problem(dtype, shape)
    for slabs in (1, 3):  # groups, where a limit is lowered that makes them
        options = {"layout": layout, "device": device, "slabs": slabs}
        x = FlycooTensor(coords, values, shape, **options)
        on_device = [move(factor, x._engine.xp) for factor in factors]
        found = [move(product, np) for product in mttkrps(x, on_device)]
        assert_same_bits(found, compute_all(x, factors))
        for mode, product in enumerate(found):
            assert_within_bound(product, x, coords, values, factors, mode)


def check_nonzeros_may_be_permuted(device, layout, dtype):
    """Results are bitwise the same, because a tensor sorts its nonzeros into one order."""
    coords, values, factors = draw_problem(dtype)
    orders = [np.arange(values.size), np.lexsort(coords), np.lexsort(coords)[::-1]]
    results = [
        compute_all(
            FlycooTensor(coords[:, o], values[o], SHAPE, layout=layout, device=device), factors
        )
        for o in orders
    ]
    for result in results[1:]:
        assert_same_bits(result, results[0])


def check_scaling_by_powers_of_two_is_exact(device, layout, dtype):
    """Powers of two scale results exactly: in the values, by the operator and in each factor."""
    coords, values, factors = draw_problem(dtype)
    x = FlycooTensor(coords, values, SHAPE, layout=layout, device=device)
    plain = compute_all(x, factors)
    for scale in (np.dtype(dtype).type(2.0**exponent) for exponent in (-20, -1, 13)):
        expected = [scale * result for result in plain]
        y = FlycooTensor(coords, scale * values, SHAPE, layout=layout, device=device)
        assert_same_bits(compute_all(y, factors), expected)
        assert_same_bits(compute_all(scale * x, factors), expected)
        for n in range(len(SHAPE)):
            scaled = [scale * f if k == n else f for k, f in enumerate(factors)]
            one_plain = [plain[k] if k == n else expected[k] for k in range(len(SHAPE))]
            assert_same_bits(compute_all(x, scaled), one_plain)


def check_duplicates_may_be_split(device, layout, dtype):
    """Results are bitwise the same if sums of the parts are exact in any order."""
    coords, values, factors = draw_problem(dtype)
    # Sums of integers are exact in any order.
    values = np.rint(64 * values).astype(dtype)
    coords, values = coords[:, values != 0], values[values != 0]
    x = FlycooTensor(coords, values, SHAPE, layout=layout, device=device)
    rng = np.random.default_rng(1)
    parts = rng.integers(-99, 99, (2, values.size)).astype(dtype)
    order = rng.permutation(3 * values.size)
    split = np.concatenate([*parts, values - parts.sum(axis=0)])[order]
    y = FlycooTensor(np.tile(coords, 3)[:, order], split, SHAPE, layout=layout, device=device)
    assert y.nnz == x.nnz
    assert_same_bits(compute_all(y, factors), compute_all(x, factors))


def check_indices_may_be_renamed(device, layout, dtype):
    """Permuting indices permutes the rows of results, within the bound; zeros stay zeros."""
    coords, values, factors = draw_problem(dtype)
    x = FlycooTensor(coords, values, SHAPE, layout=layout, device=device)
    expected, rng = compute_all(x, factors), np.random.default_rng(1)
    for n, size in enumerate(SHAPE):
        names = rng.permutation(size)
        renamed_coords, renamed = coords.copy(), list(factors)
        renamed_coords[n], renamed[n] = names[coords[n]], factors[n][np.argsort(names)]
        y = FlycooTensor(renamed_coords, values, SHAPE, layout=layout, device=device)
        found = compute_all(y, renamed)
        found[n] = found[n][names]
        for mode, result in enumerate(found):
            assert_within_bound(result, x, coords, values, factors, mode)
        np.testing.assert_array_equal(found[n] == 0, expected[n] == 0)


def draw_long_rows(dtype, nnz, seed=0):
    """Draw distinct cells of two long rows, in a random order, with values that need rounding."""
    rng = np.random.default_rng(seed)
    shape = (2, 50, -(-nnz // 50))
    cells = rng.choice(math.prod(shape), nnz, replace=False)
    values = rng.standard_normal(nnz).astype(dtype)
    factors = [rng.standard_normal((size, 2)).astype(dtype) for size in shape]
    return np.stack(np.unravel_index(cells, shape)), values, factors


def check_long_rows(device, layout, dtype, nnz=20_000):
    """A row of half of the nonzeros is within the bound; a tile that is lost breaks it."""
    for slabs in (1, 3):
        coords, values, factors = draw_long_rows(dtype, nnz)
        shape = tuple(map(len, factors))
        options = {"layout": layout, "device": device, "slabs": slabs}
        x = FlycooTensor(coords, values, shape, **options)
        for mode, result in enumerate(compute_all(x, factors)):
            assert_within_bound(result, x, coords, values, factors, mode)
        tile_size = list_pieces(x)[0].tile_size
        sizes = [np.abs(factor) for factor in factors]
        lost = (coords[:, :tile_size], np.abs(values)[:tile_size], shape, sizes, 0)
        of_tile = reference.mttkrp(*lost)
        assert (of_tile > 2 * bound_mttkrp(x, coords, values, factors, 0)).all()


def draw_whole_numbers(shape, nnz, rank, dtype, seed=0):
    """Draw distinct cells, and values and factors of 1, 2 and their negatives."""
    rng = np.random.default_rng(seed)
    cells = np.sort(rng.choice(math.prod(shape), nnz, replace=False))
    draw = lambda *size: rng.choice([-2, -1, 1, 2], size).astype(dtype)  # noqa: E731
    return np.stack(np.unravel_index(cells, shape)), draw(nnz), [draw(n, rank) for n in shape]


def compute_whole_numbers(coords, values, factors, mode):
    """Compute an MTTKRP of whole numbers in integers."""
    terms = values.astype(np.int64)[:, None] * np.ones(factors[0].shape[1], np.int64)
    for n, factor in enumerate(factors):
        if n != mode:
            terms *= factor[coords[n]].astype(np.int64)
    # Sums of float64 numbers, which are exact below 2**53, are faster than those of integers.
    num_rows = len(factors[mode])
    columns = [np.bincount(coords[mode], column, num_rows) for column in terms.T]
    return np.stack(columns, axis=1).astype(np.int64)


def check_whole_numbers(device, layout, dtype, nnz=100_000):
    """Sums of whole numbers below 2**24 are exact in any order: no nonzero is lost or doubled."""
    for shape, slabs in (((2, 50, nnz // 25), 1), ((3, 40, nnz // 60), 3), ((7, 9, 80, nnz), 1)):
        coords, values, factors = draw_whole_numbers(shape, nnz, 3, dtype)
        options = {"layout": layout, "device": device, "slabs": slabs}
        x = FlycooTensor(coords, values, shape, **options)
        for mode, result in enumerate(compute_all(x, factors)):
            expected = compute_whole_numbers(coords, values, factors, mode)
            np.testing.assert_array_equal(result, expected)


class ParafacProblem:
    """A tensor, an initial guess for parafac, and a bound on the rounding of parafac's errors."""

    def __init__(self, device, layout, dtype):
        self.options = {"layout": layout, "device": device}
        self.coords, values, self.factors = draw_problem(dtype, ALS_SHAPE, 300, ALS_RANK)
        self.values, self.factors = np.abs(values), [np.abs(factor) for factor in self.factors]

    def tensor(self, coords=None, values=None, shape=ALS_SHAPE):
        """Make the tensor, or one with other coordinates, values or shape."""
        coords = self.coords if coords is None else coords
        return FlycooTensor(
            coords, self.values if values is None else values, shape, **self.options
        )

    def run(self, x, factors=None, fixed_modes=()):
        """Run parafac and return the errors of all iterations."""
        xp = x._engine.xp
        factors = self.factors if factors is None else factors
        init = CPTensor((xp.ones(ALS_RANK, x.dtype), [xp.array(factor) for factor in factors]))
        options = {"n_iter_max": NUM_ITERATIONS, "tol": 0, "return_errors": True}
        with tl.backend_context("flycoo"):
            errors = parafac(x, ALS_RANK, init=init, fixed_modes=list(fixed_modes), **options)[1]
        return np.array([float(error) for error in errors])

    def bound(self, fixed_modes=()):
        """Bound the rounding of errors by the effect of random rounding errors in each nonzero."""
        row_nnz = max(np.bincount(rows).max() for rows in self.coords)
        unit = (row_nnz + len(ALS_SHAPE) + ALS_RANK) * np.finfo(self.values.dtype).eps
        expected, rng = self.run(self.tensor(), fixed_modes=fixed_modes), np.random.default_rng(2)
        draws = [1 + rng.uniform(-unit, unit, self.values.size) for _ in range(3)]
        moved = [self.tensor(values=(self.values * d).astype(self.values.dtype)) for d in draws]
        others = [self.run(x, fixed_modes=fixed_modes) for x in moved]
        bound = _SAFETY * (np.abs(others - expected).max() + unit)
        assert bound < 1e-2 * np.abs(expected).max()  # a weaker bound would accept anything
        return bound


def check_errors_of_the_same_tensor(device, layout, dtype):
    """parafac's errors are bitwise the same for nonzeros in any order or split in halves."""
    problem = ParafacProblem(device, layout, dtype)
    expected = problem.run(problem.tensor())
    assert expected[-1] < expected[0]
    order = np.random.default_rng(1).permutation(problem.values.size)
    coords, values = problem.coords[:, order], problem.values[order]
    assert_same_bits([problem.run(problem.tensor(coords, values))], [expected])
    halves = problem.tensor(np.tile(coords, 2), np.tile(values / 2, 2))
    assert_same_bits([problem.run(halves)], [expected])


def check_errors_of_a_scaled_tensor(device, layout, dtype):
    """Errors are relative, so bitwise the same if the tensor is scaled by a power of two."""
    problem = ParafacProblem(device, layout, dtype)
    expected = problem.run(problem.tensor())
    for exponent in (-12, 9):
        values = problem.values * np.dtype(dtype).type(2.0**exponent)
        assert_same_bits([problem.run(problem.tensor(values=values))], [expected])


def check_errors_of_renamed_indices(device, layout, dtype):
    """parafac's errors do not depend on the order of rows."""
    problem = ParafacProblem(device, layout, dtype)
    expected, rng = problem.run(problem.tensor()), np.random.default_rng(1)
    names = [rng.permutation(size) for size in ALS_SHAPE]
    coords = np.stack([name[rows] for name, rows in zip(names, problem.coords, strict=True)])
    factors = [f[np.argsort(name)] for f, name in zip(problem.factors, names, strict=True)]
    errors = problem.run(problem.tensor(coords), factors)
    assert np.abs(errors - expected).max() <= problem.bound()


def check_errors_of_permuted_modes(device, layout, dtype):
    """parafac's errors do not depend on where a fixed mode is, if the others keep their order."""
    problem = ParafacProblem(device, layout, dtype)
    expected, order = problem.run(problem.tensor(), fixed_modes=[0]), [1, 0, 2]
    shape, factors = ([part[n] for n in order] for part in (ALS_SHAPE, problem.factors))
    errors = problem.run(problem.tensor(problem.coords[order], shape=shape), factors, [1])
    assert np.abs(errors - expected).max() <= problem.bound(fixed_modes=[0])


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]
