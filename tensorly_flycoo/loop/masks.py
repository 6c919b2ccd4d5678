"""Missing values: entries of a sparse tensor that are imputed from a CP model in each iteration.

A mask is 1 except at the missing entries. The observed ones form one tensor, planned once. The
missing ones are `MissingEntries`, whose values change, or `MissingBlocks`, which are never listed.
MTTKRP is linear, so it is computed for both and added up.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from ..base.array_modules import Array, array_module, is_cupy, move
from ..base.checks import check_inside, densify_error
from ..engines import select_engine
from ..engines.tall import inner_product, multiply, transposed_product
from ..ops.cp_entries import choose_block_size, evaluate_model
from ..ops.ragged import RaggedTensor
from ..ops.sampling import NonzeroSampler, split_entries
from ..ops.sparse_products import add_products
from ..spread.slab_layout import SlabLayout
from ..spread.spread_layout import SpreadLayout
from ..svd.unfolding import Unfolding
from ..tensor.cells import omit_entries
from ..tensor.converters import is_raw_sparse
from ..tensor.coo_cache import as_flycoo, unwrap
from ..tensor.entrance import is_sparse
from ..tensor.labelled import LabelledTensor
from ..tensor.pieces import Piece, map_pieces, read_nonzeros
from ..tensor.tensor import FlycooTensor, rebuild
from ..tensor.unknown import are_same, check_mask_shape, list_cells, list_modes, make_mask
from .cp_model import multiply_all, residual_square
from .factor_grams import FactorGrams
from .whole_tensor import WholeTensor

if TYPE_CHECKING:
    from ..engines.entries import PieceEntries
    from ..engines.protocol import Engine

_EXPECTED = "expected a sparse.COO with fill_value 1 whose stored zeros are the missing entries"

#: Values at missing entries: a list of them, or the model that they are of, None for zeros.
Values: TypeAlias = Any


class MissingEntries:
    """The missing entries of a tensor, at least one, planned once for values that change.

    `coords` (ndim, count) are sorted and without duplicates, on the device of the tensor. `start`
    (count,) are its values there, which are only initial; `observed` is the tensor without them,
    the same object if it stores none of them.

    >>> x = FlycooTensor([[0, 1, 2], [2, 0, 1]], [2.0, 3.0, 4.0], shape=(3, 3))
    >>> missing = MissingEntries(x, np.array([[2, 0], [1, 0]]))
    >>> missing, missing.start, missing.observed.nnz
    (<MissingEntries: 2 of shape (3, 3)>, array([0., 4.]), 2)
    """

    def __init__(self, x: FlycooTensor, coords: Array) -> None:
        self.tensor = x
        self.shape = x.shape
        self.ndim = x.ndim
        self.dtype = x.dtype
        self.engine = select_engine(x._engine.local_device)
        # Building a tensor checks and sorts the coordinates, and drops duplicates.
        ones = array_module(coords).ones(coords.shape[1], x.dtype)
        sorted_entries = FlycooTensor(
            coords, ones, x.shape, layout="indexed", device=self.engine.name, slabs=1
        )
        self.coords, _ = sorted_entries._sorted_nonzeros()
        self.count = self.coords.shape[1]
        self.modes = [*range(x.ndim)]
        self.start, self.observed = split_entries(x, self.coords)

    @functools.cached_property
    def _entries(self) -> PieceEntries:
        sizes = [self.shape[n] for n in self.modes]
        return self.engine.entries(self.engine, self.coords, sizes, self.dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.count} of shape {self.shape}>"

    def of(self, x: FlycooTensor) -> Self:
        """Return the same entries of another tensor."""
        return type(self)(x, self.coords)

    def to_mask(self) -> Any:
        """Return the mask that marks these entries, a `sparse.COO` in host memory."""
        shape = [1] * self.ndim  # in modes whose indices are all alike
        for n in self.modes:
            shape[n] = self.shape[n]
        coords = np.zeros((self.ndim, self.coords.shape[1]), np.int64)
        coords[self.modes] = move(self.coords, np)
        return make_mask(coords, shape)

    def make_ones(self) -> Values:
        """Return values of one."""
        return array_module(self.coords).ones(self.count, self.dtype)

    def compare(
        self, values: Values, weights: Array | None, factors: Sequence[Array]
    ) -> tuple[Values, float, float]:
        """Impute: return new values, the sum of their squares, and of their products with changes.

        The sums are in float64.
        """
        new = self.impute(weights, factors)
        exact = new.astype(np.float64)
        square = (exact * exact).sum()
        change = ((exact - values) * exact).sum()
        return new, square, change

    def impute(self, weights: Array | None, factors: Sequence[Array]) -> Values:
        """Return the values of a CP model, which `add_mttkrp` takes."""
        return evaluate_model(self.coords, weights, factors).astype(self.dtype, copy=False)

    def sum_model(
        self, weights: Array | None, factors: Sequence[Array], *, square: bool = False
    ) -> float:
        """Add up the values of a CP model at the missing entries, or their squares, in float64."""
        values = self.impute(weights, factors)
        if square:
            values = values.astype(np.float64) ** 2
        return float(values.sum(dtype=np.float64))

    def add_mttkrp(
        self,
        out: Array,
        values: Values,
        factors: Sequence[Array],
        mode: int,
        weights: Array | None = None,
    ) -> Array:
        """Add the MTTKRP of missing entries with these `values` to `out` (I_mode, R); return it."""
        columns = {
            n: factor.astype(self.dtype, copy=False)
            for n, factor in enumerate(factors)
            if n != mode
        }
        if weights is None:
            self._entries.add_mttkrp(columns, values[:, None], mode, out)
        else:
            added = self.engine.xp.zeros_like(out)
            self._entries.add_mttkrp(columns, values[:, None], mode, added)
            out += added * weights
        return out

    def fill(self, values: Array) -> FlycooTensor:
        """Return the tensor with these values (count,) at the missing entries, without groups.

        The first call sorts the entries, and later ones reuse their order. Two kinds of tensors
        are sorted in each call: those in slabs, and those with more entries than the dtype of
        values has integers.
        """
        x = self.observed
        size = x.nnz + self.count
        if isinstance(x._layout, SlabLayout) or size * np.finfo(self.dtype).eps > 1:
            # In host memory, from where each device takes its own.
            coords = move(self.coords, np)
            values = move(values, np).astype(self.dtype)
            return rebuild(x, add_entries, coords, values, shape=x.shape, groups=None)
        xp = self.engine.xp
        numbered, observed_values = self._numbered
        all_values = xp.concatenate([observed_values, xp.asarray(values, self.dtype)])
        return numbered._map_values(lambda numbers: all_values[numbers.astype(np.int64)])

    @functools.cached_property
    def _numbered(self) -> tuple[FlycooTensor, Array]:
        """The filled tensor with numbers in place of values; and the values at observed entries.

        A number indexes the list of all values: observed ones, then those at missing entries. It
        counts from the end of the list, -1 for the last, since a tensor stores no 0.
        """
        xp = self.engine.xp
        observed_coords, observed_values = self.observed._sorted_nonzeros()
        coords = xp.concatenate([observed_coords, self.coords], axis=1)
        numbers = xp.arange(-coords.shape[1], 0)
        numbered = self.observed._rebuild(coords, numbers, self.shape, self.dtype, None)
        return numbered, observed_values

    def unfold_imputed(self, mode: int, rank: int, num_repeats: int) -> Unfolding:
        """Return an unfolding after imputing it `num_repeats` times from its leading vectors."""
        x = self.tensor
        for _ in range(num_repeats):
            unfolding = Unfolding(x, mode)
            left, _ = unfolding.svd(min(rank, *unfolding.shape))
            x = self.fill(project(x, mode, self.coords, left))
        return Unfolding(x, mode)


class MissingBlocks(MissingEntries):
    r"""Missing blocks: the entries whose indices in some modes are one of a few cells.

    In those modes S they are `coords` (s, K), sorted; in any other mode t, all indices. Their
    values are those of a CP model w', F', kept in place of them. With the products P' (K, R) of its
    rows at the cells, and :math:`G = \prod_t F_t'^T F_t`, elementwise, an MTTKRP of F adds
    :math:`P' G` times the rows of the other factors in a mode of S, and in another mode
    :math:`F_n' \, (P'^T P * \prod_{t \ne n} F_t'^T F_t)`: ``K * R**2`` operations, and ``R**2`` for
    each row of a factor. Before the first model the values are zeros, whatever `x` stores there.

    >>> x = FlycooTensor([[0, 1, 2], [2, 0, 1]], [2.0, 3.0, 4.0], shape=(3, 3))
    >>> missing = MissingBlocks(x, np.array([[0, 2]]), [0])  # two rows
    >>> missing, missing.observed.nnz
    (<MissingBlocks: 6 of shape (3, 3)>, 1)
    """

    start = None

    def __init__(self, x: FlycooTensor, cells: Array, modes: Sequence[int]) -> None:
        self.tensor = x
        self.shape = x.shape
        self.ndim = x.ndim
        self.dtype = x.dtype
        self.engine = select_engine(x._engine.local_device)
        self.modes = [*modes]
        self.coords = self.engine.xp.asarray(cells)
        self._wholes = [n for n in range(x.ndim) if n not in self.modes]  # modes of all indices
        self.count = cells.shape[1] * math.prod(x.shape[n] for n in self._wholes)
        self.observed = omit_entries(x, self.modes, self.coords)

    def of(self, x: FlycooTensor) -> Self:
        return type(self)(x, self.coords, self.modes)

    def make_ones(self) -> Values:
        xp = self.engine.xp
        return None, [xp.ones((size, 1), self.dtype) for size in self.shape]

    def impute(self, weights: Array | None, factors: Sequence[Array]) -> Values:
        return weights, [*factors]

    def compare(
        self, values: Values, weights: Array | None, factors: Sequence[Array]
    ) -> tuple[Values, float, float]:
        new = self.impute(weights, factors)
        square = self._multiply(new, new)
        if values is None:
            return new, square, square
        return new, square, square - self._multiply(values, new)

    def sum_model(
        self, weights: Array | None, factors: Sequence[Array], *, square: bool = False
    ) -> float:
        model = (weights, factors)
        if square:
            return self._multiply(model, model)
        return self._multiply(self.make_ones(), model)

    def add_mttkrp(
        self,
        out: Array,
        values: Values,
        factors: Sequence[Array],
        mode: int,
        weights: Array | None = None,
    ) -> Array:
        """Add the MTTKRP of the model `values` at the missing blocks, by the class's formulas."""
        if values is None:
            return out
        if mode in self.modes:
            added = self.engine.xp.zeros_like(out)
            self._add_to_listed_mode(added, values, factors, mode)
        else:
            added = self._multiply_whole_mode(values, factors, mode)
        if weights is not None:
            added = added * weights
        out += added
        return out

    def _add_to_listed_mode(
        self, out: Array, values: Values, factors: Sequence[Array], mode: int
    ) -> None:
        """Add the MTTKRP of a mode that the cells list: ``P' G`` times the other factors' rows."""
        _, old_factors = values
        rows = self._take_rows(values)
        grams = self._multiply_wholes(old_factors, factors)
        mixed = multiply(rows, grams).astype(self.dtype)
        columns = {
            place: factors[n].astype(self.dtype, copy=False)
            for place, n in enumerate(self.modes)
            if n != mode
        }
        self._entries.add_mttkrp(columns, mixed, self.modes.index(mode), out)

    def _multiply_whole_mode(self, values: Values, factors: Sequence[Array], mode: int) -> Array:
        """Compute the MTTKRP of a mode with all indices: F' times a matrix (R, R)."""
        _, old_factors = values
        grams = self._multiply_wholes(old_factors, factors, skip=mode)
        of_cells = transposed_product(self._take_rows(values), self._take_rows((None, factors)))
        matrix = grams * of_cells
        old_factor = old_factors[mode]
        return multiply(old_factor, matrix.astype(old_factor.dtype))

    def unfold_imputed(self, mode: int, rank: int, num_repeats: int) -> Unfolding:
        """Return an unfolding of the observed tensor: blocks are not imputed for a start."""
        return Unfolding(self.observed, mode)

    def make_gram(self, weights: Array, factors: Sequence[Array], mode: int) -> Array:
        """Return the Gram matrix (R, R) of the designs of a row's missing cells, the same for all.

        The blocks are of whole indices of `mode`, whose factor is not used.
        """
        rows = self._take_rows((weights, factors))
        of_cells = transposed_product(rows, rows)
        return of_cells * self._multiply_wholes(factors, factors, skip=mode)

    def _take_rows(self, model: Any) -> Array:
        """Multiply the rows of a model's factors at the cells: float64 (K, R)."""
        weights, factors = model
        rows_of_factors = [
            factors[n][ids].astype(np.float64)
            for n, ids in zip(self.modes, self.coords, strict=True)
        ]
        rows = multiply_all(rows_of_factors)
        if weights is None:
            return rows
        return rows * weights

    def _multiply_wholes(
        self, old: Sequence[Array], new: Sequence[Array], skip: int | None = None
    ) -> Array:
        """Multiply ``old.T @ new`` of the factors of the whole modes elementwise, in float64."""
        product = self.engine.xp.ones((old[0].shape[1], new[0].shape[1]))
        for n in self._wholes:
            if n != skip:
                old_factor = old[n].astype(np.float64)
                new_factor = new[n].astype(np.float64)
                product = product * transposed_product(old_factor, new_factor)
        return product

    def _multiply(self, old: Any, new: Any) -> float:
        """Return the inner product of two models at the missing entries."""
        _, old_factors = old
        _, new_factors = new
        of_cells = transposed_product(self._take_rows(old), self._take_rows(new))
        of_wholes = self._multiply_wholes(old_factors, new_factors)
        return float((of_cells * of_wholes).sum())


