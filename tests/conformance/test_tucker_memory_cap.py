"""Tucker decompositions need memory only for factors, cores and the rows with nonzeros.

One case is tensorly/issues/101 at a sixth of its size: `partial_tucker` of modes 0 and 2, where a
product with one factor at a time has 12 columns for each cell of two modes. The other is `tucker`
of a shape too large for memory. They run in a separate process, with this file as a script.
"""

import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from test_memory_cap import _LIBRARIES_NBYTES, _SHAPES, _make_coo, _status_nbytes

_PARTIAL_SHAPE, _PARTIAL_RANK = (2500, 2500, 1500), 12
_NUM_COMMUNITIES = 20


def _make_communities():
    """Make a COO of 40,000 nonzeros, 70 % of them in 20 blocks of cells."""
    import sparse

    rng, nnz = np.random.RandomState(0), 40_000
    community = rng.randint(0, _NUM_COMMUNITIES, nnz)
    inside = rng.random_sample(nnz) < 0.7
    coords = np.stack(
        [
            np.where(
                inside,
                community + _NUM_COMMUNITIES * rng.randint(0, 3, nnz),
                rng.randint(0, size, nnz),
            )
            for size in _PARTIAL_SHAPE
        ]
    )
    return sparse.COO(coords, 1.0 + community, shape=_PARTIAL_SHAPE)


def _decompose(name):
    """Decompose in this process and print figures for the parent process to check."""
    import tensorly as tl

    import tensorly_flycoo

    tl.set_backend("flycoo")
    coo = _make_communities() if name == "partial" else _make_coo(_SHAPES[name])
    before = _status_nbytes("VmRSS")
    if name == "partial":
        rank = [_PARTIAL_RANK] * 2
        (core, factors), errors = tl.decomposition.partial_tucker(
            coo, rank, modes=[0, 2], n_iter_max=2
        )
    else:
        (core, factors), errors = tl.decomposition.tucker(
            coo, [2] * coo.ndim, n_iter_max=4, return_errors=True
        )
    peak_nbytes = _status_nbytes("VmHWM") - before
    print(
        json.dumps(
            {
                "peak_nbytes": peak_nbytes,
                "tensor_nbytes": tensorly_flycoo.FlycooTensor.from_coo(coo).nbytes,
                "arrays_nbytes": core.nbytes + sum(factor.nbytes for factor in factors),
                "is_finite": all(bool(np.isfinite(array).all()) for array in (core, *factors)),
                "errors": [float(error) for error in errors],
            }
        )
    )


@functools.cache
def _measure(name):
    finished = subprocess.run(
        [sys.executable, __file__, name],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.parametrize("name", ["partial", "2.4e19 cells"])
def test_memory_of_factors_and_cores(name):
    measured = _measure(name)
    # The core and temporaries of its norm; vectors and their copies besides the factors.
    bound = measured["tensor_nbytes"] + 6 * measured["arrays_nbytes"]
    assert measured["peak_nbytes"] <= bound + _LIBRARIES_NBYTES


@pytest.mark.parametrize("name", ["partial", "2.4e19 cells"])
def test_errors_fall(name):
    measured = _measure(name)
    assert measured["is_finite"]
    assert (np.diff(measured["errors"]) <= 1e-12).all()
    assert measured["errors"][-1] < 0.9


if __name__ == "__main__":
    _decompose(*sys.argv[1:])
