"""The slices of PARAFAC2, projected, as a tensor that is not formed."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import Array, move
from ..engines.tall import eigh, multiply, sum_columns, transposed_product
from ..ops.contraction import multiply_matricized
from ..ops.ragged import RaggedTensor
from .masks import MissingEntries, find_missing, take_observed

#: Slices with more rows are multiplied one by one, by kernels for tall matrices.
_MAX_BATCHED_ROWS = 2**12


class ProjectedSlices:
    """The tensor (K, R, J) of projected slices, which is not formed, with its MTTKRPs."""

    def __init__(self, x: RaggedTensor, rank: int, center: bool, mask: Any) -> None:
        self.missing = find_missing(x, mask)
        self.matrix = take_observed(x.matrix, self.missing)
        self.is_centred = center
        self.shape = (x.shape[0], rank, x.shape[2])
        # As of a FlycooTensor: the initial guess and checkpoints need them.
        self.device = x.matrix.device
        self.dtype = x.dtype
        self.nnz = self.matrix.nnz
        self._engine = x.matrix._engine
        self._layout = self.matrix._layout
        self.xp: Any = self._engine.xp
        # Slices are kept by height: those of one height are multiplied as one batch.
        self._order = self.xp.asarray(x.order)
        self._batches = list(_list_batches(x.heights[x.order]))
        self.num_rows = int(x.row_counts.sum())
        self.is_row = self.xp.asarray(_mark_rows(x)[:, None])  # and no padding
        # An eigenvalue of a Gram matrix below this part of the largest is rounding: that of the
        # matrix, in float64, or the square of that of the rows.
        rounding_of_rows = 64 * np.finfo(self.dtype).eps
        self._cutoff = max(rank * 2.0**-48, rounding_of_rows**2)
        self._square = float(self._layout.norm) ** 2
        if center:
            self._square = self._center_square(x)
        #: P_k for all slices, (rows, R), and P_k^T X_k C, (K, R, R).
        self.projections: Any = None
        self._products: Any = None
        #: C, and X C for all slices (rows, R).
        self._columns: tuple[Array, Array] = (None, None)
        self.values: Any = None  # at the missing entries
        if self.missing is not None:
            self.values = self._average(x, self.missing)

    def _center_square(self, x: RaggedTensor) -> float:
        """Return the squared norm of the data less the means of the columns."""
        ones = self.xp.ones((x.matrix.shape[0], 1), self.dtype)
        sums = multiply_matricized(x.matrix, 1, (0,), ones).astype(np.float64)
        centred = self._square - float((sums * sums).sum()) / self.num_rows
        if centred <= float(np.finfo(self.dtype).eps) * self._square:
            raise ValueError("center is True, but all rows of tensor_slices are the same")
        return centred

    def _average(self, x: RaggedTensor, missing: MissingEntries) -> Array:
        """Return, for each missing entry, the mean of the observed entries in its slice."""
        ones = self.xp.ones((self.shape[2], 1), self.dtype)
        row_sums = move(multiply_matricized(self.matrix, 0, (1,), ones), np)[:, 0]
        num_slices = len(x.order)
        # The matrix has the slices in `x.order`, each padded to its height.
        slices_of_rows = np.repeat(x.order, x.heights[x.order])
        slices_of_missing = slices_of_rows[move(missing.coords[0], np)]
        num_missing = np.bincount(slices_of_missing, minlength=num_slices)
        num_observed = x.row_counts * self.shape[2] - num_missing
        sums_of_slices = np.bincount(slices_of_rows, row_sums, num_slices)
        means = sums_of_slices / np.maximum(num_observed, 1)
        return self.xp.asarray(means[slices_of_missing], self.dtype)

    def impute(self, factors: Sequence[Array]) -> None:
        """Set the missing entries, if any, to the values of a model."""
        if self.missing is not None:
            a, b, c = factors
            rows = self._make_model(a, b)
            self.fill(self.missing.impute(None, [rows, c]))

    def fill(self, values: Array) -> None:
        """Set the missing entries to some values (count,)."""
        self.values = values
        self._columns = (None, None)

    def __repr__(self) -> str:
        return f"<slices projected to {self.shape}, nnz={self.nnz}>"

    def fit(self, weights: Array | None, factors: Sequence[Array]) -> float:
        """Find the projections that suit a model best; return its error."""
        absorbed = absorb(weights, factors)
        self.project(absorbed)
        return self.measure(absorbed)

    def project(self, factors: Sequence[Array]) -> None:
        """Find the projections that suit the factors best: polar factors of X_k C diag(a_k) B^T.

        The eigenvectors of their Gram matrices give orthogonal columns, with errors that a second
        round removes. Directions that a slice lacks are filled in between.
        """
        a, b, c = factors
        rows = self._multiply_columns(c)
        scaled = a[self._order][:, :, None].astype(np.float64) * b.T[None]
        self.projections = self._products = None  # frees memory
        grams = scaled.transpose(0, 2, 1) @ self._cross(rows, rows) @ scaled
        vectors, scales = self._find_roots(grams)
        bases = self._apply(rows, scaled @ (vectors * scales[:, None, :]))
        self._fill(bases, vectors)
        # The second round: bases are orthonormal but for rounding, and so are corrected little.
        rotations, scales = self._find_roots(self._cross(bases, bases))
        roots = (rotations * scales[:, None, :]) @ rotations.transpose(0, 2, 1)
        self.projections = self._apply(bases, roots @ vectors.transpose(0, 2, 1))

    def mttkrp(self, weights: None, factors: Sequence[Array], mode: int) -> Array:
        """Compute the MTTKRP of the projected slices: (K, R), (R, R) or (J, R)."""
        a, b, c = factors
        if mode == 2:
            model = self.center_columns(self._make_model(a, b))
            return self._multiply(model, 1)
        rows = self._multiply_columns(c)
        if self._products is None:
            self._products = self._cross(self.projections, rows)
        if mode == 1:
            weighted = self._products * a[self._order][:, None, :]
            sums = sum_columns(weighted.reshape(len(weighted), -1))
            return sums.reshape(b.shape).astype(b.dtype)
        product = self.xp.empty_like(a, order="C")
        product[self._order] = (self._products * b).sum(axis=1)
        return product

    def measure(self, factors: Sequence[Array]) -> float:
        """Compute the relative error of a model; X C, which that takes, suits `project` next."""
        a, b, c = factors
        model = self._make_model(a, b)
        data_square = self._square
        inner = float((self.mttkrp(None, factors, 1) * b).sum(dtype=np.float64))
        if self.missing is not None:  # imputed by this model, they have no error
            _, imputed_square, change = self.missing.compare(self.values, None, [model, c])
            data_square = data_square + float(imputed_square)
            inner = inner + float(change)
        gram = self._cross(model, model).sum(axis=0) * transposed_product(c, c)
        model_square = float(gram.sum())
        residual_square = abs(data_square - 2 * inner + model_square)
        return float(self.dtype.type(np.sqrt(residual_square / self._square)))

    def cross_columns(self, c: Array) -> Array:
        """Compute (X_k C)^T X_k C for each slice: (K, R, R)."""
        rows = self._multiply_columns(c)
        crosses = self.xp.empty((self.shape[0], c.shape[1], c.shape[1]))
        crosses[self._order] = self._cross(rows, rows)
        return crosses

    def sum_imputed(self, numbers: Array) -> Array:
        """Add up numbers (count,) at the missing entries, slice by slice: (K,)."""
        # The sum of each row, as an MTTKRP of rank 1 with a factor of ones.
        ones = self.xp.ones((self.shape[2], 1), self.dtype)
        row_sums = self.xp.zeros((self.matrix.shape[0], 1), self.dtype)
        if self.missing is not None:
            row_sums = self.missing.add_mttkrp(row_sums, numbers, [row_sums, ones], 0)
        # Then the sum of each slice, as the product of ones with its rows: (K, 1, 1).
        sums_in_order = self._cross(self.xp.ones_like(row_sums), row_sums)
        slice_sums = self.xp.empty(self.shape[0])
        slice_sums[self._order] = sums_in_order[:, 0, 0]
        return slice_sums

    def _make_model(self, a: Array, b: Array) -> Array:
        """Compute P_k B diag(a_k) for all slices: (rows, R)."""
        scaled = b * a[self._order][:, None, :].astype(np.float64)
        return self._apply(self.projections, scaled)

    def _multiply_columns(self, c: Array) -> Array:
        """Compute X C, all slices multiplied by one factor: (rows, R)."""
        if self._columns[0] is not c:
            self._columns = (None, None)  # frees memory
            self._products = None
            self._columns = (c, self.center_columns(self._multiply(c, 0)))
        return self._columns[1]

    def _multiply(self, columns: Array, mode: int) -> Array:
        """Multiply the matrix, its missing entries imputed; in mode 1 its transpose."""
        product = multiply_matricized(self.matrix, mode, (1 - mode,), columns)
        if self.missing is None:
            return product
        # An MTTKRP of a matrix, in which the factor of `mode` itself is not read.
        return self.missing.add_mttkrp(product, self.values, [columns, columns], mode)

    def center_columns(self, rows: Array) -> Array:
        """Subtract the means of columns, before a product with the transpose of X or after X C."""
        if not self.is_centred:
            return rows
        return rows - self.is_row * (sum_columns(rows) / self.num_rows).astype(rows.dtype)

    def _split(self, rows: Array) -> Iterator[tuple[slice, slice, Array]]:
        """Yield slices with the same number I of rows, as (number, I, R) in float64."""
        for slices, place in self._batches:
            shape = (slices.stop - slices.start, -1, rows.shape[1])
            yield slices, place, rows[place].reshape(shape).astype(np.float64, copy=False)

    def _cross(self, left: Array, right: Array) -> Array:
        """Multiply the transposed rows of each slice by those of another matrix: (K, R, R)."""
        products = self.xp.zeros((self.shape[0], left.shape[1], right.shape[1]))
        for (slices, _, a), (_, _, b) in zip(self._split(left), self._split(right), strict=True):
            if len(a) == 1:  # which may be tall
                products[slices] = transposed_product(a[0], b[0])
            else:
                products[slices] = a.transpose(0, 2, 1) @ b
        return products

    def _apply(self, rows: Array, matrices: Array) -> Array:
        """Multiply the rows of each slice by its matrix (R, R)."""
        products = self.xp.empty_like(rows)
        for slices, place, block in self._split(rows):
            if len(block) == 1:  # which may be tall
                product = multiply(block[0], matrices[slices][0])
            else:
                product = block @ matrices[slices]
            products[place] = product.reshape(-1, product.shape[-1])
        return products

    def _find_roots(self, grams: Array) -> tuple[Array, Array]:
        """Return eigenvectors (K, R, R) and inverse roots of eigenvalues, 0 for those near 0."""
        values, vectors = eigh(grams)
        is_kept = values > self._cutoff * values.max(axis=1, keepdims=True)
        return vectors, is_kept / np.sqrt(np.where(is_kept, values, 1.0))

    def _fill(self, rows: Array, vectors: Array) -> None:
        """Replace columns that are zero, but for rounding, by columns orthogonal to the others.

        They are drawn from a fixed seed, so that results are reproducible.
        """
        for slices, place, block in self._split(rows):
            is_zero = (block * block).sum(axis=1, keepdims=True) < 0.5  # the others have norm 1
            if not is_zero.any():
                continue
            basis = np.where(is_zero, 0.0, block)
            size, rank = basis.shape[1:]
            numbers = self.xp.asarray(np.random.RandomState(0).random_sample((size, rank)))
            # Between -1 and 1, over the root: columns of a norm near 1.
            filling = ((2 * numbers - 1) / np.sqrt(size)) @ vectors[slices]
            filling *= self.is_row[place].reshape(-1, size, 1)
            filling -= basis @ (basis.transpose(0, 2, 1) @ filling)  # now orthogonal to the basis
            rows[place] = np.where(is_zero, filling, basis).reshape(-1, rank)


def absorb(weights: Array | None, factors: Sequence[Array]) -> list[Array]:
    """Multiply the weights into B."""
    a, b, c = factors
    if weights is not None:
        b = b * weights
    return [a, b, c]


def _mark_rows(x: RaggedTensor) -> np.ndarray:
    """Mark the rows of the matrix of all slices that are rows of a slice, and no padding."""
    heights = x.heights[x.order]
    first_rows = np.repeat(x.starts[x.order], heights)
    places_in_slices = np.arange(heights.sum()) - first_rows
    return places_in_slices < np.repeat(x.row_counts[x.order], heights)


def _list_batches(heights: np.ndarray) -> Iterator[tuple[slice, slice]]:
    """Yield the slices of each height, and their rows; long slices one by one.

    >>> list(_list_batches(np.array([2, 2, 5])))
    [(slice(0, 2, None), slice(0, 4, None)), (slice(2, 3, None), slice(4, 9, None))]
    """
    first = 0
    first_row = 0
    heights_and_counts = np.stack(np.unique(heights, return_counts=True)).T
    for height, count in heights_and_counts.tolist():
        step = count
        if height > _MAX_BATCHED_ROWS:
            step = 1
        for _ in range(0, count, step):
            end = first + step
            end_row = first_row + step * height
            if height:
                yield slice(first, end), slice(first_row, end_row)
            first = end
            first_row = end_row
