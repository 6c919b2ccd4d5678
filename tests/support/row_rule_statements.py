"""The rules of `RowRule`, as its docstring states them, in NumPy; and problems to try them on."""

import numpy as np

from tensorly_flycoo.engines.row_rules import NUM_MEASURES, Method, Operator, RowRule

#: A rule of each kind; their strengths leave small integers what they are.
RULES = [
    RowRule(Method.MULTIPLY, strength=1.0),
    RowRule(Method.HALS, strength=1.0),
    *[RowRule(Method.ADMM, operator, 0.5) for operator in Operator],
]

#: One for each specialisation of a CUDA kernel.
DIFFERENT_RULES = [RULES[0], RULES[1], RULES[3], RULES[6]]


#: How many steps a pass takes: those of TensorLy.
NUM_STEPS = {Method.MULTIPLY: 1, Method.HALS: 5, Method.ADMM: 10}


def name_rule(rule):
    return f"{rule.method.name}-{rule.operator.name}".lower()


def update_rows(rule, targets, rows, dual, num_steps, penalty, matrix):
    """Return the rows, the dual variable and the measures of `Engine.update_rows`, in float64."""
    targets, x, matrix = (np.array(array, float) for array in (targets, rows, matrix))
    d = None if dual is None else np.array(dual, float)
    measures = np.zeros((num_steps, NUM_MEASURES[rule.method]))
    for step in range(num_steps):
        if rule.method is Method.MULTIPLY:
            scales = np.maximum(x @ matrix, rule.strength)
            x = x * np.maximum(targets, rule.strength) / scales
        elif rule.method is Method.HALS:
            measures[step] = sweep(rule, targets, x, matrix)
        else:
            y = (targets + penalty * (x + d)) @ matrix
            old, x = x, apply_operator(rule, y - d)
            d = d + x - y
            measures[step] = [(change**2).sum() for change in (x - y, x, x - old, d)]
    return x, d, measures


def sweep(rule, targets, x, gram):
    """Sweep over the rows, in place; return what is measured."""
    squares, num_changes = 0.0, 0
    for k in np.flatnonzero(gram.diagonal()):
        others = x @ np.where(np.arange(len(gram)) == k, 0, gram[k])
        new = np.maximum(0, (targets[:, k] - rule.strength - others) / gram[k, k])
        squares += ((x - new[:, None]) ** 2).sum()
        num_changes += (new != x[:, k]).sum()
        x[:, k] = new
    return squares, num_changes


def apply_operator(rule, v):
    """Apply a proximal operator to each row."""
    strength = rule.strength
    if rule.operator is Operator.NON_NEGATIVE:
        return np.maximum(v, 0)
    if rule.operator is Operator.L1:
        return np.sign(v) * np.maximum(abs(v) - strength, 0)
    if rule.operator is Operator.L2_SQUARE:
        return v / (1 + 2 * strength)
    if rule.operator is Operator.GROUP_LASSO:
        norms = np.linalg.norm(v, axis=1, keepdims=True)
        safe_norms = np.where(norms == 0, 1, norms)
        return v * np.maximum(0, 1 - strength / safe_norms)
    return v


def draw_integers(rule, num_rows, rank, dtype):
    """Draw small integers, of which two steps of HALS or ADMM make others, exactly, or halves.

    Return the targets, the rows, the dual variable, the penalty and the matrix. Between rows there
    is nan.
    """
    rng = np.random.default_rng(0)

    def draw_rows(least):
        rows = np.full((num_rows, rank + 3), np.nan, dtype)[:, :rank]
        rows[...] = rng.integers(least, 4, rows.shape)
        return rows

    targets, rows = draw_rows(-3), draw_rows(0)
    matrix = rng.integers(-1, 2, (rank, rank)) * (rng.random((rank, rank)) < 4 / rank)
    if rule.method is Method.ADMM:
        return targets, rows, draw_rows(-3), np.full((), 2.0), matrix.astype(float)
    if rule.method is Method.MULTIPLY:
        return targets, rows, None, None, abs(matrix).astype(float)
    # A target less the strength is even, and so is the matrix. Some columns stay.
    np.fill_diagonal(matrix, rng.integers(0, 2, rank))
    targets[...] = 2 * targets + rule.strength
    return targets, rows, None, None, 2.0 * matrix


def count_exact_steps(rule):
    """Count the steps that are exact; 0 if quotients or roots are rounded."""
    is_rounded = rule.method is Method.MULTIPLY or rule.operator is Operator.GROUP_LASSO
    return 0 if is_rounded else 2


def check_integers(rule, found, expected, dtype):
    """Check what `update_rows` made of `draw_integers` in one step, or in as many as are exact.

    Where one step is not exact, a quotient, a root, a difference and a product are rounded; up to
    16 squares are added in a lane, and then those of 32 lanes.
    """
    (rows, dual, measures), (expected_rows, expected_dual, expected_measures) = found, expected
    tolerance = 0 if count_exact_steps(rule) else (2 * 4 + 16 + 5) * np.finfo(dtype).eps
    pairs = [(rows, expected_rows)]
    if expected_dual is None:
        assert dual is None
    else:
        pairs.append((dual, expected_dual))
    # The dual variable is a difference of numbers as large as these.
    largest = sum(abs(part).max(initial=0) for _, part in pairs)
    for array, part in pairs:
        assert array.dtype == dtype
        np.testing.assert_allclose(array, part, rtol=0, atol=tolerance * largest)
    largest = expected_measures.max(initial=0)
    np.testing.assert_allclose(measures, expected_measures, rtol=0, atol=tolerance * largest)


def draw_problem(num_rows, rank, dtype, seed=0):
    """Draw targets, rows, a dual variable (num_rows, rank) and a well-conditioned Gram matrix."""
    rng = np.random.default_rng(seed)
    gram = np.eye(rank) + 0.5 * rng.random((rank, rank)) / rank
    gram = gram @ gram.T
    rows = rng.random((num_rows, rank))
    targets = (rows + 0.3 * rng.standard_normal((num_rows, rank))) @ gram
    dual = 0.1 * rng.standard_normal((num_rows, rank))
    arrays = [array.astype(dtype) for array in (targets, rows, dual)]
    return *arrays, gram.astype(dtype).astype(np.float64)


def find_bound(num_steps, rank, dtype, size):
    """Bound the rounding of rows or a dual variable after some steps.

    An element is a sum of `rank` products and a few more operations on numbers up to `size`, so it
    is off by (rank + 8) roundings at most; a step maps an error of the last one to no more than
    four times that of the worst element, for the matrices of `draw_problem` (their inverses have
    row sums below 2, and a row and its dual variable count both).
    """
    growth = sum(4**step for step in range(min(num_steps, 4)))
    return growth * (rank + 8) * np.finfo(dtype).eps * size
