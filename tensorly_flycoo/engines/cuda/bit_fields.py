"""What a packed record holds: see `packed_records`. Needs no GPU."""

from typing import NamedTuple

from ...format.packing import Field, RecordFormat, RecordOrder, field_width
from . import tuning

#: The bits of a word; a field has at most so many.
WORD_BITS = 32


class BitFields(NamedTuple):
    """What a packed record holds: the members of `Bits` (`packed_records.cu`), and macros."""

    fields: tuple[Field, ...]  # with widths of at most 32 bits in place of masks
    row_field: Field | None  # of rows that are known by where they begin
    value_word: int
    num_codes: int  # 0 if a value is among the fields

    @classmethod
    def of(cls, order: RecordOrder, has_rows: bool, num_codes: int) -> "BitFields":
        """Keep the bits of all coordinates and of the value that nothing else tells."""
        record_format = order.record_format
        value_bits = 8 * record_format.dtype.itemsize
        value_word = record_format.value_slot * value_bits // WORD_BITS
        kept = 0  # of the whole record, taken for one number
        for field in record_format.flat.fields:
            kept |= _place(field)
        row_field = None
        if has_rows:
            row_field = record_format.merged.fields[order.mode]
            kept &= ~_place(row_field)
        if num_codes == 0:
            kept |= ((1 << value_bits) - 1) << (value_word * WORD_BITS)
        return cls(tuple(_list_runs(kept)), row_field, value_word, num_codes)

    @property
    def record_bits(self) -> int:
        """The bits of a packed record."""
        num_bits = sum(width for _, _, width in self.fields)
        if self.row_field is not None:
            num_bits += 1
        return num_bits + field_width(max(self.num_codes, 1))

    def list_members(self) -> list[int]:
        """List the members of `Bits`."""
        words, shifts, widths = zip(*self.fields, strict=True)
        row_word, row_shift, row_mask = self.row_field or (0, 0, 0)
        return [
            *words,
            *shifts,
            *widths,
            row_word,
            row_shift,
            row_mask.bit_length(),
            self.value_word,
            self.num_codes,
            field_width(max(self.num_codes, 1)),
            self.record_bits,
        ]

    def list_macros(self, record_format: RecordFormat) -> dict[str, int | bool]:
        """List the macros of the kernels."""
        code_words = 0
        if self.num_codes > 0:
            code_words = record_format.dtype.itemsize // 4
        return {
            "NUM_WORDS": record_format.num_words,
            "NUM_FIELDS": len(self.fields),
            "HAS_ROWS": self.row_field is not None,
            "CODE_WORDS": code_words,
            "BLOCK_SIZE": tuning.BLOCK_SIZE,
        }


def _place(field: Field) -> int:
    """Return the bits of a field, in a record that is taken for one number."""
    word, shift, mask = field
    return mask << (word * WORD_BITS + shift)


def _list_runs(bits: int) -> list[Field]:
    """List the runs of ones of a number, cut so that none is wider than a word.

    >>> _list_runs(0b1100110), _list_runs((1 << 40) - 1)
    ([(0, 1, 2), (0, 5, 2)], [(0, 0, 32), (1, 0, 8)])
    """
    runs: list[Field] = []
    start = 0
    while bits >> start:
        if not bits >> start & 1:
            start += 1
            continue
        width = 1
        while width < WORD_BITS and bits >> (start + width) & 1:
            width += 1
        runs.append((start // WORD_BITS, start % WORD_BITS, width))
        start += width
    return runs or [(0, 0, 0)]  # no array is empty
