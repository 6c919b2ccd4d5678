"""ADMM with a proximal operator that is a Python function of arrays, not one of the kernels'."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ..base.array_modules import Array, array_module, remote_aware
from ..engines.tall import multiply
from .row_shards import take_steps

#: A proximal operator: maps a factor (I, R), or some of its rows, to an array of the same shape.
Projection: TypeAlias = Callable[[Any], Any]

#: Rows of a block: its temporary arrays are small beside a long factor.
_BLOCK_ROWS = 2**16


def step_whole(
    project: Projection,
    targets: Any,
    penalty: Array,
    inverse: Array,
    rows: Any,
    dual: Any,
    num_steps: int,
) -> tuple[Any, Any, Array]:
    """Take steps of ADMM with an operator that sees all rows, as `Engine.update_rows` does.

    The factor may be row-sharded, if the operator allows it.
    """
    dtype = rows.dtype
    inverse = inverse.astype(dtype)
    penalty = penalty.astype(dtype)
    measures = []
    for _ in range(num_steps):
        before = rows
        right = targets + penalty * (rows + dual)
        split = multiply(right, inverse)
        rows = project(split - dual)
        dual = dual + rows - split
        norms = [np.linalg.norm(x) for x in (rows - split, rows, rows - before, dual)]
        measures.append(array_module(norms[0]).stack(norms).astype(np.float64) ** 2)
    return rows, dual, array_module(measures[0]).stack(measures)


def step_blocks(
    project: Projection,
    targets: Any,
    penalty: Array,
    inverse: Array,
    rows: Any,
    dual: Any,
    num_steps: int,
) -> tuple[Any, Any, Array]:
    """Take the same steps with an operator of single rows: block by block, all steps of each."""
    return take_steps(step_shard, targets, rows, dual, project, num_steps, penalty, matrix=inverse)


@remote_aware
def step_shard(
    targets: Array,
    rows: Array,
    dual: Array,
    project: Projection,
    num_steps: int,
    penalty: Array,
    inverse: Array,
) -> tuple[Array, Array, Array]:
    """Take the steps of some rows, where they are."""
    xp = array_module(targets)
    updated = xp.empty(rows.shape, rows.dtype)
    updated_dual = xp.empty(rows.shape, rows.dtype)
    measures = xp.zeros((num_steps, 4))
    for start in range(0, rows.shape[0], _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        updated[block], updated_dual[block], of_block = step_whole(
            project,
            targets[block],
            penalty,
            inverse,
            rows[block],
            dual[block],
            num_steps,
        )
        measures += of_block
    return updated, updated_dual, measures


def project_checked(prox: Projection, rows: Array) -> Array:
    """Call a user's operator; refuse a result that is not rows like those it got."""
    projected = prox(rows)
    if type(projected) is not type(rows) or projected.shape != rows.shape:
        found = type(projected).__name__
        shape = getattr(projected, "shape", None)
        raise ValueError(
            f"prox returned {found} of shape {shape} for rows {rows.shape}, expected an array of "
            "that shape: it is called with blocks of rows, and maps each row for itself"
        )
    return projected.astype(rows.dtype, copy=False)
