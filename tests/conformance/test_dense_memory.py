"""Dense results of a CP model are refused if they exceed the free memory."""

import numpy as np
import pytest

from tensorly_flycoo.engines import select_engine
from tensorly_flycoo.tensor.dense_memory import check_khatri_rao_fits, check_product_fits

MATRICES = [np.ones((2**10, 2)), np.ones((2**9, 2)), np.ones((2**8, 2))]
NBYTES = 2**27 * 2 * 8


@pytest.fixture
def free(monkeypatch):
    """Set the bytes that are free."""

    def set_free(nbytes):
        engine = select_engine("cpu")
        monkeypatch.setattr(engine, "count_free_nbytes", lambda: nbytes)

    return set_free


def test_what_fits_is_not_refused(free):
    for nbytes in (NBYTES, None):
        free(nbytes)
        check_khatri_rao_fits(MATRICES)


def test_what_does_not_fit_is_refused(free):
    free(NBYTES - 1)
    message = r"khatri_rao of shape \(134217728, 2\) needs .* 2.15 GB; 2.15 GB is free"
    with pytest.raises(MemoryError, match=message):
        check_khatri_rao_fits(MATRICES)


def test_a_product_that_does_not_fit_is_refused(free):
    a, b = np.ones((2**14, 2)), np.ones((2, 2**14))
    free(2**31)
    check_product_fits(a, b)
    free(2**31 - 1)
    message = r"tl\.dot of shape \(16384, 16384\) needs .* 2.15 GB; 2.15 GB is free"
    with pytest.raises(MemoryError, match=message):
        check_product_fits(a, b)


@pytest.mark.parametrize("shapes", [((2**27, 2), (2, 2)), ((2**27,), (2**27,)), ((), (2**27, 2))])
def test_products_that_are_no_larger_than_their_operands(free, shapes):
    free(0)
    check_product_fits(*(np.broadcast_to(1.0, shape) for shape in shapes))


def test_one_matrix_is_not_a_product(free):
    free(0)
    check_khatri_rao_fits(MATRICES[:2], skip_matrix=1)


def test_small_products_are_not_compared(free):
    free(0)
    check_khatri_rao_fits(MATRICES, skip_matrix=0)
