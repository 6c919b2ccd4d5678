"""What happens before parafac, and one MTTKRP of its loop, are short walks: few files and calls."""

import pytest
from walks import WALKS, check_walks, list_reception, list_walks_of, make_tensor

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


@pytest.mark.parametrize("kind", ["COO", "FlycooTensor"])
def test_the_reception_is_short(kind):
    """The tensor is looked for once, converted once and moved once: 18 files, 50 calls."""
    x = make_tensor().to_coo() if kind == "COO" else make_tensor()
    calls = list_reception(x)
    assert calls[0][1] == "decompose"
    assert [name for _, name in calls].count("_search") == 1
    check_walks([calls], most_files=20, most_calls=56)
