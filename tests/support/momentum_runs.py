"""Runs with momentum whose update is any function, and whose data only records."""

from collections.abc import Callable
from dataclasses import dataclass

from tensorly_flycoo.loop.momentum import MomentumRun


class Data:
    """Values of missing entries, which are always those of the model imputed last."""

    values = residual = None

    def impute(self, weights, factors):
        self.values = [factor.tolist() for factor in factors]


@dataclass
class FunctionRun(MomentumRun):
    """A run whose `change` takes factors, and returns the new ones and their error."""

    change: Callable

    @classmethod
    def begin(cls, change, start, modes=None):
        options = {"tensor": None, "model": (None, list(start)), "n_iter_max": 0}
        modes = list(range(len(start))) if modes is None else modes
        return cls(Data(), modes, change, **options, has_momentum=True)

    def update(self, iteration):
        self.factors[:], error = self.change(self.factors)
        return error

    def measure(self, result):
        return result
