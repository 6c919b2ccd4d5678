import pytest
import tensorly as tl

import tensorly_flycoo  # noqa: F401 (registers the backend)


@pytest.fixture
def flycoo_backend():
    """Run the test under the backend "flycoo"."""
    with tl.backend_context("flycoo"):
        yield
