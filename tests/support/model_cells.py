"""The cells of any model, by einsum."""

import numpy as np
from tensorly.cp_tensor import CPTensor


def _read(array):
    return np.asarray(array.get() if hasattr(array, "get") else array, np.longdouble)


def read_cells(model, c=1.0):
    """Return all cells of a model divided by c, computed in the longest floats that NumPy has."""
    factors = [_read(factor) for factor in model.factors]
    if hasattr(model, "projections"):
        a, b, columns = factors
        projections, weights = map(_read, model.projections), _read(model.weights)
        rows = [p @ (b * row) for p, row in zip(projections, a * weights, strict=True)]
        cells = np.stack(rows) @ columns.T
    elif hasattr(model, "core"):
        cells = np.einsum("abc,ia,jb,kc->ijk", _read(model.core), *factors)
    elif isinstance(model, CPTensor):
        letters = "ijk"[: len(factors)]
        terms = ",".join(f"{letter}r" for letter in letters)
        cells = np.einsum(f"r,{terms}->{letters}", _read(model[0]), *factors)
    else:
        cells = factors[0].reshape(factors[0].shape[0], -1, factors[0].shape[-1])
        for core in factors[1:]:
            core = core.reshape(core.shape[0], -1, core.shape[-1])
            cells = np.einsum("aib,bjc->aijc", cells, core).reshape(len(cells), -1, core.shape[-1])
        cells = np.einsum("aia->i", cells)
    return (cells / np.longdouble(c)).astype(float)
