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
        is_row = _mark_rows(x)
        self.is_row = self.xp.asarray(is_row[:, None])  # and no padding
        # An eigenvalue of a Gram matrix below this part of the largest is rounding: that of the
        # matrix, in float64, or the square of that of the rows.
        rounding_of_gram = rank * 2.0**-48
        rounding_of_rows = 64 * np.finfo(self.dtype).eps
        self._cutoff = max(rounding_of_gram, rounding_of_rows**2)
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
        column_sums = multiply_matricized(x.matrix, 1, (0,), ones).astype(np.float64)
        square_of_sums = float((column_sums * column_sums).sum())
        # The means have the squared norm sum(mean**2) * num_rows.
        centred_square = self._square - square_of_sums / self.num_rows
        rounding = float(np.finfo(self.dtype).eps) * self._square
        if centred_square <= rounding:
            raise ValueError("center is True, but all rows of tensor_slices are the same")
        return centred_square

    def _average(self, x: RaggedTensor, missing: MissingEntries) -> Array:
        """Return, for each missing entry, the mean of the observed entries in its slice."""
        num_slices = len(x.order)
        num_columns = self.shape[2]
        ones = self.xp.ones((num_columns, 1), self.dtype)
        row_sums = multiply_matricized(self.matrix, 0, (1,), ones)
        host_row_sums = move(row_sums, np)[:, 0]
        # The matrix has the slices in `x.order`, each padded to its height.
        slices_of_rows = np.repeat(x.order, x.heights[x.order])
        slice_sums = np.bincount(slices_of_rows, host_row_sums, num_slices)
        rows_of_missing = move(missing.coords[0], np)
        slices_of_missing = slices_of_rows[rows_of_missing]
        num_missing = np.bincount(slices_of_missing, minlength=num_slices)
        num_observed = x.row_counts * num_columns - num_missing
        # A slice of which nothing is observed has the mean 0.
        means = slice_sums / np.maximum(num_observed, 1)
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
        self.projections = self._products = None  # frees memory
        # diag(a_k) B^T, for the slices in the order of the matrix.
        slice_weights = a[self._order].astype(np.float64)
        scaled = slice_weights[:, :, None] * b.T[None]
        # The first round: with the Gram matrix V diag(s)^-2 V^T, the columns of X_k C diag(a_k)
        # B^T V diag(s) are orthonormal.
        grams = scaled.transpose(0, 2, 1) @ self._cross(rows, rows) @ scaled
        vectors, scales = self._find_roots(grams)
        scaled_vectors = vectors * scales[:, None, :]
        bases = self._apply(rows, scaled @ scaled_vectors)
        self._fill(bases, vectors)
        # The second round: bases are orthonormal but for rounding, and so are corrected little.
        basis_grams = self._cross(bases, bases)
        rotations, scales = self._find_roots(basis_grams)
        scaled_rotations = rotations * scales[:, None, :]
        inverse_roots = scaled_rotations @ rotations.transpose(0, 2, 1)
        # The polar factor is the corrected basis times V^T.
        corrections = inverse_roots @ vectors.transpose(0, 2, 1)
        self.projections = self._apply(bases, corrections)

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
            # The sum over all slices of P_k^T X_k C diag(a_k); a slice is a row of the summands.
            slice_weights = a[self._order][:, None, :]
            weighted = self._products * slice_weights
            summands = weighted.reshape(len(weighted), -1)
            sums = sum_columns(summands)
            return sums.reshape(b.shape).astype(b.dtype)
        product = self.xp.empty_like(a, order="C")
        product[self._order] = (self._products * b).sum(axis=1)
        return product

    def measure(self, factors: Sequence[Array]) -> float:
        """Compute the relative error of a model; X C, which that takes, suits `project` next."""
        a, b, c = factors
        model = self._make_model(a, b)
        data_square = self._square
        # The inner product of data and model is that of the MTTKRP of B with B.
        mttkrp = self.mttkrp(None, factors, 1)
        inner = float((mttkrp * b).sum(dtype=np.float64))
        if self.missing is not None:  # imputed by this model, they have no error
            _, imputed_square, change = self.missing.compare(self.values, None, [model, c])
            data_square = data_square + float(imputed_square)
            inner = inner + float(change)
        gram_of_rows = self._cross(model, model).sum(axis=0)
        products = gram_of_rows * transposed_product(c, c)
        model_square = float(products.sum())
        residual_square = abs(data_square - 2 * inner + model_square)
        error = np.sqrt(residual_square / self._square)
        return float(self.dtype.type(error))

    def cross_columns(self, c: Array) -> Array:
        """Compute (X_k C)^T X_k C for each slice: (K, R, R)."""
        num_slices = self.shape[0]
        rank = c.shape[1]
        rows = self._multiply_columns(c)
        crosses = self.xp.empty((num_slices, rank, rank))
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
        slice_weights = a[self._order].astype(np.float64)
        scaled = b * slice_weights[:, None, :]
        return self._apply(self.projections, scaled)

    def _multiply_columns(self, c: Array) -> Array:
        """Compute X C, all slices multiplied by one factor: (rows, R)."""
        if self._columns[0] is not c:
            self._columns = (None, None)  # frees memory
            self._products = None
            product = self._multiply(c, 0)
            self._columns = (c, self.center_columns(product))
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
        means = sum_columns(rows) / self.num_rows
        return rows - self.is_row * means.astype(rows.dtype)  # padding stays 0

    def _split(self, rows: Array) -> Iterator[tuple[slice, slice, Array]]:
        """Yield slices with the same number I of rows, as (number, I, R) in float64."""
        num_columns = rows.shape[1]
        for slices, place in self._batches:
            num_slices = slices.stop - slices.start
            block = rows[place].reshape(num_slices, -1, num_columns)
            yield slices, place, block.astype(np.float64, copy=False)

    def _cross(self, left: Array, right: Array) -> Array:
        """Multiply the transposed rows of each slice by those of another matrix: (K, R, R)."""
        num_slices = self.shape[0]
        products = self.xp.zeros((num_slices, left.shape[1], right.shape[1]))
        pairs = zip(self._split(left), self._split(right), strict=True)
        for (slices, _, left_block), (_, _, right_block) in pairs:
            if len(left_block) == 1:  # which may be tall
                products[slices] = transposed_product(left_block[0], right_block[0])
            else:
                products[slices] = left_block.transpose(0, 2, 1) @ right_block
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
        largest = values.max(axis=1, keepdims=True)
        is_kept = values > self._cutoff * largest
        roots = np.sqrt(np.where(is_kept, values, 1.0))  # 1 where the quotient is 0 anyway
        return vectors, is_kept / roots

    def _fill(self, rows: Array, vectors: Array) -> None:
        """Replace columns that are zero, but for rounding, by columns orthogonal to the others.

        They are drawn from a fixed seed, so that results are reproducible.
        """
        for slices, place, block in self._split(rows):
            squares = (block * block).sum(axis=1, keepdims=True)
            is_zero = squares < 0.5  # the others have norm 1
            if not is_zero.any():
                continue
            basis = np.where(is_zero, 0.0, block)
            _, size, rank = basis.shape
            random_state = np.random.RandomState(0)
            numbers = self.xp.asarray(random_state.random_sample((size, rank)))
            # Between -1 and 1, over the root: columns of a norm near 1.
            random_columns = (2 * numbers - 1) / np.sqrt(size)
            filling = random_columns @ vectors[slices]
            filling *= self.is_row[place].reshape(-1, size, 1)
            filling -= basis @ (basis.transpose(0, 2, 1) @ filling)  # now orthogonal to the basis
            filled_basis = np.where(is_zero, filling, basis)
            rows[place] = filled_basis.reshape(-1, rank)


