"""The migration example's pair for a GPU: the cupy backend, and "flycoo" on the GPU."""

import migrating
import tensorly as tl

import tensorly_flycoo


def test_from_the_cupy_backend():
    assert migrating.compare(migrating.before_cupy, migrating.after_cupy) < 1e-8
    # The factors of a tensor on the GPU are on the GPU too.
    with tl.backend_context("flycoo"):
        x = tensorly_flycoo.FlycooTensor(*migrating.make_data(), device="cuda")
        cp_tensor = tl.decomposition.parafac(x, 2, n_iter_max=2, init="random", random_state=0)
        assert type(cp_tensor.factors[0]).__module__.startswith("cupy")
