from pathlib import Path

import pytest
import tensorly as tl

import tensorly_flycoo  # noqa: F401 (registers the backend)

FOLDER = Path(__file__).parent

# The patches in docs/upstream are for TensorLy 0.10.
collect_ignore = [] if tl.__version__.startswith("0.10.") else ["test_upstream_patches.py"]


@pytest.fixture(params=["core", "einsum"])
def each_tenalg(request):
    """Run a test under each of TensorLy's ways to do tensor algebra."""
    before = tl.tenalg.get_backend()
    tl.tenalg.set_backend(request.param)
    yield
    tl.tenalg.set_backend(before)


def pytest_collection_modifyitems(items):
    """Put tests of clusters behind the others of this folder, whose kernels are in the cache then.

    Each worker of a cluster would compile them.
    """
    places = [place for place, item in enumerate(items) if FOLDER in item.path.parents]
    own = [items[place] for place in places]
    own.sort(key=lambda item: FOLDER / "clusters" in item.path.parents)
    for place, item in zip(places, own, strict=True):
        items[place] = item