def absorb(weights: Array | None, factors: Sequence[Array]) -> list[Array]:
    """Multiply the weights into B."""
    a, b, c = factors
    if weights is not None:
        b = b * weights
    return [a, b, c]


def _mark_rows(x: RaggedTensor) -> np.ndarray:
    """Mark the rows of the matrix of all slices that are rows of a slice, and no padding."""
    # Each of these in the order in which the matrix has the slices.
    heights = x.heights[x.order]
    starts = x.starts[x.order]
    row_counts = x.row_counts[x.order]
    # For each row of the matrix: its place in its slice, which is padding from some row on.
    places_in_slices = np.arange(heights.sum()) - np.repeat(starts, heights)
    return places_in_slices < np.repeat(row_counts, heights)


def _list_batches(heights: np.ndarray) -> Iterator[tuple[slice, slice]]:
    """Yield the slices of each height, and their rows; long slices one by one.

    >>> list(_list_batches(np.array([2, 2, 5])))
    [(slice(0, 2, None), slice(0, 4, None)), (slice(2, 3, None), slice(4, 9, None))]
    """
    first = 0
    first_row = 0
    distinct_heights, counts = np.unique(heights, return_counts=True)
    for height, count in zip(distinct_heights.tolist(), counts.tolist(), strict=True):
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
