"""A sparse tensor minus a CP model, never formed: residuals, deflated and centred tensors.

Each operation is that of the sparse tensor minus that of the model, which needs products of factors
alone: those of the model with vectors, or with the factors of another model.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, move, share
from ..base.checks import check_coords, check_inside, densify_error
from ..engines import Engine
from ..engines.tall import (
    inner_product,
    subtract_product,
    suits_cpu_engine,
    transposed_product,
)
from ..tensor.cells import find_places
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.labelled import number_modes
from ..tensor.lazy_array import LazyArray
from ..tensor.pieces import Piece, map_pieces
from ..tensor.tensor import FlycooTensor, check_axes
from .contraction import contract_vectors, inner
from .cp_entries import evaluate_model, take_model
from .mttkrp import check_operands, mttkrp

#: Nonzeros of which the model's values are computed at once.
_BLOCK_SIZE = 2**20


@dataclasses.dataclass(eq=False, repr=False)
class ResidualTensor(LazyArray):
    r"""A sparse tensor minus a CP model: what ``x - cp_tensor`` and `center` return.

    .. math:: R[i_1, ..., i_N] = X[i_1, ..., i_N] - \sum_r w_r \prod_n A_n[i_n, r]

    Nearly every element is nonzero, so none is formed. Under the backend "flycoo" these functions
    take it: `norm`, `tenalg.inner`, `tenalg.mode_dot` and `multi_mode_dot` with vectors,
    `tenalg.unfolding_dot_khatri_rao`, the power iterations, `cp_lstsq_grad`, and `parafac` with a
    random or given start. Any other refuses it by an error that names these.

    Attributes
    ----------
    tensor : FlycooTensor
    weights : array (R,)
    factors : list of array (I_n, R)
        With the dtype of `tensor`; on its device, or on the host if the caller has it there.
    shape : tuple of int
    ndim : int
    dtype : numpy.dtype

    Notes
    -----
    ``residual - cp_tensor`` has both models, side by side. Results have the same bits in every run.
    Each is a difference of a term of the tensor and one of the model: its error is relative to
    these terms, and large beside the result where they cancel.

    Examples
    --------
    >>> import tensorly as tl
    >>> from tensorly.cp_tensor import CPTensor
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1], [0, 1]], [3.0, 4.0], shape=(2, 2))
    >>> residual = x - CPTensor((None, [np.ones((2, 1)), np.ones((2, 1))]))
    >>> residual
    <ResidualTensor: shape=(2, 2), dtype=float64, nnz=2, rank=1, device='cpu'>
    >>> residual.entries([[0, 0, 1], [0, 1, 1]])
    array([ 2., -1.,  3.])
    >>> with tl.backend_context("flycoo"):
    ...     round(tl.norm(residual) ** 2), tl.tenalg.mode_dot(residual, np.ones(2), 0)
    (15, array([1., 2.]))
    """

    tensor: FlycooTensor
    weights: Array
    factors: list[Array]

    _instead = (
        "tl.norm, tl.tenalg.inner, mode_dot with vectors, unfolding_dot_khatri_rao and "
        "tl.decomposition.parafac take it, and x.entries(coords) gives some elements"
    )

    def __post_init__(self) -> None:
        self.shape = self.tensor.shape
        self.ndim = self.tensor.ndim
        self.dtype = self.tensor.dtype
        self.source = self.tensor

    @property
    def device(self) -> str:
        return self.tensor.device

    def __repr__(self) -> str:
        return (
            f"<ResidualTensor: shape={self.shape}, dtype={self.dtype}, nnz={self.tensor.nnz}, "
            f"rank={self.weights.size}, device={self.device!r}>"
        )

    def __sub__(self, other: Any) -> Any:
        if not hasattr(other, "factors"):
            return super().__sub__(other)
        return _join(self, subtract_model(self.tensor, other))

    @mirror
    def mttkrp(self, factors: Sequence[Array], mode: int, weights: Array | None = None) -> Array:
        r"""Multiply the matricised difference by the Khatri-Rao product of the factors.

        .. math:: M - A_d (w u^T * \prod_{n \ne d} A_n^T F_n)

        with the tensor's own `mttkrp` M, and the weights w and factors A of the model.

        Parameters
        ----------
        factors : sequence of array (I_n, R)
        mode : int
        weights : array (R,), optional
            The scales u of the columns.

        Returns
        -------
        array (I_mode, R)

        Raises
        ------
        TypeError, ValueError, MemoryError
            As `mttkrp` does.

        Notes
        -----
        Beside the tensor's MTTKRP ``2 * K * R`` operations for each row of any mode, for a model of
        rank K. An element has the errors of both terms.
        """
        factors, weights = check_operands(self.tensor, factors, weights, converts=True)
        product = mttkrp(self.tensor, factors, mode, weights=weights)
        self.subtract_from(product, factors, mode, weights)
        return product

    def subtract_from(
        self, product: Array, factors: Sequence[Array], mode: int, weights: Array | None
    ) -> None:
        """Subtract the model's MTTKRP from that of the tensor, in place."""
        small = _cross_grams(self.factors, factors, skip=mode) * self.weights[:, None]
        if weights is not None:
            small = small * weights
        subtract_product(product, self.factors[mode], small)

    @mirror
    def norm(self) -> Any:
        """Return the Frobenius norm, from inner products in float64, as a scalar of the dtype.

        Notes
        -----
        The square is ``|x|^2 + |model|^2 - 2 <x, model>``, with an error of about 1e-16 times these
        terms, each with the absolute values of its numbers: below 1e-8 times the norm of `x`, a
        norm is rounding. Computed once; costs an MTTKRP of float64, or the model's values at the
        nonzeros of float32.
        """
        return self._norm

    @functools.cached_property
    def _norm(self) -> Any:
        square = self.tensor._layout.norm**2
        square -= 2 * float(_multiply_by_model(self.tensor, self))
        square += float(_multiply_models(self, self))
        return self.dtype.type(math.sqrt(max(square, 0.0)))  # rounding may leave less than 0

    @mirror
    def inner(self, other: Any) -> Any:
        """Compute the inner product with a CP model, a sparse tensor or another difference.

        Parameters
        ----------
        other : CPTensor, FlycooTensor, sparse.COO or ResidualTensor
            Of the same shape.

        Returns
        -------
        scalar
            In the dtype of the tensor. Each term is summed in float64.

        Raises
        ------
        TypeError, ValueError
            If `other` is none of these, or has another shape, dtype or device.
        """
        if isinstance(other, ResidualTensor):
            total = self._multiply_tensor(other.tensor) - self._multiply_model(other)
        elif hasattr(other, "factors"):
            total = self._multiply_model(subtract_model(self.tensor, other))
        else:
            total = self._multiply_tensor(as_flycoo(other, check_coords=True))
        return self.tensor._engine.xp.asarray(total, self.dtype)[()]

    def _multiply_tensor(self, y: FlycooTensor) -> Any:
        """Compute the inner product with a tensor."""
        return inner(self.tensor, y) - _multiply_by_model(y, self)

    def _multiply_model(self, model: ResidualTensor) -> Any:
        """Compute the inner product with the model of a difference."""
        return _multiply_by_model(self.tensor, model) - _multiply_models(self, model)

    @mirror
    def entries(self, coords: Array) -> Array:
        """Compute given elements.

        Parameters
        ----------
        coords : integer array (ndim, count)
            In any order; repeats allowed.

        Returns
        -------
        array (count,)
            In the dtype of the tensor.

        Raises
        ------
        TypeError, ValueError
            As `cp_to_entries` does.

        Notes
        -----
        ``count * ndim * (K + log(nnz))`` operations, for a model of rank K, and a copy of all
        nonzeros in their order.
        """
        x = self.tensor
        xp = x._engine.xp
        coords = move(check_coords(coords, self.shape), xp)
        check_inside(coords, self.shape)
        found = -evaluate_model(coords, self.weights, self.factors)
        if x.nnz:
            cells, values = x._sorted_nonzeros()
            is_stored, places = find_places(cells, coords, xp)
            found[is_stored] += values[places]
        return found

    @mirror
    def contract(self, vectors: Mapping[int, Array]) -> Any:
        """Contract modes with vectors.

        Parameters
        ----------
        vectors : dict of int to array (I_n,)
            By the number of the mode.

        Returns
        -------
        ResidualTensor, array (I,) or scalar
            A difference if two or more modes are left, a vector if one is, a number if none is.

        Raises
        ------
        TypeError, ValueError
            If a mode is out of range, or a vector has another length or device.

        Notes
        -----
        If one mode is left, costs an MTTKRP of rank 1; if more are, as much as building a tensor.
        """
        modes = check_axes([*vectors], self.ndim)
        contracted: Any = contract_vectors(self.tensor, [*vectors.values()], modes)
        weights = self.weights
        for mode, vector in zip(modes, vectors.values(), strict=True):
            column = share(vector).astype(self.dtype, copy=False).reshape(-1, 1)
            weights = weights * _multiply_transposed(self.factors[mode], column)[:, 0]
        factors = [factor for mode, factor in enumerate(self.factors) if mode not in modes]
        if not factors:
            return contracted - weights.sum()
        if len(factors) == 1:
            return contracted - (factors[0] * weights).sum(axis=1)
        return ResidualTensor(contracted, weights, factors)


