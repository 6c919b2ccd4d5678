"""Nothing as large as the dense tensor is ever made: peak memory for shapes too large for memory.

Each tensor is decomposed in a separate process, with this file as a script that prints its
measurements: by `parafac` in all ways one after another, or by a Tucker decomposition.
"""

import functools
import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

#: A shape of 160 GB as a dense float64 array, and one of 2.4e19 cells, more than 2**63.
_SHAPES = {"160 GB": (4000, 5000, 1000), "2.4e19 cells": (300_000, 400_000, 200_000, 1000)}
_OPTIONS = {
    "random": {"init": "random"},
    "linesearch": {"init": "random", "linesearch": True},
    "momentum": {"init": "random", "linesearch": "nesterov"},
    "second-order": {"init": "random", "linesearch": "gauss-newton", "n_iter_max": 8},
    "callback": {"init": "random", "callback": lambda cp_tensor, error: None},
    "normalize": {"init": "random", "normalize_factors": True},
    "svd": {},
    "randomized_svd": {"svd": "randomized_svd"},
}

#: What a decomposition may take, in bytes of its results. `parafac`: the factors, their copies for
#: the line search (the last and the extrapolated ones), the MTTKRP and the solution of the current
#: mode. Tucker: the core and temporaries of its norm; vectors and their copies besides the factors.
_RESULTS_NBYTES_MULTIPLE = {"parafac": 5, "tucker": 6, "partial_tucker": 6}

#: For libraries loaded late, the BLAS's buffers and numba's compiler; also for the Gram matrix of
#: the non-empty rows of an unfolding, 2000 x 2000, and LAPACK's copies.
_LIBRARIES_NBYTES = 200e6


def _make_coo(shape):
    """Make a COO of two small communities far apart and 1000 nonzeros anywhere."""
    import sparse

    rng = np.random.RandomState(0)
    rows = [rng.choice(size, 12, replace=False) for size in shape]
    cells = np.indices((6,) * len(shape)).reshape(len(shape), -1)
    cells = np.concatenate([cells, cells + 6], axis=1)
    communities = np.stack([row[cell] for row, cell in zip(rows, cells, strict=True)])
    anywhere = np.stack([rng.randint(0, size, 1000) for size in shape])
    coords = np.concatenate([communities, anywhere], axis=1)
    coords = np.unique(coords, axis=1)  # sparse's linear indices would overflow
    values = rng.uniform(0.5, 1.5, coords.shape[1])
    return sparse.COO(coords, values, shape=shape, sorted=True, has_duplicates=False)


def _make_communities():
    """Make tensorly/issues/101 at a sixth of its size: 70 % of 40,000 nonzeros in 20 blocks.

    A product with one factor at a time would have 12 columns for each cell of two modes.
    """
    import sparse

    shape, num_communities = (2500, 2500, 1500), 20
    rng, nnz = np.random.RandomState(0), 40_000
    community = rng.randint(0, num_communities, nnz)
    inside = rng.random_sample(nnz) < 0.7
    coords = []
    for size in shape:
        near = community + num_communities * rng.randint(0, 3, nnz)
        coords.append(np.where(inside, near, rng.randint(0, size, nnz)))
    return sparse.COO(np.stack(coords), 1.0 + community, shape=shape)


def _status_nbytes(name):
    """Return a memory figure of this process; `ru_maxrss` would include the parent's."""
    if not os.path.exists("/proc/self/status"):  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _decompose(function, shape_name):
    """Decompose in this process and print figures for the parent process to check."""
    import tensorly as tl

    import tensorly_flycoo

    tl.set_backend("flycoo")
    decompose = getattr(tl.decomposition, function)
    if function == "partial_tucker":
        coo, ways = _make_communities(), {"": {"rank": [12] * 2, "modes": [0, 2], "n_iter_max": 2}}
    else:
        coo = _make_coo(_SHAPES[shape_name])
        common = {"rank": 2, "random_state": 0, "n_iter_max": 9, "tol": 0, "return_errors": True}
        ways = {name: common | options for name, options in _OPTIONS.items()}
    if function == "tucker":
        ways = {"": {"rank": [2] * coo.ndim, "n_iter_max": 4, "return_errors": True}}
    before = _status_nbytes("VmRSS")
    measured = {}
    for name, options in ways.items():
        (core, factors), errors = decompose(coo, **options)
        arrays = factors if function == "parafac" else [core, *factors]
        measured[name] = {
            "peak_nbytes": _status_nbytes("VmHWM") - before,
            "tensor_nbytes": tensorly_flycoo.FlycooTensor.from_coo(coo).nbytes,
            "results_nbytes": sum(array.nbytes for array in arrays),
            "is_finite": all(bool(np.isfinite(array).all()) for array in arrays),
            "errors": [float(error) for error in errors],
        }
    print(json.dumps(measured))


@functools.cache
def _measure(function, shape_name):
    finished = subprocess.run(
        [sys.executable, __file__, function, shape_name],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


#: The function, the name of the shape, and the way.
CALLS = [
    *(("parafac", "2.4e19 cells", way) for way in _OPTIONS),
    *(pytest.param("parafac", "160 GB", way, marks=pytest.mark.slow) for way in _OPTIONS),
    pytest.param("tucker", "2.4e19 cells", "", marks=pytest.mark.slow),
    pytest.param("partial_tucker", "communities", "", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("function", "shape_name", "way"), CALLS)
def test_huge_shapes_need_memory_only_for_their_results(function, shape_name, way):
    measured = _measure(function, shape_name)[way]
    multiple = _RESULTS_NBYTES_MULTIPLE[function]
    bound = measured["tensor_nbytes"] + multiple * measured["results_nbytes"]
    assert measured["peak_nbytes"] <= bound + _LIBRARIES_NBYTES


@pytest.mark.parametrize(("function", "shape_name", "way"), CALLS)
def test_huge_shapes_are_decomposed(function, shape_name, way):
    measured = _measure(function, shape_name)[way]
    assert measured["is_finite"]
    errors = np.array(measured["errors"])
    if function == "parafac":
        assert len(errors) >= 7  # line search adds no error in the seventh
    # The error is the root of a sum over about 3600 nonzeros; least squares never increases it.
    assert (np.diff(errors) <= 3600 * np.finfo(float).eps).all()
    # The communities are found; the other nonzeros are noise.
    assert errors[-1] < 0.9


if __name__ == "__main__":
    _decompose(*sys.argv[1:])
