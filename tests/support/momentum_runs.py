"""Momentum of a sweep whose update is any function, and whose missing entries only record."""

from tensorly_flycoo.loop.acceleration import Momentum
from tensorly_flycoo.loop.run import RunModel


class FunctionSweep:
    """A sweep whose `change` takes factors, and returns the new ones and their error.

    Its missing entries `values` are always those of the model imputed last.
    """

    def __init__(self, change, start):
        self.model = RunModel(None, list(start))
        self.values = None
        self._change = change

    def update(self, iteration):
        self.model.factors[:], error = self._change(self.model.factors)
        return error

    def get_part(self, n):
        return self.model.factors[n]

    def set_part(self, n, array):
        self.model.factors[n] = array

    def impute(self):
        self.values = [factor.tolist() for factor in self.model.factors]

    def find_loss(self, error):
        return error

    def can_compare_errors(self):
        return True

    def keep(self):
        return list(self.model.factors), self.values

    def take_back(self, kept):
        self.model.factors[:], self.values = kept


def begin(change, start):
    """Return a sweep from some factors, and momentum of all of them."""
    sweep = FunctionSweep(change, start)
    return sweep, Momentum(sweep, range(len(start)))
