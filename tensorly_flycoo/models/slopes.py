r"""The gradient of a CP model's loss, mode by mode, as seen from its components.

Columns of the factors are taken to norm 1, :math:`u_n`, and their norms into the size w of each
component. The slope of mode n (I_n, R) says by how much the loss falls if a vector is added to
:math:`w u_n` of a component, while the other columns stay: half the derivative of a squared error,
or the derivative of the loss of counts. It is the difference of two products of the data and of the
model with the :math:`u_m`, less that of a ridge.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import num_cells
from ..base.fit_record import FitRecord
from ..engines.tall import column_norms, multiply, sum_columns, transposed_product
from ..loop.cp_model import find_biases, multiply_all
from ..loop.masks import MissingEntries
from ..loop.observed_rows import scale_ridge
from ..loop.terracini import Projections
from ..ops.mttkrp import mttkrp, mttkrp_of_ratios
from ..tensor.tensor import FlycooTensor


class KnownCells(NamedTuple):
    """The cells that a model is compared with: the nonzeros, and zeros unless these are unknown."""

    tensor: FlycooTensor  # without missing cells
    missing: MissingEntries | None
    has_rows_only: bool  # whether all cells without a row are unknown

    @property
    def num_zeros(self) -> int:
        """The number of known cells without a nonzero."""
        if self.has_rows_only:
            return 0
        num_missing = 0 if self.missing is None else self.missing.count
        return num_cells(self.tensor.shape) - num_missing - self.tensor.nnz


class Components:
    """The components of a model that are not zero.

    Attributes
    ----------
    rank : int
        How many components the model has, those of zeros too.
    places : array (R',)
        Which are not zero.
    sizes : array (R',)
        The norms of the components.
    factors : list of array (I_n, R')
        Columns that are nearly units: multiplied by powers of two, which round nothing, so that
        their products do not overflow. The signs of the weights are in the first.
    norms : array (ndim, R')
        Of these columns: 0.5 to 1.
    cosines : array (ndim, R', R')
        Of the angles between the columns of each factor.
    """

    def __init__(self, weights: Array | None, factors: Sequence[Array]) -> None:
        all_norms = np.stack([_find_norms(factor) for factor in factors])
        all_weights = np.ones(all_norms.shape[1])
        if weights is not None:
            all_weights = move(weights, np).astype(np.float64)
        all_sizes = np.abs(all_weights) * multiply_all(all_norms)
        if not np.isfinite(all_sizes).all():
            raise ValueError("cp_tensor holds numbers that are not finite, expected finite ones")
        self.rank = all_sizes.size
        self.places = np.flatnonzero(all_sizes > 0)
        self.sizes = all_sizes[self.places]
        self.norms, exponents = np.frexp(all_norms[:, self.places])
        powers = np.ldexp(1.0, -exponents)
        powers[0] *= np.sign(all_weights[self.places])
        xp = array_module(factors[0])
        self.factors = []
        for factor, powers_of_mode in zip(factors, powers, strict=True):
            columns = xp.ascontiguousarray(factor.take(xp.asarray(self.places), axis=1))
            columns *= xp.asarray(powers_of_mode, factor.dtype)
            self.factors.append(columns)
        self.cosines = np.stack([self._find_cosines(n) for n in range(len(factors))])

    def make_model(self) -> tuple[list[Array], np.ndarray]:
        """Return factors whose products are the components, and the norms (ndim, R') of these."""
        norms = self.norms.copy()
        norms[0] = self.sizes / multiply_all(norms, skip=0)
        first, *others = self.factors
        scaled = first.astype(np.float64) * array_module(first).asarray(norms[0] / self.norms[0])
        return [scaled.astype(first.dtype), *others], norms

    def make_units(self, mode: int) -> Array:
        """Return the columns of a factor with norm 1, in float64."""
        factor = self.factors[mode]
        return factor.astype(np.float64) / array_module(factor).asarray(self.norms[mode])

    def spread(self, values: np.ndarray, missing: Any = np.nan) -> np.ndarray:
        """Return values (R',) in their places (R,), and a value for components of zeros."""
        spread = np.full(self.rank, missing, values.dtype)
        spread[self.places] = values
        return spread

    def _find_cosines(self, mode: int) -> np.ndarray:
        units = self.make_units(mode)
        cosines = move(transposed_product(units, units), np)
        np.fill_diagonal(cosines, 1)
        return cosines


class Slopes:
    """The slopes of a model beside known cells, by its record: by its loss, ridge and signs."""

    def __init__(self, known: KnownCells, components: Components, record: FitRecord) -> None:
        self.components = components
        self._x = known.tensor
        self._missing = known.missing
        self._record = record
        self._is_count = record.loss == "poisson_count"
        #: The factors of the model, of whose values products of counts and unknown cells are made.
        self._model, self._model_norms = components.make_model()
        #: The data without their values: ones.
        self._rows = self._x._map_values(np.ones_like) if known.has_rows_only else None
        #: Which columns are fitted (ndim, R'): not the constant ones of a bias.
        self.is_free = np.ones(components.norms.shape, bool)
        self._is_bias = find_biases(record, components.rank)[components.places]
        for r in np.flatnonzero(self._is_bias):
            self.is_free[:, r] = False
            mode = record.bias_modes[components.places[r]]
            if mode < self._x.ndim:  # else it is the mean, which is not fitted
                self.is_free[mode, r] = True

    def measure(self) -> tuple[float, list[Projections]]:
        """Return the norm of all slopes relative to that of their terms, and the slopes' products.

        Slopes are first multiplied by the lengths of steps. Where a factor is non-negative, a step
        ends at zero.
        """
        if not self.components.sizes.size:
            return 0.0, []
        square = 0.0
        square_of_terms = 0.0
        projections = []
        for n in range(self._x.ndim):
            terms = [self._multiply_data(n), self._multiply_model(n), self._multiply_ridge(n)]
            lengths = self._find_lengths(n)
            data, model, ridge = (term * lengths for term in terms)
            steps = data - model - ridge
            if n in self._record.non_negative:
                steps = self._limit(n, steps)
            projections.append(self._project(n, steps))
            square += _sum_squares(steps)
            roots = [_sum_squares(term) ** 0.5 for term in (data, model, ridge)]
            square_of_terms += sum(roots) ** 2
        gradient = (square / square_of_terms) ** 0.5 if square_of_terms else 0.0
        return gradient, projections

    def draw(self, random: np.random.RandomState) -> list[Projections]:
        """Return the products of the residual, each of whose cells has a random sign.

        The sign of a cell is the product of one for each of its indices: so are the signs of any
        two cells independent. The products need neither the residual nor another tensor: the rows
        of the factors get the signs. It is for least squares of all cells.
        """
        xp = self._x._engine.xp
        signs = [xp.asarray(random.choice([-1.0, 1.0], (size, 1))) for size in self._x.shape]
        components = self.components
        signed = []
        mixed = []  # U^T diag(signs) U
        for n, (factor, of_mode) in enumerate(zip(components.factors, signs, strict=True)):
            signed.append(factor * of_mode.astype(factor.dtype))
            units = components.make_units(n)
            mixed.append(move(transposed_product(units, units * of_mode), np))
        projections = []
        for n, of_mode in enumerate(signs):
            product = _divide_by_norms(mttkrp(self._x, signed, n), components.norms, n)
            weighted = components.sizes[:, None] * multiply_all(mixed, skip=n)
            product -= multiply(components.make_units(n), xp.asarray(weighted))
            projections.append(self._project(n, product * of_mode))
        return projections

    def _project(self, mode: int, product: Array) -> Projections:
        """Return the products of a mode's slopes with the units, and with themselves."""
        inner = transposed_product(self.components.make_units(mode), product)
        gram = transposed_product(product, product)
        return Projections(move(inner, np), move(gram, np))

    def _multiply_data(self, mode: int) -> Array:
        """Return the product of the data, or of their ratios to the model, with the units."""
        if self._is_count:
            smallest = float(np.sqrt(np.finfo(self._x.dtype).tiny))
            product, _ = mttkrp_of_ratios(self._x, self._model, mode, smallest)
            return _divide_by_norms(product, self._model_norms, mode)
        product = mttkrp(self._x, self.components.factors, mode)
        return _divide_by_norms(product, self.components.norms, mode)

    def _multiply_model(self, mode: int) -> Array:
        """Return the product of the model with the units; of the counts' loss that of ones."""
        components = self.components
        if self._rows is not None:
            if self._is_count:
                product = mttkrp(self._rows, self._model, mode)
            else:
                product, _ = mttkrp_of_ratios(self._rows, self._model, mode, None)
            return _divide_by_norms(product, self._model_norms, mode)
        units = components.make_units(mode)
        xp = array_module(units)
        if self._is_count:
            product = xp.ones_like(units) * self._add_other_units(mode)
        else:
            weighted = components.sizes[:, None] * multiply_all(components.cosines, skip=mode)
            product = multiply(units, xp.asarray(weighted))
        if self._missing is None:
            return product
        values = self._missing.impute(None, self._model)
        if self._is_count:
            values = self._missing.make_ones()
        out = xp.zeros(units.shape, self._x.dtype)
        self._missing.add_mttkrp(out, values, self._model, mode)
        return product - _divide_by_norms(out, self._model_norms, mode)

    def _multiply_ridge(self, mode: int) -> Array:
        """Return the slope of the ridge, of a model whose columns are equally long in all modes."""
        components = self.components
        units = components.make_units(mode)
        record = self._record
        ndim = len(components.norms)
        ridge = record.l2_reg
        if record.scale is not None:
            ridge = scale_ridge(ridge, record.scale, ndim)
        slopes = ridge * components.sizes ** (2 / ndim - 1)
        # That of a bias is for the bias itself, beside columns of ones.
        sizes = [factor.shape[0] for factor in components.factors]
        num_cells_of_row = float(np.prod(np.delete(sizes, mode)))
        of_bias = record.l2_reg * components.sizes / num_cells_of_row
        slopes = np.where(self._is_bias, of_bias, slopes)
        return units * array_module(units).asarray(slopes)

    def _find_lengths(self, mode: int) -> Array:
        """Return by what (R,) slopes are multiplied to be steps of the factor.

        It is 1 for squared errors, whose second derivatives are 1, but 0 for what is not fitted;
        for counts it is what takes an average element as far as a multiplicative update.
        """
        xp = self._x._engine.xp
        if not self._is_count:
            return xp.asarray(self.is_free[mode], np.float64)
        units = self.components.make_units(mode)
        means = xp.abs(sum_columns(units)) / units.shape[0]
        return means * xp.asarray(self.components.sizes) / self._add_other_units(mode)

    def _limit(self, mode: int, steps: Array) -> Array:
        """Limit steps so that no element becomes less than 0, in the sign of its column."""
        units = self.components.make_units(mode)
        xp = array_module(units)
        signs = xp.where(sum_columns(units) < 0, -1.0, 1.0)
        elements = signs * units * xp.asarray(self.components.sizes)
        return signs * xp.maximum(signs * steps, -elements)

    def _add_other_units(self, mode: int) -> Array:
        """Return the products of the sums of the units of all other modes."""
        sums = [sum_columns(self.components.make_units(n)) for n in range(self._x.ndim)]
        return multiply_all(sums, skip=mode)


def _divide_by_norms(product: Array, norms: np.ndarray, mode: int) -> Array:
    """Divide an MTTKRP by the norms (ndim, R') of the columns of the other factors, in float64."""
    scales = 1 / multiply_all(norms, skip=mode)
    return product.astype(np.float64) * array_module(product).asarray(scales)


def _find_norms(factor: Array) -> np.ndarray:
    return move(column_norms(factor.astype(np.float64)), np)


def _sum_squares(array: Array) -> float:
    """Return the sum of the squares of a matrix, added in a fixed order."""
    return float(np.trace(move(transposed_product(array, array), np)))
