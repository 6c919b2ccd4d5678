"""Rules that end a run."""

import pytest

from tensorly_flycoo.loop.stopping import (
    AnyOf,
    Converged,
    Feasible,
    GivesUp,
    OutOfPatience,
    Settled,
)


@pytest.mark.parametrize(
    ("rule", "errors", "is_over"),
    [
        (Converged(0.1), [], False),
        (Converged(0.1), [0.5], False),
        (Converged(0.1), [0.5, 0.45], True),
        (Converged(0.1), [0.5, 0.55], True),
        (Converged(0.1), [0.5, 0.7], False),
        (Converged(0.1, "rec_error"), [0.5, 0.7], True),
        (Converged(0), [0.5, 0.5], False),
        (Converged(0.1, num_skipped=1), [0.5, 0.45], False),
        (Converged(0.1, num_skipped=1), [0.9, 0.5, 0.45], True),
        (Settled(0.1), [-90.0, -95.0], True),  # a loss may be negative
        (Settled(0.1), [-80.0, -95.0], False),
        (Settled(0.1), [3.0, 3.0], True),
        (Settled(0.1, skips_repeats=True), [3.0, 3.0], False),
        (OutOfPatience(2), [0.3, 0.4], False),
        (OutOfPatience(2), [0.3, 0.4, 0.4], True),
        (Feasible({0: 0.01, 2: 0.02}, 0.1), [0.5], False),
        (Feasible({0: 0.01, 2: 0.02}, 0.1), [0.5, 0.4], True),
        (Feasible({0: 0.01, 2: 0.2}, 0.1), [0.5, 0.4], False),
        (GivesUp(lambda: True), [], True),
        (AnyOf(Converged(0.1), GivesUp(lambda: False)), [0.9, 0.5], False),
        (AnyOf(Converged(0.1), GivesUp(lambda: False)), [0.5, 0.45], True),
    ],
)
def test_a_rule(rule, errors, is_over):
    assert rule.is_over(errors) is is_over


def test_an_unknown_criterion_is_refused():
    with pytest.raises(TypeError, match="cvg_criterion is 'error', expected"):
        Converged(0.1, "error").is_over([0.5, 0.4])