@mirror
def subtract_model(x: FlycooTensor, cp_tensor: Any) -> ResidualTensor:
    """Subtract a CP model from a tensor; its arrays come to the dtype and device of the tensor."""
    weights, factors = take_model(cp_tensor)
    if weights is None:
        weights = x._engine.xp.ones(factors[0].shape[1], x.dtype)
    weights = weights.astype(x.dtype, copy=False)
    factors, weights = check_operands(x, factors, weights, converts=True)
    return ResidualTensor(x, weights, factors)


FlycooTensor._subtract_model = subtract_model


@mirror
def center(
    x: LabelledData | ResidualTensor, axis: int | str | Iterable[int | str] | None = None
) -> ResidualTensor:
    """Subtract the means over all modes, or all but one: ``x - x.mean(axis, keepdims=True)``.

    The zeros count. `parafac` decomposes the result. Centre that again for means over other modes.

    Parameters
    ----------
    x : FlycooTensor, LabelledTensor, sparse.COO or ResidualTensor
        Of a LabelledTensor the result has no labels.
    axis : int, str or sequence of these, optional
        The modes to average over, all but at most one, by number or name; by default all.

    Returns
    -------
    ResidualTensor
        A model of rank 1 is subtracted.

    Raises
    ------
    DensifyError
        If `axis` leaves several modes, whose means are no CP model.
    TypeError, ValueError
        If `x` is not sparse or has unknown cells, or an axis is out of range or repeated.

    Notes
    -----
    Costs an MTTKRP of rank 1. Results have the same bits in every run.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor, center
    >>> x = FlycooTensor([[0, 1], [0, 1]], [3.0, 4.0], shape=(2, 2))
    >>> center(x, axis=0).entries([[0, 1], [0, 0]])  # the columns have means 1.5 and 2
    array([ 1.5, -1.5])
    """
    numbers = number_modes(x, axis)
    if getattr(x, "unknown", None) is not None:
        raise ValueError("x has unknown cells, expected none: x.tensor has zeros in their place")
    if not isinstance(x, ResidualTensor):
        x = as_flycoo(x, check_coords=True)
    modes = check_axes(numbers, x.ndim)
    kept = [mode for mode in range(x.ndim) if mode not in modes]
    if len(kept) > 1:
        shape = tuple(x.shape[mode] for mode in kept)
        instead = "leave at most one mode, and centre the result again for means along another"
        raise densify_error(f"center with axis={axis!r}", shape, instead)
    return x - _make_means(x, modes)


