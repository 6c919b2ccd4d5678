"""What a packed record holds: see `packed_records`."""

from typing import NamedTuple

from .packing import Field, RecordFormat, RecordOrder, field_width

#: The bits of a word of packed records; a field has at most so many.
WORD_BITS = 32


class BitFields(NamedTuple):
    """What a packed record holds. Words count from the start of a record, 32 bits each."""

    fields: tuple[Field, ...]  # with widths of at most 32 bits in place of masks
    row_field: Field | None  # of rows that are known by where they begin
    value_word: int
    code_words: int  # of a value that is known by its number, or 0
    num_codes: int  # 0 if a value is among the fields

    @classmethod
    def of(cls, order: RecordOrder, has_rows: bool, num_codes: int) -> "BitFields":
        """Keep the bits of all coordinates and of the value that nothing else tells."""
        record_format = order.record_format
        value_bits = 8 * record_format.dtype.itemsize
        value_word = record_format.value_slot * value_bits // WORD_BITS
        kept = 0  # of the whole record, taken for one number
        for field in record_format.flat.fields:
            kept |= _place(field, record_format)
        row_field = None
        if has_rows:
            field = record_format.merged.fields[order.mode]
            kept &= ~_place(field, record_format)
            row_field = _count_words(field, record_format)
        code_words = 0
        if num_codes > 0:
            code_words = value_bits // WORD_BITS
        else:
            kept |= ((1 << value_bits) - 1) << (value_word * WORD_BITS)
        return cls(tuple(_list_runs(kept)), row_field, value_word, code_words, num_codes)

    @property
    def code_bits(self) -> int:
        """The bits of the number of a value."""
        return field_width(max(self.num_codes, 1))

    @property
    def record_bits(self) -> int:
        """The bits of a packed record."""
        num_bits = sum(width for _, _, width in self.fields)
        if self.row_field is not None:
            num_bits += 1
        return num_bits + self.code_bits


def _place(field: Field, record_format: RecordFormat) -> int:
    """Return the bits of a field, in a record that is taken for one number."""
    word, shift, mask = field
    return mask << (8 * record_format.word_dtype.itemsize * word + shift)


def _count_words(field: Field, record_format: RecordFormat) -> Field:
    """Return a field whose place is given in words of 32 bits."""
    word, shift, mask = field
    start = 8 * record_format.word_dtype.itemsize * word + shift
    return start // WORD_BITS, start % WORD_BITS, mask


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
    return runs or [(0, 0, 0)]  # no array of a kernel is empty
