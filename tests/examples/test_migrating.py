"""Each pair of scripts, before and after, gives the same results."""

import migrating
import pytest
import sparse
import tensorly as tl


@pytest.mark.parametrize("name", migrating.PAIRS)
def test_pair(name):
    before, after, package = migrating.PAIRS[name]
    if package == "cupy":
        pytest.skip("tests/gpu runs this pair")
    backend = tl.get_backend()
    assert migrating.compare(before, after) < 1e-8
    assert tl.get_backend() == backend


def test_a_difference_is_detected():
    def before(coords, values, shape):
        return migrating.before_dense(coords, 2 * values, shape)

    assert migrating.compare(before, migrating.after_dense) > 1e-3


def test_the_statement_about_contrib():
    from tensorly.contrib.sparse.decomposition import parafac

    x = sparse.COO(*migrating.make_data())
    with pytest.raises(TypeError):
        parafac(x, 3)