def _make_means(x: Any, modes: Sequence[int]) -> CPTensor:
    """Average over all modes or all but one: a model of rank 1, constant along these modes."""
    xp = getattr(x, "tensor", x)._engine.xp
    ones = {mode: xp.ones(x.shape[mode], x.dtype) for mode in modes}
    if isinstance(x, ResidualTensor):
        sums = x.contract(ones)
    else:
        sums = contract_vectors(x, [*ones.values()], modes)
    means = sums / x.dtype.type(math.prod(x.shape[mode] for mode in modes))
    vectors = [ones.get(mode, means) for mode in range(x.ndim)]
    weights = None
    if len(modes) == x.ndim:
        weights = means.reshape(1)
    return CPTensor((weights, [vector.reshape(-1, 1) for vector in vectors]))


def _join(first: ResidualTensor, second: ResidualTensor) -> ResidualTensor:
    """Subtract the models of both from the tensor that they share."""
    weights = np.concatenate([first.weights, second.weights])
    pairs = zip(first.factors, second.factors, strict=True)
    return ResidualTensor(first.tensor, weights, [np.concatenate(pair, axis=1) for pair in pairs])


def _cross_grams(
    factors1: Sequence[Array],
    factors2: Sequence[Array],
    skip: int | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Multiply ``F1_n.T @ F2_n`` of all modes but `skip` elementwise: (R1, R2).

    With a `dtype`, the factors of one mode at a time are converted to it.
    """
    grams = []
    for mode, (factor1, factor2) in enumerate(zip(factors1, factors2, strict=True)):
        if mode == skip:
            continue
        if dtype is not None:
            factor1 = factor1.astype(dtype, copy=False)
            factor2 = factor2.astype(dtype, copy=False)
        grams.append(_multiply_transposed(factor1, factor2))
    return functools.reduce(operator.mul, grams)


def _multiply_transposed(a: Array, b: Array) -> Array:
    """Compute ``a.T @ b``, without a BLAS that would share a long inner product among threads."""
    is_vector = 1 in (a.shape[1], b.shape[1])
    if type(a) is not np.ndarray or not is_vector or suits_cpu_engine(a.T, b):
        return transposed_product(a, b)
    products = [[inner_product(left, right) for right in b.T] for left in a.T]
    return np.array(products, a.dtype)


def _multiply_models(model1: ResidualTensor, model2: ResidualTensor) -> Array:
    """Compute the inner product of the models of two differences, in float64."""
    grams = _cross_grams(model1.factors, model2.factors, dtype=np.float64)
    return (grams * model2.weights).sum(axis=1) @ model1.weights.astype(np.float64)


def _multiply_by_model(x: FlycooTensor, model: ResidualTensor) -> Array:
    """Compute the inner product of a tensor with the model of a difference, in float64."""
    if x.dtype == np.float64:
        product = mttkrp(x, model.factors, 0, weights=model.weights)
        return inner_product(product, model.factors[0])
    arrays = [array.astype(np.float64, copy=False) for array in (model.weights, *model.factors)]
    parts = map_pieces(_multiply_piece, x._layout, x._engine, x._engine, arrays=arrays)
    return sum(parts)


def _multiply_piece(piece: Piece, engine: Engine, arrays: list[Array]) -> Array:
    """Sum the products of a piece's values with the model's there, in the order of its cells."""
    weights, *factors = arrays
    records = piece.sort_records(engine)
    total = piece.xp.zeros((), np.float64)
    for start in range(0, records.shape[0], _BLOCK_SIZE):
        block = records[start : start + _BLOCK_SIZE]
        model_values = evaluate_model(piece.read_coords(block), weights, factors)
        total += (piece.read_values(block) * model_values).sum()
    return total
