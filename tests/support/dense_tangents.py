"""Terracini's matrix of a CP model as a dense array."""

import functools

import numpy as np


def multiply_out(vectors):
    """Return the outer product of vectors as one vector."""
    return functools.reduce(np.multiply.outer, vectors).ravel()


def make_terracini(factors):
    """Return a matrix with the orthonormal tangents of each component in turn as columns."""
    columns = []
    for own in zip(*(factor.T for factor in factors), strict=True):
        units = [column / np.linalg.norm(column) for column in own]
        columns.append(multiply_out(units))
        for n, unit in enumerate(units):
            completed, _ = np.linalg.qr(unit[:, None], mode="complete")
            turned = [[*units[:n], vector, *units[n + 1 :]] for vector in completed.T[1:]]
            columns += map(multiply_out, turned)
    return np.stack(columns, axis=1)
