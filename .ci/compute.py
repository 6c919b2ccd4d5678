"""Compute with the installed package: parafac of a sparse.COO, beside dense TensorLy."""

import numpy as np
import sparse
import tensorly as tl

import tensorly_flycoo

x = sparse.random((30, 20, 10), nnz=500, random_state=0)
options = {"rank": 3, "init": "random", "random_state": 0, "n_iter_max": 20, "tol": 0}
expected, expected_errors = tl.decomposition.parafac(x.todense(), **options, return_errors=True)

tl.set_backend("flycoo")
found, errors = tl.decomposition.parafac(x, **options, return_errors=True)
np.testing.assert_allclose(errors, expected_errors, rtol=1e-9)
for factor, other in zip(found.factors, expected.factors, strict=True):
    np.testing.assert_allclose(tl.to_numpy(factor), other, rtol=1e-6, atol=1e-9)
print(f"{tensorly_flycoo.__file__}: parafac ends with dense TensorLy's error, {errors[-1]:.6f}")
