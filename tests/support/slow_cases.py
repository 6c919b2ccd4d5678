"""Which cases of a test run by default, and which with --slow alone."""

import pytest


def thin_out(cases, step):
    """Mark all but every `step`-th case as slow; the others must have each value of each parameter.

    A step that shares no divisor with the numbers of values takes them all.
    """
    cases = list(cases)
    assert list_values(cases[::step]) == list_values(cases), "choose another step"
    return [
        case if number % step == 0 else pytest.param(*case, marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def list_values(cases):
    """Return the set of the texts of the values of each parameter."""
    return [{*map(str, values)} for values in zip(*cases, strict=True)]
