"""The rules of `RowRule`, as its docstring states them, in NumPy."""

import numpy as np

from tensorly_flycoo.engines.row_rules import NUM_MEASURES, Method, Operator


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
        others = np.delete(x, k, axis=1) @ np.delete(gram[k], k)
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
