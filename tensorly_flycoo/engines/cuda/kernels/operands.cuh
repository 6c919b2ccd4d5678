// The operands shared by all nonzeros of a launch, and how to read a record with them.
#pragma once

// Where a coordinate is: in the 64 bits of a record that start at `word` (see RecordFormat).
struct Field {
    unsigned word;
    unsigned shift;
    unsigned mask;
};

// Filled by Python (`structs.py`) and passed by value, so it is in constant memory.
template <typename Value, int NumInputs>
struct Operands {
    static_assert(sizeof(Value) == 4 || sizeof(Value) == 8, "float or double");
    static_assert(NumInputs >= 0, "input modes are all modes but the output's");
    static constexpr int max_inputs = NumInputs > 0 ? NumInputs : 1;

    Field out_field;
    Field input_fields[max_inputs];
    unsigned value_slot;  // counted in values, not in words
    const void* factors[max_inputs];  // rows of Value, or narrow ones (`narrow_rows.cuh`)
    unsigned row_nbytes[max_inputs];  // from the start of a factor's row to the next
    unsigned last_out_row;            // for assertions
    unsigned last_input_rows[max_inputs];
};

template <int NumWords>
__device__ __forceinline__ unsigned read_row(const unsigned* record, const Field& field)
{
    // The last word has no next one, but no coordinate crosses it: the value follows them.
    const unsigned low = record[field.word];
    const unsigned high = record[field.word + (field.word + 1 < NumWords)];
    return __funnelshift_r(low, high, field.shift) & field.mask;
}

template <typename Value>
__device__ __forceinline__ Value read_value(const unsigned* record, unsigned value_slot)
{
    return reinterpret_cast<const Value*>(record)[value_slot];
}
