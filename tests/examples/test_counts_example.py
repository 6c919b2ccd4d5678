"""The example of counts runs from end to end, and its benchmark too."""

import importlib
import sys

import numpy as np
import pytest
import tensorly as tl
from matplotlib import image

from tensorly_flycoo import cp_fit
from tensorly_flycoo.testing import random_tensor


@pytest.fixture
def load():
    """Import examples in a test: they load their data, which would slow down collection."""
    yield importlib.import_module
    for name in ("counts", "benchmark_counts", "flights", "baby_names"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_likelihood_predicts_better_than_least_squares(load, tmp_path, capsys):
    arguments = ["--ranks", "3", "--iterations", "12", "--names", "200", "--output", str(tmp_path)]
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        scores = load("counts").main(arguments)
    page = capsys.readouterr().out
    assert list(scores) == ["Flights", "Baby names"]
    for title, of_methods in scores.items():
        (squares,), (likelihood,) = of_methods.values()
        assert 0 < squares[0] < likelihood[0] < 1, title
        assert squares[1] < likelihood[1], title
    assert page.count("deviance explained") == 4
    for name in ("counts.png", "counts_flights.png", "counts_baby.png"):
        pixels = image.imread(tmp_path / name)
        assert np.ptp(pixels[..., :3]) > 0.5
        assert f"Wrote {tmp_path / name}" in page


def test_counts_are_split_without_loss(load):
    counts = load("counts")
    x = random_tensor((5, 6, 7), 100, random_state=0)
    x = type(x)(x.nonzeros()[0], np.ceil(20 * x.nonzeros()[1]), x.shape)
    train, test = counts.split(x, 0)
    np.testing.assert_array_equal((train + test).to_coo().todense(), x.to_coo().todense())
    assert float(test.sum()) == pytest.approx(counts.SHARE * float(x.sum()), rel=0.2)
    factors = [np.ones((size, 1)) for size in x.shape]
    weights, raised = counts.predict((np.ones(1), factors), train)
    predicted = cp_fit(test, (weights, raised), loss="poisson_count")
    mean = float(train.sum()) / 9 / 210
    assert predicted.loss == pytest.approx(210 * mean - float(test.sum()) * np.log(mean))


@pytest.mark.slow
def test_the_benchmark_compares_from_one_start(load, capsys):
    module = load("benchmark_counts")
    # The example above draws 8 components: another rank would compile other kernels.
    results = module.main(["--rank", "8", "--sweeps", "4", "--rivals"])
    assert len(results["trace"]) == 5
    seconds, losses = zip(*results["trace"], strict=True)
    assert sorted(seconds) == list(seconds)
    assert sorted(losses, reverse=True) == list(losses)
    assert module.find_time(results["trace"], losses[2]) == seconds[2]
    assert "generalized_parafac,    1 sweeps" in capsys.readouterr().out


@pytest.mark.slow
def test_rivals_of_the_benchmark_run(load):
    module = load("benchmark_counts")
    x = random_tensor((15, 16, 17), 60, random_state=0)
    x = type(x)(x.nonzeros()[0], np.ceil(5 * x.nonzeros()[1]), x.shape)
    factors = module.draw_start(x, 2)

    class Arguments:
        apr_iterations, epochs = 2, 1

    _, loss = module.run_pyttb_apr(x, factors, Arguments)
    assert loss < module.measure(x, None, factors)
    _, loss = module.run_pyttb_gcp(x, factors, Arguments)
    assert np.isfinite(loss)


@pytest.mark.slow
def test_the_benchmark_of_binary_data(load):
    module = load("benchmark_counts")
    x = module.draw_binary((12, 7, 5), 80, 2)
    factors = module.draw_start(x, 2)
    dense = np.einsum("ir,jr,kr->ijk", *factors)
    expected = np.log1p(dense).sum() - np.log(dense[tuple(x.nonzeros()[0])]).sum()
    assert module.measure_odds(x, None, factors) == pytest.approx(expected)

    class Arguments:
        rank, epochs, rivals = 2, 2, []

    (_, first), *_, (_, last) = module.compare_on_odds(x, Arguments)["trace"]
    assert last < first
