"""The layout "remap": two copies, one remapped to the other while a mode is computed."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np

from ..base.array_modules import Array
from .layout import Layout, RowTiling, tile_rows
from .ordering import compute_norm
from .packing import Cut
from .primitives import ModeRows, Primitives, Step, index_dtype


class RemapLayout(Layout):
    """Two copies, T_in and T_out: each mode remaps the records from one to the other.

    `records` are T_in, in the storage of `mode`; `spare` is T_out. `plans` are the steps of all
    modes, from storage d to storage d + 1 (0 after the last mode), without these two. `lock` is
    held from the first launch that changes `spare` until `swap`, and while records are copied. On
    an asynchronous engine the launches of its holders also run one after the other.

    The paper's section 3.1, "Dynamic Tensor Remapping", and its Algorithms 3 and 5, in two levels.
    """

    name = "remap"
    saves_plan = False

    def __init__(
        self,
        cut: Cut,
        copies: tuple[Array, Array],
        tilings: Sequence[RowTiling],
        plans: Sequence[Step],
        norm: float,
        make_lock: Callable[[], AbstractContextManager],
        mode: int = 0,  # resident
    ) -> None:
        super().__init__(cut, tilings, norm)
        self.records, self.spare = copies
        self.plans = plans
        self.mode = mode
        self.make_lock = make_lock
        self.lock = make_lock()

    @classmethod
    def arrange(cls, records: Array, cut: Cut, primitives: Primitives) -> Self:
        """Plan all modes, and bring the records into the storage of the first."""
        if cut.bucket_size % cut.tile_size:
            raise ValueError(
                f"bucket_size is {cut.bucket_size}, expected a multiple of {cut.tile_size}"
            )
        norm = compute_norm(cut.record_format.values(records), primitives)
        spare = primitives.xp.empty_like(records)
        tilings, plans = cls._plan_modes(records, spare, cut.merged, primitives)
        return cls(cut, (spare, records), tilings, plans, norm, primitives.make_lock)

    @staticmethod
    def _plan_modes(
        records: Array, spare: Array, cut: Cut, primitives: Primitives
    ) -> tuple[list[RowTiling], list[Step]]:
        """Plan the remapping from the order of each mode to that of the next mode.

        `records` are in order 0, the order of mode 0; `spare` receives them as mode 0 stores them.
        """
        record_format = cut.record_format
        tile_size = cut.tile_size
        bucket_size = cut.bucket_size
        xp = primitives.xp
        nnz = records.shape[0]
        ndim = record_format.ndim
        dtype = index_dtype(nnz)
        pull_dtype = index_dtype(bucket_size, smallest="uint16")
        # The order of a mode, as places in order 0, is needed until that of the next mode is
        # known. So two arrays take turns: the spare storage, and the last mode's remap ids. The
        # last order goes to those ids, which are computed from it.
        last_ids = xp.empty(nnz, dtype)
        targets = (last_ids, spare.reshape(-1).view(dtype)[:nnz])
        mode_rows = ModeRows(records, record_format, 0, None)
        tilings = [tile_rows(mode_rows, tile_size, primitives)]
        pulls = []
        pushes = []
        for mode in range(1, ndim):
            target = targets[(ndim - 1 - mode) % 2]
            remap_ids = xp.empty(nnz, dtype)
            pull_ids = xp.empty(nnz, pull_dtype)
            mode_rows = mode_rows._replace(mode=mode)
            empty_rows = primitives.sort_by_row(mode_rows, target, remap_ids)
            # These push the records of the mode before, and pull those of this mode.
            primitives.split_by_bucket(remap_ids, bucket_size, remap_ids, pull_ids)
            mode_rows = mode_rows._replace(places=target)
            tilings.append(tile_rows(mode_rows, tile_size, primitives, empty_rows))
            pushes.append(primitives.compact_push(remap_ids, cut))
            pulls.append(primitives.compact_pull(pull_ids, cut))
        # The last mode pushes to the storage of the first, which pulls from there.
        if ndim == 1:  # its only order is order 0
            last_ids[...] = xp.arange(nnz, dtype=dtype)
        pull_ids = xp.empty(nnz, pull_dtype)
        primitives.split_by_bucket(last_ids, bucket_size, last_ids, pull_ids)
        primitives.scatter_in_buckets(records, pull_ids, bucket_size, spare)
        pushes.append(primitives.compact_push(last_ids, cut))
        pulls.insert(0, primitives.compact_pull(pull_ids, cut))
        plans = [
            Step(
                records=None,
                pull_ids=pull,
                bucket_size=bucket_size,
                remap_ids=remap_ids,
                write_order=write_order,
            )
            for pull, (remap_ids, write_order) in zip(pulls, pushes, strict=True)
        ]
        return tilings, plans

    @classmethod
    def count_build_nbytes(cls, nnz: int, cut: Cut, primitives: Primitives) -> int:
        sorting = max(primitives.sort_nbytes(nnz, size) for size in cut.record_format.shape)
        splitting = primitives.split_nbytes(nnz, cut.bucket_size)
        return primitives.count_plain_nbytes(nnz) + max(sorting, splitting)

    @classmethod
    def count_ids_nbytes(cls, nnz: int, cut: Cut, primitives: Primitives) -> int:
        return cut.record_format.ndim * primitives.count_plan_nbytes(nnz, cut)

    @classmethod
    def count_copies(cls, ndim: int) -> int:
        return 2

    @property
    def nbytes(self) -> int:
        parts: list[Any] = [self.records, self.spare, *self.tilings, *self.plans]
        if self.prefixes is not None:
            parts.append(self.prefixes)
        return sum(part.nbytes for part in parts)

    # Changing the resident mode

    @contextlib.contextmanager
    def step(self, mode: int, primitives: Primitives, stays: bool = False) -> Iterator[Step]:
        with self.lock:
            while self.mode != mode:  # remap without computing
                primitives.remap(self._find_step(), self.cut)
                self.swap()
            if stays:
                yield Step(self.records, self.plans[mode].pull_ids, self.cut.bucket_size)
            else:
                yield self._find_step()
                self.swap()

    def _find_step(self) -> Step:
        """Return the step of the resident mode."""
        return self.plans[self.mode]._replace(records=self.records, spare=self.spare)

    def swap(self) -> None:
        """Swap T_in and T_out, which must be complete: the next mode is resident."""
        next_mode = (self.mode + 1) % self.merged.ndim
        # This line calls nothing, so neither a KeyboardInterrupt nor a fork in another thread can
        # interrupt it.
        self.records, self.spare, self.mode = self.spare, self.records, next_mode

    def get_state(self) -> Any:
        return {"records": self.records, "spare": self.spare, "mode": self.mode}

    def fork(self) -> Self:
        fork = type(self)(
            self.cut,
            (self.records, self.spare),
            self.tilings,
            self.plans,
            norm=self.norm,
            make_lock=contextlib.nullcontext,
            mode=self.mode,
        )
        fork.prepared = self.prepared
        return self.share_prefixes(fork)

    @contextlib.contextmanager
    def hold_records(self, mode: int = 0) -> Iterator[Array]:
        with self.lock:
            yield self.records

    def find_places(self, mode: int, primitives: Primitives) -> Array | None:
        plan = self.plans[mode]
        ndim = self.merged.ndim
        if mode == self.mode:
            return primitives.position_in_buckets(plan.pull_ids, self.cut.bucket_size)
        if (mode + 1) % ndim == self.mode and plan.write_order is None:
            return plan.remap_ids
        # Order 0 sorts by modes 0, 1, ..., the last order by the last mode, ..., 1, 0, where the
        # first is the primary key. `sort_places` takes them in reverse.
        modes = list(range(ndim))
        if mode == 0:
            modes.reverse()
        return primitives.sort_places(self.records, self.record_format, modes)

    def map_values(self, function: Callable[[Array], Array], scale: float) -> Self:
        with self.lock:
            records = self.record_format.map_values(self.records, function)
            mode = self.mode
        mapped = type(self)(
            self.cut,
            (records, np.empty_like(records)),
            self.tilings,
            self.plans,
            norm=self.norm * scale,
            make_lock=self.make_lock,
            mode=mode,
        )
        return self.share_prefixes(mapped)


def count_runs(nnz: int, tile_size: int, bucket_size: int) -> int:
    """Return the most runs of a tile's ordered remap ids: its records in one bucket are one run."""
    num_buckets = -(-nnz // bucket_size)
    return max(1, min(tile_size, num_buckets))