class ObservedData:
    """The observed nonzeros of a tensor, in `tensor`, and its missing entries."""

    def __init__(self, x: FlycooTensor, missing: MissingEntries | None = None) -> None:
        self.tensor = take_observed(x, missing)
        self.missing = missing
        self.xp = x._engine.xp
        self.dtype = x.dtype
        self._sent: dict[int, tuple[Array, Array]] = {}  # by mode: a factor, and the workers' copy

    def send(self, factors: Sequence[Array]) -> Sequence[Array]:
        """Return factors as a cluster's workers hold them, and without a cluster as they are.

        Each is sent once, however many products take it, so its elements must never change.
        """
        layout = self.tensor._layout
        if not isinstance(layout, SpreadLayout) or layout.build_elsewhere is None:
            return factors
        for n, factor in enumerate(factors):
            is_sent = n in self._sent and self._sent[n][0] is factor
            if not is_sent:
                self._sent[n] = (factor, layout.scatter(factor, n))
        return [self._sent[n][1] for n in range(len(factors))]


class ImputedTensor:
    """A sparse tensor whose missing entries are imputed from a model.

    `values` (count,) are those at the missing entries; initially those of the tensor itself.
    `residual` is the squared norm of the residual at the observed ones that was measured last.
    """

    residual: Array
    narrow = None  # no run with missing entries rounds, as one of a `WholeTensor` may

    def __init__(self, missing: MissingEntries) -> None:
        self.missing = missing
        self.values = missing.start
        self._observed = WholeTensor(missing.observed)

    def impute(self, weights: Array | None, factors: Sequence[Array]) -> None:
        """Set the missing entries to the values of a model."""
        self.values = self.missing.impute(weights, factors)

    def mttkrp(self, weights: Array | None, factors: Sequence[Array], mode: int) -> Array:
        """Compute the MTTKRP of observed and missing entries: (I_mode, R)."""
        observed = self._observed.mttkrp(weights, factors, mode)
        return self.missing.add_mttkrp(observed, self.values, factors, mode, weights)

    def round_factor(self, factor: Array, mode: int) -> Array:
        """Return a factor as it is."""
        return factor

    def measure(
        self,
        weights: Array | None,
        factors: Sequence[Array],
        last_mttkrp: Array | None = None,
        grams: FactorGrams | None = None,
    ) -> tuple[float, Values]:
        """Compute the relative error of a model, and its values at the missing entries.

        The error is the norm of the residual at the observed entries, relative to the norm of the
        tensor with these values. `last_mttkrp` is that of this model, computed if not given.
        """
        if last_mttkrp is None:
            last_mttkrp = self.mttkrp(weights, factors, len(factors) - 1)
        values, square, change = self.missing.compare(self.values, weights, factors)
        square = self.missing.observed._layout.norm**2 + square
        # last_mttkrp was computed with the previous values.
        inner = inner_product(last_mttkrp, factors[-1]) + change
        gram = None if grams is None else grams.multiply(weights, factors)
        self.residual = residual_square(square, weights, factors, inner, gram)
        return float(np.sqrt(self.residual / square)), values


