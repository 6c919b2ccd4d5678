"""What blood tests would say of patients who had none
====================================================

Couple a sparse tensor with a table that has rows for only some of its labels.

The tensor counts which diagnoses patients had, with which drugs, in which months. A table has blood
tests of a third of them. `coupled_parafac` finds the conditions behind both. With
``missing="unknown"`` the other rows of the table are unknown, and the model predicts them; by
default they are zeros, and the model says so too. The data are made here, of conditions that the
model is not told about, and so are the tests that nobody took.

Run it::

    python examples/coupling.py
"""

import numpy as np
import tensorly as tl

from tensorly_flycoo import FlycooTensor, best_of, coupled_parafac

RANK, NUM_TESTED = 3, 100
SIZES = {"patient": 300, "diagnosis": 40, "drug": 50, "month": 12, "test": 15}
EVENTS, TESTS = ("patient", "diagnosis", "drug", "month"), ("patient", "test")


def make_data(random):
    """Return counts, the tests of all patients, and the labels of the modes."""
    factors = {name: random.gamma(0.5, size=(size, RANK)) for name, size in SIZES.items()}
    means = 0.1 * tl.cp_to_tensor((None, [factors[name] for name in EVENTS]))
    counts = FlycooTensor.from_dense(random.poisson(means).astype(float))
    tests = factors["patient"] @ factors["test"].T
    labels = {name: [f"{name} {n}" for n in range(size)] for name, size in SIZES.items()}
    return counts, tests * random.lognormal(0, 0.1, tests.shape), labels


def predict_tests(counts, tests, labels, missing):
    """Fit counts of all patients and the tests of the first ones; predict all tests."""
    tested = labels | {"patient": labels["patient"][: len(tests)]}
    blocks = [
        (counts, {name: labels[name] for name in EVENTS}),
        (tests, {name: tested[name] for name in TESTS}),
    ]
    weights = [1 / counts.norm() ** 2, 1 / (tests**2).sum()]
    options = {"block_weights": weights, "nn_modes": "all", "missing": missing}
    model = best_of(coupled_parafac, blocks, RANK, n_starts=5, random_state=0, **options).best
    weights, (patients, of_tests) = model.cp_tensors[1].to_frames()
    predicted = (patients * weights) @ of_tests.T
    return predicted.loc[labels["patient"], labels["test"]].to_numpy()


def main():
    """Run the example and return its results."""
    counts, tests, labels = make_data(np.random.RandomState(0))
    print(f"{counts}\ntests of {NUM_TESTED} of {counts.shape[0]} patients")
    unseen, errors = tests[NUM_TESTED:], {}
    for missing in ("zero", "unknown"):
        predicted = predict_tests(counts, tests[:NUM_TESTED], labels, missing)[NUM_TESTED:]
        errors[missing] = np.linalg.norm(predicted - unseen) / np.linalg.norm(unseen)
        print(f"missing={missing!r:10} relative error at tests not taken {errors[missing]:.3f}")
    return errors


if __name__ == "__main__":
    main()
