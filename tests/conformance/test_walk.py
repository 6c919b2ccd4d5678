"""What happens before parafac, and one MTTKRP of its loop, are short walks: few files and calls."""

import pytest
from walks import (
    MOST_OF_RECEPTION,
    MOST_OF_ROAD,
    RECEPTION_END,
    ROAD_END,
    WALKS,
    check_walks,
    list_calls_until,
    list_walks_of,
    make_tensor,
)

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
    """The tensor is looked for once, converted once and moved once."""
    x = make_tensor().to_coo() if kind == "COO" else make_tensor()
    calls = list_calls_until(RECEPTION_END, x)
    assert calls[0][1] == "decompose"
    assert [name for _, name in calls].count("_search") == 1
    check_walks([calls], *MOST_OF_RECEPTION)


def test_the_road_to_the_first_mttkrp_is_short():
    calls = list_calls_until(ROAD_END, make_tensor().to_coo())
    assert calls[-1] == ROAD_END
    check_walks([calls], *MOST_OF_ROAD)