def drop_missing(x: Any, mask: Any) -> Any:
    """Return a sparse tensor, with its labels, without the nonzeros that a mask marks as missing.

    A decomposition of `x` itself with that mask begins with the values there, as TensorLy's does,
    and may never forget them.
    """
    if isinstance(x, LabelledTensor):
        return x._replace(tensor=drop_missing(x.tensor, mask))
    return take_observed(x, find_missing(x, mask))


def take_observed(x: FlycooTensor, missing: MissingEntries | None) -> FlycooTensor:
    """Return a tensor without its missing entries, if it has some."""
    return x if missing is None else missing.observed


def find_missing(x: Any, mask: Any, *, lists: bool = False) -> MissingEntries | None:
    """Find the entries of a sparse tensor that a mask marks as missing; None if there are none.

    Without a mask there are none. A mask of size 1 in some modes is for all of their indices: it
    gives `MissingBlocks`, unless `lists`. A `MissingEntries` of `x`, which runs can share, is
    returned as it is. The entries of a RaggedTensor, which has a mask for each slice, are those of
    its matrix.
    """
    if mask is None:
        return None
    if isinstance(mask, MissingEntries) and mask.tensor is unwrap(x):
        return mask
    if isinstance(x, RaggedTensor):
        return _find_missing_of_slices(x, mask)
    if not is_sparse(x):
        raise TypeError(f"tensor is a {type(x).__name__}, expected a sparse one: mask is sparse")
    shape = tuple(x.shape)
    coords, modes = _read_mask(mask, shape, lists=lists)
    if not coords.size:
        return None
    plain = as_flycoo(x, check_coords=True)
    if len(modes) == len(shape):
        return MissingEntries(plain, coords)
    return MissingBlocks(plain, _sort_cells(coords[modes]), modes)


