"""Pack the coordinates and the value of a nonzero into one record of a few machine words."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ..base.array_modules import Array

#: The modes of a tensor, divided into groups of adjacent ones.
Groups: TypeAlias = tuple[tuple[int, ...], ...]

#: The place of a coordinate: the word where its window starts, the shift and the mask.
Field: TypeAlias = tuple[int, int, int]

#: A coordinate is read with one shift and one mask from the 64 bits that start at its word.
WINDOW_BITS = 64

#: Records are multiples of this, so that each moves in few aligned pieces.
_RECORD_BITS = 64


@dataclass(frozen=True)
class RecordFormat:
    """The places of the coordinates and of the value in a record.

    Records are the rows of an array (nnz, num_words) of unsigned words. Coordinates come first, the
    first group in the lowest bits. Each group fits the `WINDOW_BITS` that start at its word, so it
    may cross into a second 32-bit word, but not into a second 64-bit word. The value follows,
    aligned to its own size. There is no linear index, so no integer type bounds the number of
    cells. They are beta and val of the paper's section 3.5, "Tensor Element Representation".

    >>> record = RecordFormat.of((1000, 1000, 1000), "float64", "uint64")
    >>> record.shifts, record.num_words
    ((0, 10, 20), 2)

    The fields of a group are adjacent, its first mode in the highest bits. Read as one number, they
    are the index of the group, which `merged` takes for a mode:

    >>> record = RecordFormat.of((1000, 5, 1000), "float64", "uint64", ((0,), (1, 2)))
    >>> record.shifts, record.merged.shifts, record.merged.shape
    ((0, 20, 10), (0, 10), (1000, 5120))

    If the combinations that occur of the first group are numbered, the number follows the
    coordinates, and is the index of the group.
    """

    shape: tuple[int, ...]
    groups: Groups
    dtype: np.dtype  # of the value: float32 or float64
    word_dtype: np.dtype  # uint32 or uint64
    words: tuple[int, ...]  # the word where each mode's window starts
    shifts: tuple[int, ...]  # bits by which to shift it
    masks: tuple[int, ...]  # to apply after the shift
    value_slot: int  # the value's column in the records viewed as `dtype`
    num_words: int  # of a record
    # How many combinations of the first group's indices occur if they are numbered, else 0.
    num_prefixes: int = 0
    prefix_field: Field | None = None  # where their number is

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        dtype: DTypeLike,
        word_dtype: DTypeLike,
        groups: Groups | None = None,
        num_prefixes: int = 0,
    ) -> "RecordFormat":
        """Lay out records for tensors of `shape` with values of `dtype`; by default, no groups."""
        dtype = np.dtype(dtype)
        word_dtype = np.dtype(word_dtype)
        word_bits = 8 * word_dtype.itemsize
        value_bits = 8 * dtype.itemsize
        widths = [field_width(size) for size in shape]
        groups = groups or ungrouped(len(shape))
        # Modes with numbered combinations need not be adjacent: their group's index is the number.
        adjacent = (*ungrouped(len(groups[0])), *groups[1:]) if num_prefixes else groups
        offsets = [0] * len(shape)  # in bits from the start of the record
        end = 0
        for group in adjacent:
            end = _start_field(end, sum(widths[mode] for mode in group), word_bits)
            for mode in reversed(group):  # the first mode gets the highest bits
                offsets[mode] = end
                end += widths[mode]
        prefix_field = None
        if num_prefixes:
            width = field_width(num_prefixes)
            start = _start_field(end, width, word_bits)
            prefix_field = (start // word_bits, start % word_bits, (1 << width) - 1)
            end = start + width
        value_offset = round_up(end, value_bits)
        return cls(
            shape=tuple(shape),
            groups=groups,
            dtype=dtype,
            word_dtype=word_dtype,
            words=tuple(offset // word_bits for offset in offsets),
            shifts=tuple(offset % word_bits for offset in offsets),
            masks=tuple((1 << width) - 1 for width in widths),
            value_slot=value_offset // value_bits,
            num_words=round_up(value_offset + value_bits, _RECORD_BITS) // word_bits,
            num_prefixes=num_prefixes,
            prefix_field=prefix_field,
        )

    @functools.cached_property
    def ndim(self) -> int:
        return len(self.shape)

    @functools.cached_property
    def fields(self) -> list[Field]:
        """The word, the shift and the mask of each mode."""
        return list(zip(self.words, self.shifts, self.masks, strict=True))

    @property
    def num_numbered(self) -> int:
        """The number of first modes, a group, whose prefixes are numbered."""
        return len(self.groups[0]) if self.num_prefixes else 0

    @property
    def merged(self) -> "RecordFormat":
        """The format of the same records, taken for those of a tensor with a mode for each group.

        Its sizes are products in which all but a group's first mode count as powers of two.
        """
        return self if len(self.groups) == self.ndim else self._merged

    @functools.cached_property
    def _merged(self) -> "RecordFormat":
        sizes = []
        fields: list[Field] = []
        for group, bits_below in zip(self.groups, self.bits_below, strict=True):
            size = self.shape[group[0]] << bits_below[0]
            lowest = group[-1]  # the mode in the group's lowest bits, where its field begins
            sizes.append(size)
            fields.append((self.words[lowest], self.shifts[lowest], (1 << field_width(size)) - 1))
        if self.prefix_field is not None:
            sizes[0] = self.num_prefixes
            fields[0] = self.prefix_field
        return self._ungroup(sizes, fields)

    @property
    def flat(self) -> "RecordFormat":
        """The format of the same records, with the prefixes taken for one more mode."""
        if self.prefix_field is None:
            return self
        return self._ungroup([*self.shape, self.num_prefixes], [*self.fields, self.prefix_field])

    def _ungroup(self, shape: list[int], fields: list[Field]) -> "RecordFormat":
        """Return the format of the same records for modes without groups that have these fields."""
        words, shifts, masks = zip(*fields, strict=True)
        return replace(
            self,
            shape=tuple(shape),
            groups=ungrouped(len(shape)),
            words=words,
            shifts=shifts,
            masks=masks,
            num_prefixes=0,
            prefix_field=None,
        )

    @functools.cached_property
    def bits_below(self) -> Groups:
        """For each mode of each group, the bits of the modes that follow it in the group."""
        widths = [field_width(size) for size in self.shape]

        def count_below(group: tuple[int, ...], mode: int) -> int:
            return sum(widths[n] for n in group if n > mode)

        return tuple(tuple(count_below(group, mode) for mode in group) for group in self.groups)

    @functools.cached_property
    def places(self) -> list[tuple[int, int]]:
        """For each mode, the number of its group, and its place in the group."""
        groups = enumerate(self.groups)
        return [(number, place) for number, group in groups for place in range(len(group))]

    def find_group(self, mode: int) -> tuple[int, ...]:
        """Return the modes of the group of a mode."""
        number, _ = self.places[mode]
        return self.groups[number]

    @property
    def record_nbytes(self) -> int:
        """Bytes of one nonzero in one copy of the tensor."""
        return self.num_words * self.word_dtype.itemsize

    def rows(self, records: Array, mode: int, xp: ModuleType = np) -> Array:
        """Read the coordinates (nnz,) of one mode, as uint32."""
        word = self.words[mode]
        shift = self.word_dtype.type(self.shifts[mode])
        rows = xp.empty(records.shape[0], np.uint32)
        # Bits above the 32nd belong to other modes: casting drops them without a larger array.
        xp.right_shift(records[:, word], shift, out=rows, casting="unsafe")
        if self.shifts[mode] + self.masks[mode].bit_length() > 8 * self.word_dtype.itemsize:
            rows |= records[:, word + 1] << self.word_dtype.type(32 - self.shifts[mode])
        rows &= np.uint32(self.masks[mode])
        return rows

    def coords(self, records: Array, xp: ModuleType = np) -> Array:
        """Read all coordinates (ndim, nnz), as int64."""
        coords = xp.empty((self.ndim, records.shape[0]), np.int64)
        for mode in range(self.ndim):
            coords[mode] = self.rows(records, mode, xp)
        return coords

    def mask_words(self, modes: Iterable[int]) -> list[int]:
        """Return for each word of a record the bits that the coordinates of some modes take."""
        word_bits = 8 * self.word_dtype.itemsize
        ones = (1 << word_bits) - 1
        bits = 0  # of the whole record, taken for one number
        for mode in modes:
            bits |= self.masks[mode] << (self.words[mode] * word_bits + self.shifts[mode])
        return [bits >> (word * word_bits) & ones for word in range(self.num_words)]

    def values(self, records: Array) -> Array:
        """View the values (nnz,) inside the records."""
        return records.view(self.dtype)[:, self.value_slot]

    def map_values(self, records: Array, function: Callable[[Array], Array]) -> Array:
        """Copy `records` with ``function(values)`` in place of their values."""
        mapped = records.copy()
        values = self.values(mapped)  # the copy's, lest `function` writes to them
        values[...] = function(values)
        return mapped


def _start_field(end: int, width: int, word_bits: int) -> int:
    """Return where a field that may follow bit `end` begins, lest it exceeds its window.

    >>> _start_field(60, 4, 64), _start_field(60, 5, 64)
    (60, 64)
    """
    return end if end % word_bits + width <= WINDOW_BITS else round_up(end, word_bits)


class RecordOrder(NamedTuple):
    """How records are sorted: by a mode of their format `merged`, some rows of which are empty."""

    record_format: RecordFormat
    mode: int
    empty_rows: Array


class Cut(NamedTuple):
    """The record format, and the numbers of nonzeros in a tile and in a bucket."""

    record_format: RecordFormat
    tile_size: int
    bucket_size: int
    # How many of the first modes become a group whose combinations that occur are numbered; None if
    # that is still to be chosen.
    num_numbered: int | None = 0

    @property
    def merged(self) -> "Cut":
        """The same with the format `RecordFormat.merged`, in whose modes nonzeros are ordered."""
        return self._replace(record_format=self.record_format.merged)


def field_width(size: int) -> int:
    """Return the number of bits of a coordinate in a mode of `size` indices.

    >>> field_width(1), field_width(1000), field_width(1024)
    (0, 10, 10)
    """
    return (size - 1).bit_length()


def ungrouped(ndim: int) -> Groups:
    """Return the groups of a tensor whose modes are all apart.

    >>> ungrouped(3)
    ((0,), (1,), (2,))
    """
    return tuple((mode,) for mode in range(ndim))


def round_up(number: int, multiple: int) -> int:
    """Round up to a multiple.

    >>> round_up(9, 8), round_up(16, 8)
    (16, 16)
    """
    return -(-number // multiple) * multiple
