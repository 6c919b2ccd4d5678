"""What users write and check the types of: mypy and pyright read this, and nothing runs it."""

import tensorly as tl

import tensorly_flycoo as tf
from tensorly_flycoo import FlycooTensor, LabelledTensor, decomposition, observed_parafac
from tensorly_flycoo.decomposition import generalized_parafac, non_negative_parafac_hals


def compute(x: FlycooTensor, y: LabelledTensor) -> list[float]:
    """Operators, which are made, and reductions to numbers."""
    for part in (abs(x), -x, x + x, 0 + x, x - x, 2 * x, x / 2, x**2):
        assert part.shape == x.shape
    for labelled in (abs(y), -y, y + y, y - y, 2 * y, y / 2, y**2, y.T):
        assert labelled.labels == y.labels
    largest: float = x.max()
    total: float = y.sum()
    return [largest, total, x.mean(), y.min(), x.norm()]


def decompose(x: FlycooTensor, y: LabelledTensor) -> None:
    """Labelled tensors go where others do."""
    model = observed_parafac(y, 3, biases=True, validation=y)
    print(model.top("user", 3), tf.cp_fit(y, model), tf.fold_in(model, y, "user"))
    non_negative_parafac_hals(y, 3, smoothness={"day": 10.0})
    decomposition.parafac(y, 3, linesearch="auto")
    decomposition.tucker(x, [2, 2, 2])
    tf.coupled_parafac([(x, ("user", "day")), y], 3).top("user")
    tf.best_of(generalized_parafac, y, 3, loss="bernoulli_odds").best.plot()
    tl.decomposition.parafac(x, 3)