def _sort_cells(cells: np.ndarray) -> np.ndarray:
    """Sort cells (ndim, count) by their first index, then by the second, and so on.

    >>> _sort_cells(np.array([[1, 0, 1], [2, 5, 0]]))
    array([[0, 1, 1],
           [5, 0, 2]])
    """
    order = np.lexsort(cells[::-1])  # whose last key counts first
    return cells[:, order]


def copy_mask(mask: Any) -> Any:
    """Return a mask as a `sparse.COO`, in host memory; of slices a list with one for each."""
    if isinstance(mask, MissingEntries):
        return mask.to_mask()
    if is_raw_sparse(mask):
        return mask
    if isinstance(mask, np.ndarray) or is_cupy(mask):
        is_missing = move(mask, np) == 0
        return make_mask(np.stack(is_missing.nonzero()), mask.shape)
    return [copy_mask(mask_of_slice) for mask_of_slice in mask]


def mask_slices(mask: Any, num_slices: int) -> list[Any]:
    """Return a mask for each slice of a tensor of three modes."""
    if mask.shape[0] == 1:  # the mask of all slices
        return [mask[0]] * num_slices
    return [mask[number] for number in range(num_slices)]


def is_same_mask(mask1: Any, mask2: Any) -> bool:
    """Return whether two masks, as `copy_mask` returns them, mark the same cells; None marks none.

    A mask of three modes is compared slice by slice with a list of the slices' masks.

    >>> is_same_mask(None, [None])
    True
    >>> mask = make_mask(np.array([[0, 0], [1, 1], [0, 2]]), (2, 3, 3))
    >>> is_same_mask(mask, [mask[0], mask[1]]), is_same_mask(mask, [mask[0], mask[0]])
    (True, False)
    """
    if isinstance(mask1, list) and mask2 is not None and not isinstance(mask2, list):
        return is_same_mask(mask2, mask1)
    if isinstance(mask2, list) and mask1 is not None and not isinstance(mask1, list):
        num_slices = len(mask2)
        if len(mask1.shape) != 3 or mask1.shape[0] not in (1, num_slices):
            return False
        return _list_marked(mask_slices(mask1, num_slices)) == _list_marked(mask2)
    return _list_marked(mask1) == _list_marked(mask2)


