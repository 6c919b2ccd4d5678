import pytest

from tensorly_flycoo.testing import planted_tensor


@pytest.fixture
def x():
    """Return a tensor of three planted components."""
    return planted_tensor((20, 30, 40), 3, 300, noise=0.1, random_state=0)[0]
