"""One MTTKRP of TensorLy's loop is a short walk: few files to read, few calls to wait for."""

import pytest
from walks import WALKS, check_walks, list_walks_of, make_tensor

pytestmark = pytest.mark.usual_limits("groups", "prefixes", "slabs", "tiles")


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_is_short(name):
    check_walks(list_walks_of(name), WALKS[name].most_files, WALKS[name].most_calls)


def test_the_tensors_are_what_their_names_say():
    merged, numbered = (WALKS[name].make() for name in ("groups of modes", "numbered groups"))
    assert len(merged.groups) == len(numbered.groups) == 2
    assert merged._layout.prefixes is None
    assert numbered._layout.prefixes is not None
    assert make_tensor().slabs == 1