def _list_marked(mask: Any) -> Any:
    """Return the shape of a mask and the sorted cells that it marks; None if it marks none."""
    if mask is None:
        return None
    if isinstance(mask, list):
        marked = [_list_marked(mask_of_slice) for mask_of_slice in mask]
        if not any(marked):
            return None
        return marked
    if not hasattr(mask, "coords"):
        mask = mask.asformat("coo")
    cells = mask.coords[:, mask.data == 0]
    if cells.size == 0:
        return None
    sorted_cells = _sort_cells(cells).astype(np.int64)
    return tuple(mask.shape), sorted_cells.tobytes()


def unite_masks(mask1: Any, mask2: Any, shape: Sequence[int]) -> Any:
    """Return the mask of the cells that either of two masks marks, None for no cells."""
    copies = [copy_mask(mask) for mask in (mask1, mask2) if mask is not None]
    masks = [mask for mask in copies if mask.nnz]
    if not masks:
        return None
    if len(masks) == 1:
        return masks[0]
    if masks[0].shape == masks[1].shape:  # blocks stay blocks
        blocks = [mask.coords for mask in masks]
        return make_mask(np.concatenate(blocks, axis=1), masks[0].shape)
    cells = [_list_marked_cells(mask, shape) for mask in masks]
    return make_mask(np.concatenate(cells, axis=1), shape)


