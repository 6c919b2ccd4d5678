"""Penalties of rows in NumPy: what an update computes, what it lowers, and how far a minimum is."""

import numpy as np
from row_rule_statements import update_rows

from tensorly_flycoo.engines.row_rules import Method, Operator, RowRule
from tensorly_flycoo.loop.row_updates import stops_after

#: The options and the operators that they stand for.
OPERATORS = {"l1_reg": Operator.L1, "group_lasso": Operator.GROUP_LASSO}

NUM_STEPS, TOLERANCE = 10, 1e-6


def find_norms(rows):
    return np.linalg.norm(rows, axis=1, keepdims=True)


def measure_penalty(name, strength, factor):
    """Return the penalty of a factor."""
    sizes = np.abs(factor) if name == "l1_reg" else find_norms(factor)
    return strength * sizes.sum()


def measure_rows(name, strength, rows, targets, gram):
    """Return what an update of rows lowers."""
    smooth = ((rows @ gram / 2 - targets) * rows).sum()
    return smooth + measure_penalty(name, strength, rows)


def update_densely(name, strength, rows, targets, gram):
    """Return the rows after the steps of ADMM of an update, in float64."""
    unit = np.trace(gram) / len(gram)
    gram = gram / unit
    rows = rows * unit
    dual = rows @ gram - targets
    if name == "l1_reg":
        dual = np.clip(dual, -strength, strength)
    else:
        dual = dual * np.minimum(1, strength / find_norms(dual))
    rule = RowRule(Method.ADMM, OPERATORS[name], strength)
    inverse = np.linalg.inv(gram + np.eye(len(gram)))
    num_steps = NUM_STEPS
    _, _, measures = update_rows(rule, targets, rows, dual, NUM_STEPS, 1.0, inverse)
    for step in range(NUM_STEPS):
        if stops_after(Method.ADMM, TOLERANCE, measures[0], measures[step]):
            num_steps = step + 1
            break
    updated, _, _ = update_rows(rule, targets, rows, dual, num_steps, 1.0, inverse)
    return updated / unit


def find_excess(name, strength, rows, gradient):
    """Return how far the negative gradient is from the subgradients of the penalty, at most.

    It is 0 where rows are a minimum.
    """
    force = -gradient
    if name == "l1_reg":
        beyond = np.maximum(np.abs(force) - strength, 0)
        excess = np.where(rows == 0, beyond, np.abs(force - strength * np.sign(rows)))
    else:
        norms = find_norms(rows)
        directions = rows / np.where(norms == 0, 1, norms)
        beyond = np.maximum(find_norms(force) - strength, 0)
        excess = np.where(norms == 0, beyond, find_norms(force - strength * directions))
    return excess.max()
