"""A small tensor with labels of three kinds, for the tests of labelled models."""

import numpy as np

from tensorly_flycoo import LabelledTensor
from tensorly_flycoo.testing import random_tensor

SHAPE, NAMES = (5, 6, 7), ("user", "item", "day")
LABELS = {
    "user": np.array(["ann", "bob", "cy", "di", "eve"], object),
    "item": np.array([f"item {n}" for n in range(6)]),
    "day": np.arange("2020-01-01", "2020-01-08", dtype="datetime64[D]"),
}


def make_labelled():
    """Make a LabelledTensor with 100 nonzeros."""
    return LabelledTensor(random_tensor(SHAPE, 100, random_state=0), LABELS)