def _list_marked_cells(mask: Any, shape: Sequence[int]) -> np.ndarray:
    """List all cells (ndim, count) that a mask for a tensor of this shape marks, on the host."""
    coords, _ = _read_mask(mask, tuple(shape), lists=True)
    return move(coords, np)


def extend_mask(mask: Any, added: Any, mode: int, shape: Sequence[int], old_size: int) -> Any:
    """Return a mask for a tensor to which rows of `mode` are added.

    `shape` is that of the tensor of the new rows, whose own mask is `added`: None if all of its
    cells are known. Its other modes are those of the old tensor, with `old_size` rows of `mode`.
    """
    if isinstance(added, str):
        added = None  # all cells without a row are unknown, which is no mask's matter
    is_alike = mask is None or mask.shape[mode] == 1
    if is_alike and (added is None or are_same(mask, added)):
        return mask  # the new rows were fitted with the same mask
    new_size = shape[mode]
    cells = []
    if mask is not None:
        cells.append(_list_rows(mask, mode, old_size, shape))
    if added is not None:
        new_cells = _list_rows(added, mode, new_size, shape)
        new_cells[mode] += old_size
        cells.append(new_cells)
    whole = [*shape]
    whole[mode] = old_size + new_size
    return make_mask(np.concatenate(cells, axis=1), whole)


def _list_rows(mask: Any, mode: int, size: int, shape: Sequence[int]) -> np.ndarray:
    """List the cells of a mask for `size` rows of a mode, and the `shape` of all other modes."""
    sizes = [*shape]
    sizes[mode] = size
    return _list_marked_cells(mask, sizes).copy()


def _read_mask(
    mask: Any, shape: tuple[int, ...], *, lists: bool, name: str = "mask"
) -> tuple[Array, list[int]]:
    """Return the coordinates of a mask's zeros, and the modes in which it has its full size.

    With `lists` all cells are listed, those of blocks too.
    """
    is_dense = isinstance(mask, np.ndarray) or is_cupy(mask)
    if not is_dense and not is_sparse(mask):
        raise TypeError(f"{name} is a {type(mask).__name__}, {_EXPECTED}, or a dense array")
    check_mask_shape(mask, shape, name)
    if not is_dense and (not is_raw_sparse(mask) or mask.fill_value == 0):
        instead = f"{_EXPECTED}; tensorly_flycoo.observed_parafac fits to stored entries only"
        raise densify_error("a mask that stores what is observed", shape, instead)
    coords = _find_zeros(mask, is_dense, name)
    modes = list_modes(mask.shape, shape)
    if len(modes) == len(shape):
        return coords, modes
    coords = move(coords, np)
    check_inside(coords, mask.shape)
    if coords.size and not modes:
        raise ValueError(f"{name} marks all entries as missing, expected some that are not")
    if not lists:
        return coords, modes
    return list_cells(coords, mask.shape, shape), [*range(len(shape))]


