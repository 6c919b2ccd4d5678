"""Ranks that decompositions of sparse tensors take, and those they refuse at once."""

import time

import numpy as np
import pytest
import sparse
import tensorly as tl

from tensorly_flycoo import decomposition
from tensorly_flycoo.loop.ranks import find_cp_rank, find_tucker_rank
from tensorly_flycoo.testing import random_tensor

#: Functions with one rank, and the arguments besides the tensor and the rank.
_CP = {
    "parafac": {},
    "non_negative_parafac": {},
    "non_negative_parafac_hals": {},
    "constrained_parafac": {"non_negative": True},
    "observed_parafac": {},
    "generalized_parafac": {},
    "parafac2": {},
    "shared_parafac": {"modes": []},
}
_OTHERS = ("tucker", "partial_tucker")
_WRONG = [
    (2.5, TypeError, "rank is 2.5, expected an integer: TensorLy reads a fraction"),
    (np.float32(4), TypeError, "rank is 4.0, expected an integer"),
    (-1, ValueError, "rank is -1, expected at least 1"),
    (0, ValueError, "rank is 0, expected at least 1"),
    ("4", TypeError, "rank is '4', expected an integer"),
    (True, TypeError, "rank is True, expected an integer"),
    (np.True_, TypeError, "rank is np.True_, expected an integer"),
]


@pytest.fixture(scope="module")
def x():
    """A tensor with so many cells that a rank from a fraction of them would take minutes."""
    return random_tensor((300, 400, 500), 2000, random_state=0)


def decompose(name, x, rank, home=decomposition):
    if name == "parafac2":
        x = [x[n] for n in range(3)]
    function = getattr(tl.decomposition if name == "partial_tucker" else home, name)
    return function(x, rank, **_CP.get(name, {}))


@pytest.mark.parametrize(("rank", "error", "text"), _WRONG, ids=[repr(w[0]) for w in _WRONG])
@pytest.mark.parametrize("name", [*_CP, *_OTHERS])
@pytest.mark.usefixtures("flycoo_backend")
def test_a_wrong_rank_is_refused_at_once(name, rank, error, text, x):
    start_s = time.process_time()  # other processes' load is no part of it
    is_ours = name in ("observed_parafac", "generalized_parafac", "shared_parafac")
    homes = [decomposition] if is_ours else [decomposition, tl.decomposition]
    for home in homes:
        with pytest.raises(error, match=text):
            decompose(name, x, rank, home)
    assert time.process_time() - start_s < 5


@pytest.mark.parametrize("name", [*(name for name in _CP if name != "parafac2"), "tucker"])
@pytest.mark.usefixtures("flycoo_backend")
def test_same_is_refused_for_a_sparse_tensor(name, x):
    text = "as many parameters as the tensor has cells|rank is 'same', expected an integer"
    with pytest.raises((ValueError, TypeError), match=text):
        decompose(name, x, "same")


@pytest.mark.parametrize("name", ["parafac", "hals"])
@pytest.mark.usefixtures("flycoo_backend")
def test_a_list_is_no_rank_of_a_cp_model(name, x):
    name = {"hals": "non_negative_parafac_hals"}.get(name, name)
    with pytest.raises(TypeError, match=r"rank is \[3\], expected an integer"):
        decompose(name, x, [3])


@pytest.mark.parametrize("name", ["tucker", "partial_tucker"])
@pytest.mark.usefixtures("flycoo_backend")
def test_the_ranks_of_tucker(name, x):
    with pytest.raises(TypeError, match=r"rank\[1\] is 2.5, expected an integer"):
        decompose(name, x, [2, 2.5, 2])
    with pytest.raises(ValueError, match=r"rank\[2\] is 0, expected at least 1"):
        decompose(name, x, [2, 2, 0])
    with pytest.raises(ValueError, match="rank has 2 numbers, expected 3"):
        decompose(name, x, [2, 2])
    with pytest.raises(ValueError, match="rank is None, which means as many parameters"):
        decompose(name, x, None)
    small = sparse.random((5, 6, 7), density=0.3, random_state=0)
    with pytest.warns(match="Given only one int"):
        found = getattr(tl.decomposition, name)(small, np.int64(2), n_iter_max=2)
    core = found[0][0] if name == "partial_tucker" else found.core
    assert core.shape == (2, 2, 2)


@pytest.mark.usefixtures("flycoo_backend")
def test_numpys_integers_are_integers():
    small = sparse.random((5, 6, 7), density=0.3, random_state=0)
    for rank in (np.int64(2), np.uint8(2)):
        assert tl.decomposition.parafac(small, rank, n_iter_max=2).rank == 2
        core, _ = decomposition.tucker(small, [rank, rank, 3], n_iter_max=2)
        assert core.shape == (2, 2, 3)


def test_same_is_as_in_tensorly_where_nonzeros_take_as_many_numbers_as_cells():
    x = random_tensor((8, 9, 10), 350, random_state=0)
    assert 4 * x.nnz >= 720
    assert find_cp_rank(x, "same") == tl.cp_tensor.validate_cp_rank(x.shape, "same") == 27
    assert find_tucker_rank(x, "same") == "same"
    assert find_tucker_rank(x, None) is None
    fewer = random_tensor((8, 9, 10), 100, random_state=0)
    with pytest.raises(ValueError, match="rank is 'same', which means as many parameters as"):
        find_cp_rank(fewer, "same")


def test_dense_tensors_keep_tensorlys_fractions():
    dense = np.random.default_rng(0).random((4, 5, 6))
    assert decomposition.parafac(dense, 0.5, n_iter_max=2).rank == 4
