"""A warning names the line of the user's own code, whichever way the call came."""

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl

from tensorly_flycoo import FlycooCP, LabelledTensor, best_of, decomposition
from tensorly_flycoo.testing import random_tensor

pytestmark = pytest.mark.usefixtures("flycoo_backend")

X = abs(random_tensor((6, 7, 8), 100, random_state=0))
LABELLED = LabelledTensor(X, dict(zip("abc", map(np.arange, X.shape), strict=True)))
MASK = sparse.COO([[0], [1], [2]], [0.0], X.shape, fill_value=1.0)
GUESS = (None, [np.ones((size, 2)) for size in X.shape])
ZEROS = (None, [np.ones((size, 2)) * [1, 0] for size in X.shape])
SLICES = [scipy.sparse.random_array((5, 4), density=0.6, rng=n) for n in range(3)]
FEW = {"n_iter_max": 1}
TAKEN = {"init": GUESS, "normalize_factors": True, **FEW}
FIXED = {"init": GUESS, "fixed_modes": [2], **FEW}

# Each on one line, which the warning is to name.
# fmt: off
DOORS = {
    "function": lambda: decomposition.non_negative_parafac(X, 2, **TAKEN),
    "TensorLy's name": lambda: tl.decomposition.non_negative_parafac(X, 2, **TAKEN),
    "TensorLy's class": lambda: tl.decomposition.CP_NN(2, **TAKEN).fit_transform(X),
    "a table of labels": lambda: decomposition.non_negative_parafac(LABELLED, 2, **FIXED),
    "values far from 1": lambda: decomposition.non_negative_parafac(X * 1e90, 2, **FIXED),
    "a mask": lambda: decomposition.parafac(X, 2, mask=MASK, **FIXED),
    "components of zeros": lambda: decomposition.non_negative_parafac(X, 2, init=ZEROS, **FEW),
    "a penalty": lambda: decomposition.constrained_parafac(X, 2, l1_reg=1e9, init="random", **FEW),
    "ignored": lambda: decomposition.non_negative_parafac_hals(X, 2, sparsity_coefficients=[1, 1, 1], nn_modes=[0], **FEW),  # noqa: E501
    "slices": lambda: decomposition.parafac2(SLICES, 2, nn_modes=[1], **FEW),
    "Tucker": lambda: decomposition.non_negative_tucker_hals(X, 2, init=(np.ones((2, 2, 2)), GUESS[1]), fixed_modes=[2], **FEW),  # noqa: E501
    "held-out entries": lambda: decomposition.observed_parafac(X, 2, validation=-1 * X, l2_reg=1e-6, **FEW),  # noqa: E501
    "several runs": lambda: best_of(decomposition.non_negative_parafac, X, 2, 2, 0, fixed_modes=[2], **FEW),  # noqa: E501
    "an estimator": lambda: FlycooCP(2, method="non_negative_parafac", options={"fixed_modes": [2]}, n_iter_max=1).fit(X),  # noqa: E501
}
# fmt: on


@pytest.mark.parametrize("call", DOORS.values(), ids=DOORS.keys())
def test_a_warning_names_the_users_line(call):
    with pytest.warns(UserWarning) as caught:  # noqa: PT030 (each has its own text)
        call()
    ours = [warning for warning in caught if warning.category is UserWarning]  # not TensorLy's
    places = {(warning.filename, warning.lineno) for warning in ours}
    assert places == {(__file__, call.__code__.co_firstlineno)}
