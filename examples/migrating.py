"""Moving to flycoo: before and after
==================================

Moving to "flycoo": scripts before and after, with the same results.

Each pair below is one script twice: `before_...` without "flycoo" and `after_...` with it. Running
this file runs every pair whose packages are installed, and compares the results.

Run it::

    python examples/migrating.py

What changes
    The tensor is sparse: a `sparse.COO` or a `FlycooTensor`. Operations that would need the dense
    tensor raise `DensifyError`, which says what to use instead. With NumPy they were slow or
    ran out of memory; pydata/sparse may make an array dense silently.
    Factors have the tensor's dtype. float32 stays float32; integers and bools are counts and
    become float64. An initial guess (``init=``) must have the same dtype.
    Where results are: those of a `sparse.COO` are NumPy arrays, also if a GPU computes them, as one
    does by default. Those of a `FlycooTensor` are where it is: CuPy arrays on a GPU. Arrays beside
    a tensor may be either.

What does not change
    TensorLy's functions, classes and options, and what they return. The random start for a seed:
    TensorLy draws it with NumPy, even for a GPU. Results up to rounding: the algorithm is the
    same. Dense tensors behave as under "numpy".
"""

import importlib.util

import numpy as np
import sparse
import tensorly as tl

RANK = 3
OPTIONS = {"n_iter_max": 10, "init": "random", "random_state": 0, "tol": 0}


def make_data():
    """Return the coordinates (ndim, nnz), values and shape of a small tensor."""
    random, shape = np.random.default_rng(0), (30, 40, 50)
    cells = random.choice(np.prod(shape), 1200, replace=False)
    return np.stack(np.unravel_index(cells, shape)), random.random(1200), shape


# 1. A dense script: the dense array is never made.


def before_dense(coords, values, shape):
    from tensorly.decomposition import parafac

    tl.set_backend("numpy")
    x = np.zeros(shape)
    x[tuple(coords)] = values
    return parafac(tl.tensor(x), RANK, **OPTIONS)


def after_dense(coords, values, shape):
    from tensorly.decomposition import parafac

    import tensorly_flycoo

    tl.set_backend("flycoo")
    x = tensorly_flycoo.FlycooTensor(coords, values, shape)
    return parafac(x, RANK, **OPTIONS)


# 2. tensorly.contrib.sparse: TensorLy's own functions replace it.


def before_contrib(coords, values, shape):
    from tensorly.contrib.sparse.decomposition import parafac

    tl.set_backend("numpy")
    x = sparse.COO(coords, values, shape=shape)
    # The default, init="svd", raises a TypeError in TensorLy 0.10; with "flycoo" it works.
    return parafac(x, RANK, **OPTIONS)


def after_contrib(coords, values, shape):
    from tensorly.decomposition import parafac

    import tensorly_flycoo  # noqa: F401 (makes TensorLy know the backend)

    tl.set_backend("flycoo")
    x = sparse.COO(coords, values, shape=shape)
    return parafac(x, RANK, **OPTIONS)


# 3. The cupy backend: the sparse tensor goes to the GPU instead of a dense one.


def before_cupy(coords, values, shape):
    import cupy
    from tensorly.decomposition import parafac

    tl.set_backend("cupy")
    x = cupy.zeros(shape)
    x[tuple(cupy.asarray(coords))] = cupy.asarray(values)
    return parafac(x, RANK, **OPTIONS)


def after_cupy(coords, values, shape):
    import cupy
    from tensorly.decomposition import parafac

    import tensorly_flycoo

    tl.set_backend("flycoo")
    x = tensorly_flycoo.FlycooTensor(cupy.asarray(coords), cupy.asarray(values), shape)
    return parafac(x, RANK, **OPTIONS)


# 4. pyttb: subscripts are transposed coordinates, and components are sorted by weight.


def before_pyttb(coords, values, shape):
    import pyttb

    x = pyttb.sptensor(coords.T, values[:, None], shape)
    guess = pyttb.ktensor(make_guess(shape)[1])
    model, _, _ = pyttb.cp_als(x, RANK, maxiters=10, stoptol=0, init=guess, printitn=0)
    return model.weights, model.factor_matrices


def after_pyttb(coords, values, shape):
    from tensorly.cp_tensor import cp_normalize
    from tensorly.decomposition import parafac

    import tensorly_flycoo

    tl.set_backend("flycoo")
    x = tensorly_flycoo.FlycooTensor(coords, values, shape)
    weights, factors = cp_normalize(parafac(x, RANK, **OPTIONS))
    order = np.argsort(-tl.to_numpy(weights))
    return weights[order], [factor[:, order] for factor in factors]


def make_guess(shape):
    """Return the initial guess that TensorLy draws from the seed."""
    from tensorly.random import random_cp

    with tl.backend_context("numpy"):
        return random_cp(shape, RANK, normalise_factors=False, random_state=0)


PAIRS = {
    "a dense script": (before_dense, after_dense, None),
    "contrib.sparse": (before_contrib, after_contrib, None),
    "the cupy backend": (before_cupy, after_cupy, "cupy"),
    "pyttb": (before_pyttb, after_pyttb, "pyttb"),
}


def compare(before, after):
    """Run both scripts; return the largest difference between the tensors they model."""
    models = []
    for script in (before, after):
        with tl.backend_context(tl.get_backend()):  # the script sets the backend
            weights, factors = script(*make_data())
            arrays = [as_numpy(array) for array in (weights, *factors)]
        models.append(np.einsum("r,ir,jr,kr->ijk", *arrays))
    return np.abs(models[0] - models[1]).max()


def as_numpy(array):
    """Return a NumPy array; contrib.sparse returns sparse weights."""
    return array.todense() if hasattr(array, "todense") else tl.to_numpy(array)


def main():
    """Run every pair that can run here and print the largest differences."""
    differences = {}
    for name, (before, after, package) in PAIRS.items():
        if package is not None and importlib.util.find_spec(package) is None:
            print(f"{name:18}{package} is not installed")
            continue
        differences[name] = compare(before, after)
        print(f"{name:18}largest difference {differences[name]:.1e}")
    return differences


if __name__ == "__main__":
    main()
