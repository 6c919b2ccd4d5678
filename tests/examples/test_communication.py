"""The models find the programs that scores were made of, if the mask says what is unknown."""

import communication
import numpy as np
import pytest
import tensorly as tl
from matplotlib import image


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("communication")
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        found = communication.main(folder)
    return found | {"picture": folder / "communication.png"}


def test_the_mask_is_needed(result):
    masked, unmasked, listed = result["scores"].values()
    assert unmasked < 0.6 < 0.75 < listed < 0.9 < masked


def test_programs_have_their_members_and_levels(result):
    """Whatever the random levels of single samples are, groups differ as the program says."""
    cp, found = result["cp"], []
    for r in range(cp.rank):
        members = [
            {label for label, size in cp.top(mode)[r].items() if size > 0.1}
            for mode in communication.MODES[1:]
        ]
        found.append((result["levels"][r].to_numpy(), *members))
    for levels, *members in communication.PROGRAMS.values():
        expected = [*map(set, members)]
        (own,) = (shares for shares, *others in found if others == expected)
        np.testing.assert_allclose(own, np.array(levels) / sum(levels), atol=0.15)


def test_the_mask_is_of_types_that_samples_lack(result):
    """Each sample has no row with a type that it lacks, and the tensor has one for each row."""
    table, x, mask = result["table"], result["x"], result["mask"]
    assert mask.shape == (x.shape[0], 1, *x.shape[2:])
    coords, _ = x.tensor.nonzeros()
    assert coords.shape[1] == len(table)  # seen zeros too
    assert mask[coords[0], 0, coords[2], coords[3]].all()
    assert 0.3 < 1 - mask.mean() < 0.6


def test_picture(result):
    assert np.ptp(image.imread(result["picture"])[..., :3]) > 0.5
