"""The memory of singular vectors of unfoldings, predicted from the sizes of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..format.partition import find_longest_mode
from ..format.primitives import index_dtype
from ..start.eigen import MAX_BLOCKS, MAX_GRAM_SIZE, choose_width
from ..start.gram import choose_dtype, choose_max_blocks, is_cheap_to_form

if TYPE_CHECKING:
    from ..engines.protocol import Engine

#: Bytes for each nonzero of an unfolding that is split into columns: a flag, its row and its value;
#: and for each in a shared column.
_ENTRY_NBYTES, _SHARED_NBYTES = 13, 24

#: Bytes for each row of an unfolding: sums of squares of values alone in their columns, and these
#: together with what finds the coupled rows.
_ROW_NBYTES, _FINDING_NBYTES = 16, 33


def count_svd_nbytes(
    engine: Engine,
    shape: Sequence[int],
    nnz: int,
    dtype: np.dtype,
    mode: int,
    rank: int,
    num_slabs: int | None = None,
) -> int:
    """Count the bytes at the peak of one unfolding's singular vectors beyond those of the tensor.

    The number of coupled rows is that of nonzeros spread evenly.
    """
    num_slabs = num_slabs or engine.choose_num_slabs(nnz)
    if num_slabs > 1 or engine.devices is not None:
        return _SlabWork(engine, shape, nnz, dtype, mode, rank, num_slabs).count_nbytes()
    size, num_columns = shape[mode], math.prod(shape) // shape[mode]
    num_shared, num_coupled = _count_coupled(shape, nnz, mode)
    listing, kept = _count_listing_nbytes(engine, shape, nnz, mode), _ROW_NBYTES * size
    if num_coupled == 0:
        return max(listing, kept + size * rank * dtype.itemsize)
    work = _count_eigen_nbytes(engine, num_coupled, num_shared, num_columns, dtype, rank)
    left = size * rank * dtype.itemsize + num_coupled * rank * dtype.itemsize
    return max(listing, kept + _SHARED_NBYTES * num_shared + max(work, left))


def count_cluster_nbytes(
    engine: Engine,
    shape: Sequence[int],
    nnz: int,
    dtype: np.dtype,
    mode: int,
    rank: int,
    num_slabs: int,
    num_workers: int,
) -> tuple[int, int]:
    """Count what `count_svd_nbytes` does, of a tensor on a cluster: on the client, on a worker."""
    work = _SlabWork(engine, shape, nnz, dtype, mode, rank, num_slabs)
    return work.count_client_nbytes(), work.count_worker_nbytes(num_workers)


def _count_coupled(shape: Sequence[int], nnz: int, mode: int) -> tuple[int, int]:
    """Count the nonzeros in shared columns, and the coupled rows, of nonzeros spread evenly."""
    size, num_columns = shape[mode], math.prod(shape) // shape[mode]
    num_shared = round(nnz * -math.expm1(-nnz / num_columns))
    return num_shared, round(size * -math.expm1(-num_shared / size))


def _count_listing_nbytes(engine: Engine, shape: Sequence[int], nnz: int, mode: int) -> int:
    """Count the bytes at the peak of listing the entries of an unfolding."""
    place_nbytes = index_dtype(nnz).itemsize
    ordering = 2 * place_nbytes * nnz + engine.sort_places_nbytes(nnz, tuple(shape))
    num_places = (mode > 0) + (0 < mode < len(shape) - 1)  # orders kept while entries are split
    splitting = (_ENTRY_NBYTES + num_places * place_nbytes) * nnz
    finding = _ENTRY_NBYTES * nnz + _FINDING_NBYTES * shape[mode]
    return max(ordering, splitting, finding)


@dataclass(frozen=True)
class _SlabWork:
    """The singular vectors of an unfolding of a tensor in slabs: see `UnfoldingGram`."""

    engine: Engine
    shape: Sequence[int]
    nnz: int
    dtype: np.dtype
    mode: int
    rank: int
    num_slabs: int

    def count_nbytes(self) -> int:
        size = self.shape[self.mode]
        kept = (_ROW_NBYTES + 1) * size
        left = (size + self._num_coupled) * self.rank * self.dtype.itemsize
        if is_cheap_to_form(self.engine, size, self.nnz // 2):  # group by group
            forming = _ENTRY_NBYTES * self._share(self.nnz) + self._gram_nbytes
            forming += _SHARED_NBYTES * self._share(self._num_shared)
            left = max(left, 8 * self._num_coupled**2)
            return kept + 8 * size**2 + max(self._listing_nbytes, forming, left)
        shared_nbytes = _SHARED_NBYTES * self._num_shared
        held = self.engine.share_nbytes(shared_nbytes, self.num_slabs)
        earlier = held - self._share(held)
        eigen = 8 * size + held + max(left, self._count_eigen_nbytes())
        return kept + max(earlier + self._listing_nbytes, eigen if self._num_coupled else left)

    def count_client_nbytes(self) -> int:
        """Count the bytes at the peak of the client, when the groups are on workers."""
        size, coupled = self.shape[self.mode], self._num_coupled
        kept = (_ROW_NBYTES + 1) * size
        left = (size + coupled) * self.rank * self.dtype.itemsize
        if is_cheap_to_form(self.engine, size, self.nnz // 2):
            return kept + 8 * size**2 + max(8 * self._own_size**2, 8 * coupled**2, left)
        if coupled and is_cheap_to_form(self.engine, coupled, self._num_shared // 2 + 1):
            return kept + 8 * coupled**2 + max(8 * self._own_size**2, left)
        dtype = choose_dtype(coupled, self.dtype)
        num_blocks = _count_basis_blocks(coupled, self.rank, dtype) + 3 if coupled else 0
        row_nbytes = choose_width(self.rank, coupled) * dtype.itemsize
        return kept + 8 * size + max(left, num_blocks * coupled * row_nbytes)

    def count_worker_nbytes(self, num_workers: int) -> int:
        """Count the bytes at the peak of a worker with the most groups.

        A worker holds its groups' shared columns, their sums until the client has them, and in the
        cut mode the records that are on their way to two groups.
        """
        size, num_own = self.shape[self.mode], -(-self._num_groups // num_workers)
        held = _SHARED_NBYTES * num_own * self._share(self._num_shared)
        sums = num_own * (_ROW_NBYTES * size + 8 * self._own_size)
        listing = held + sums + self._listing_nbytes
        if self.mode == find_longest_mode(self.shape):
            record_format = self.engine.choose_cut(self.shape, self.dtype).record_format
            listing += 2 * record_format.record_nbytes * self._share(self.nnz)
        if is_cheap_to_form(self.engine, self._num_coupled, self._num_shared // 2 + 1):
            return max(listing, held + 2 * self._gram_nbytes)  # and the copy that is sent
        tensor, building, row_nbytes, product = self._plan_products()
        tensors = num_own * (tensor + product * row_nbytes)
        return max(listing, held + tensors + max(0, building - tensor))

    @property
    def _num_shared(self) -> int:
        return _count_coupled(self.shape, self.nnz, self.mode)[0]

    @property
    def _num_coupled(self) -> int:
        return _count_coupled(self.shape, self.nnz, self.mode)[1]

    @property
    def _num_groups(self) -> int:
        return max(1, min(self.num_slabs, self.nnz, max(self.shape)))

    def _share(self, count: int) -> int:
        return -(-count // self._num_groups)

    @property
    def _listing_nbytes(self) -> int:
        """Bytes at the peak of listing the entries of a group, and its shared columns."""
        engine, nnz = self.engine, self._share(self.nnz)
        size = self.shape[self.mode]
        shared = _SHARED_NBYTES * self._share(self._num_shared)
        finding = _ENTRY_NBYTES * nnz + 26 * size + shared
        cut_mode = find_longest_mode(self.shape)
        if self.mode != cut_mode:
            shape = [*self.shape]
            shape[cut_mode] = self._share(shape[cut_mode])
            return max(_count_listing_nbytes(engine, shape, nnz, self.mode), finding)
        # The group's records, taken from all slabs, and their order by all modes.
        record_format = engine.choose_cut(self.shape, self.dtype).record_format
        records, places = record_format.record_nbytes * nnz, index_dtype(nnz).itemsize * nnz
        sorting = 3 * places + engine.sort_places_nbytes(nnz, tuple(self.shape))
        splitting = places + _ENTRY_NBYTES * nnz
        return max(records + max(records, sorting, splitting), finding)

    @property
    def _gram_nbytes(self) -> int:
        """Bytes to form the Gram matrix of a group."""
        num_columns = self._share(min(self._num_columns, self._num_shared // 2 + 1))
        return self.engine.gram_nbytes(self._own_size, num_columns)

    @property
    def _own_size(self) -> int:
        """The number of coupled rows of a group."""
        if self._num_coupled == 0:
            return 0
        own_shared = self._share(self._num_shared)
        return round(self._num_coupled * -math.expm1(-own_shared / self._num_coupled))

    @property
    def _num_columns(self) -> int:
        return math.prod(self.shape) // self.shape[self.mode]

    def _count_eigen_nbytes(self) -> int:
        """Count the bytes for the leading eigenvectors of the coupled rows."""
        engine, size = self.engine, self._num_coupled
        num_columns = min(self._num_columns, self._num_shared // 2 + 1)
        if is_cheap_to_form(engine, size, num_columns):
            return 8 * size**2 + self._gram_nbytes
        tensor, building, row_nbytes, product = self._plan_products()
        tensors = engine.share_nbytes(self._num_groups * tensor, self.num_slabs)
        num_blocks = _count_basis_blocks(size, self.rank, choose_dtype(size, self.dtype))
        iterating = num_blocks * size * row_nbytes
        iterating += max(3 * size * row_nbytes, size * row_nbytes + product * row_nbytes)
        return max(tensors - tensor + building, tensors + iterating)

    def _plan_products(self) -> tuple[int, int, int, int]:
        """Count what products with the shared columns of a group take, in bytes and rows.

        Returns the bytes of the columns as a tensor, and the most while it is built; the bytes of a
        row of a block of vectors; and the rows of the group's part of it, of the columns' product
        with this part, and of the group's result, together.
        """
        size, dtype = self._num_coupled, choose_dtype(self._num_coupled, self.dtype)
        num_columns = min(self._num_columns, self._num_shared // 2 + 1)
        own_shared, own_columns = self._share(self._num_shared), self._share(num_columns)
        own_size = max(1, self._own_size)
        options = (own_shared, (own_columns, own_size), dtype)
        tensor, building = self.engine.estimate_layout("replicated", *options, 1)
        row_nbytes = choose_width(self.rank, size) * dtype.itemsize
        return tensor, building, row_nbytes, 2 * own_size + max(own_size, own_columns)


def _count_eigen_nbytes(
    engine: Engine, size: int, num_shared: int, num_columns: int, dtype: np.dtype, rank: int
) -> int:
    """Count the bytes for the leading eigenvectors of `size` coupled rows."""
    num_columns = min(num_columns, num_shared // 2 + 1)
    dtype = choose_dtype(size, dtype)
    if is_cheap_to_form(engine, size, num_columns):
        return engine.gram_nbytes(size, num_columns)
    options = (num_shared, (num_columns, size), dtype)
    tensor, building = engine.estimate_layout("replicated", *options, 1)
    block = size * choose_width(rank, size) * dtype.itemsize
    basis = block * _count_basis_blocks(size, rank, dtype)
    image = num_columns * block // size
    return max(building, tensor + basis + max(3 * block, 2 * block + image))


def _count_basis_blocks(size: int, rank: int, dtype: np.dtype) -> int:
    """Count the blocks of vectors that iterations on `size` coupled rows keep."""
    return MAX_BLOCKS if size <= MAX_GRAM_SIZE else choose_max_blocks(size, rank, dtype)