def _find_zeros(mask: Any, is_dense: bool, name: str) -> Array:
    """Return the coordinates of the zeros of a mask, which must hold only 0 and 1."""
    if not is_dense and not hasattr(mask, "coords"):
        mask = mask.asformat("coo")  # a GCXS of pydata/sparse
    values = mask if is_dense else mask.data
    is_missing = values == 0
    is_wrong = ~is_missing & (values != 1)
    first_wrong = values[is_wrong][:1]
    fill_value = getattr(mask, "fill_value", 1)
    for value in (fill_value, *first_wrong):
        if value != 1:
            raise ValueError(f"{name} holds {value}, {_EXPECTED}")
    if is_dense:
        return np.stack(is_missing.nonzero())
    return mask.coords[:, is_missing]


def _find_missing_of_slices(x: RaggedTensor, mask: Any) -> MissingEntries | None:
    """Find the entries of the matrix of all slices that the slices' masks mark; None if none."""
    if len(mask) != x.shape[0]:
        raise ValueError(f"mask has {len(mask)} slices, expected {x.shape[0]}")
    parts = []
    for k, start in enumerate(x.starts):
        shape = (int(x.row_counts[k]), x.shape[2])
        entries, _ = _read_mask(mask[k], shape, lists=True, name=f"mask[{k}]")
        first_cell = np.array([[start], [0]])  # of the slice in the matrix
        parts.append(move(entries, np) + first_cell)
    coords = np.concatenate(parts, axis=1)
    if coords.size == 0:
        return None
    return MissingEntries(x.matrix, coords)


def project(x: FlycooTensor, mode: int, coords: Array, left: Array) -> Any:
    """Project the unfolding of `x` on the span of `left` (I_mode, R); return entries at `coords`.

    >>> x = FlycooTensor([[0, 1, 1], [0, 0, 2]], [3.0, 4.0, 5.0], (2, 3))
    >>> project(x, 0, np.array([[0, 1], [0, 0]]), np.array([[0.6], [0.8]]))
    array([3., 4.])
    """
    left = left.astype(np.float64, copy=False)
    parts = map_pieces(_project, x._layout, x._engine, mode, x._engine, arrays=[coords, left])
    return sum(move(part, np) for part in parts)


def _project(piece: Piece, mode: int, engine: Engine, arrays: Sequence[Array]) -> Array:
    """Return the share of a slab's nonzeros in the entries of the projection."""
    coords, left = arrays
    if mode == piece.cut_mode:  # the columns of the unfolding are shared between slabs
        end = piece.start + piece.layout.record_format.shape[mode]
        piece_left = left[piece.start : end]
        piece_coords = coords
        is_own: Any = slice(None)
    else:
        piece_left = left
        piece_coords, is_own = piece.take_own(coords)
    rows = coords[mode][is_own]
    sampler = NonzeroSampler(piece.layout, engine)
    products = piece.xp.empty(rows.size)
    block_size = choose_block_size(left, left.shape[1])
    for start in range(0, rows.size, block_size):
        block = slice(start, start + block_size)
        # The projection at (i, j) is row i of `left` times the product of `left.T` and fibre j.
        block_coords = piece_coords[:, block]
        block_rows = rows[block]
        fibres, places, values = sampler.fibres(mode, dict(enumerate(block_coords)))
        right = add_products(values, fibres, places, piece_left, block_rows.size)
        products[block] = (left[block_rows] * right).sum(axis=1)
    added = piece.xp.zeros(coords.shape[1])
    added[is_own] = products
    return added


def add_entries(piece: Piece, coords: Array, values: Array) -> tuple[Array, Array]:
    """Return the nonzeros of a slab, and the new entries whose `coords` are in it."""
    xp = piece.xp
    new_coords = xp.asarray(coords)
    new_values = xp.asarray(values)
    _, is_own = piece.take_own(new_coords)
    old_coords, old_values = read_nonzeros(piece)
    return (
        xp.concatenate([old_coords, new_coords[:, is_own]], axis=1),
        xp.concatenate([old_values, new_values[is_own]]),
    )
