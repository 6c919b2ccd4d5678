"""The rules of row-separable updates in NumPy, float64, and bounds for what an engine computes."""

import numpy as np

from tensorly_flycoo.engines.row_rules import Method, Operator, RowRule

#: How many steps a pass takes in the tests: those of TensorLy.
NUM_STEPS = {Method.MULTIPLY: 1, Method.HALS: 5, Method.ADMM: 10}

RULES = (
    RowRule(Method.MULTIPLY, strength=1e-9),
    RowRule(Method.HALS),
    RowRule(Method.HALS, strength=0.1),
    *(RowRule(Method.ADMM, operator, 0.05) for operator in Operator),
)


def name_rule(rule):
    return f"{rule.method.name}-{rule.operator.name}-{rule.strength}".lower()


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


def project(rows, operator, strength):
    """Apply a proximal operator to rows."""
    if operator is Operator.NON_NEGATIVE:
        return np.maximum(rows, 0)
    if operator is Operator.L1:
        return np.sign(rows) * np.maximum(np.abs(rows) - strength, 0)
    if operator is Operator.L2_SQUARE:
        return rows / (1 + 2 * strength)
    if operator is Operator.GROUP_LASSO:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows * np.maximum(1 - strength / np.where(norms > 0, norms, 1), 0)
    return rows


def update_rows(rule, targets, rows, dual, num_steps, penalty, matrix):
    """State `Engine.update_rows` in NumPy, in float64."""
    exact = targets.astype(float)
    rows = rows.astype(float)
    if rule.method is Method.ADMM:
        return _run_admm(rule, exact, rows, dual.astype(float), num_steps, penalty, matrix)
    measures = []
    for _ in range(num_steps):
        if rule.method is Method.HALS:
            rows, *measured = _sweep(rule, exact, rows, matrix)
        else:
            reached = np.maximum(rows @ matrix, rule.strength)
            rows = rows * np.maximum(exact, rule.strength) / reached
            measured = []
        measures.append(measured)
    return rows, None, np.array(measures)


def _sweep(rule, targets, rows, gram):
    rows = rows.copy()
    distance, num_changes = 0.0, 0
    for k in np.flatnonzero(gram.diagonal()):
        others = np.delete(np.arange(len(gram)), k)
        explained = rows[:, others] @ gram[k, others]
        best = np.maximum((targets[:, k] - rule.strength - explained) / gram[k, k], 0)
        distance += ((rows - best[:, None]) ** 2).sum()
        num_changes += (best != rows[:, k]).sum()
        rows[:, k] = best
    return rows, distance, num_changes


def _run_admm(rule, targets, rows, dual, num_steps, penalty, inverse):
    measures = []
    for _ in range(num_steps):
        before = rows
        split = (targets + penalty * (rows + dual)) @ inverse
        rows = project(split - dual, rule.operator, rule.strength)
        dual = dual + rows - split
        squares = [np.sum(x * x) for x in (rows - split, rows, rows - before, dual)]
        measures.append(squares)
    return rows, dual, np.array(measures)


def find_bound(num_steps, rank, dtype, size):
    """Bound the rounding of rows or a dual variable after some steps.

    An element is a sum of `rank` products and a few more operations on numbers up to `size`, so it
    is off by (rank + 8) roundings at most; a step maps an error of the last one to no more than
    four times that of the worst element, for the matrices of `draw_problem` (their inverses have
    row sums below 2, and a row and its dual variable count both).
    """
    growth = sum(4**step for step in range(min(num_steps, 4)))
    return growth * (rank + 8) * np.finfo(dtype).eps * size
