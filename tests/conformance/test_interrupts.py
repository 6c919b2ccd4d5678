"""KeyboardInterrupt anywhere in our code leaves the tensor intact and unlocked.

After any Ctrl-C, a tensor has one resident mode, and its records are in that mode's order.
"""

import pytest
from interrupting import for_each_place
from problems import compute_all, make_exact_problem

from tensorly_flycoo import mttkrp
from tensorly_flycoo.engines.cpu import engine as cpu

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])


@pytest.fixture
def problem(monkeypatch):
    monkeypatch.setattr(cpu, "TILE_SIZE", 4)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 8)
    return make_exact_problem((3, 4, 5), 30)


TASKS = {
    "mttkrp in order": lambda x, factors: mttkrp(x, factors, 0),
    "mttkrp out of order": lambda x, factors: mttkrp(x, factors, 2),
    "nonzeros": lambda x, factors: x.nonzeros(),
    "scaling": lambda x, factors: 2.0 * x,
}


@pytest.mark.usual_limits("slabs")
@LAYOUTS
@pytest.mark.parametrize("name", TASKS)
def test_an_interrupt_anywhere_leaves_the_tensor_intact(problem, name, layout):
    x = problem.tensor(layout=layout)
    expected, nonzeros = compute_all(x, problem.factors), [a.tobytes() for a in x.nonzeros()]
    num_places = 0
    for interrupt in for_each_place(lambda: TASKS[name](x, problem.factors)):
        num_places += 1
        assert layout != "remap" or not x._layout.lock.locked(), interrupt
        assert [a.tobytes() for a in x.nonzeros()] == nonzeros, interrupt
        assert compute_all(x, problem.factors) == expected, interrupt
    assert num_places > 10
