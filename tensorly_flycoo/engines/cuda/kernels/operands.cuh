// What is the same for all nonzeros of a launch, and how to read a nonzero with it.
#pragma once

#ifndef VALUE
#error "VALUE: float or double, the type of values and factors"
#endif
#ifndef NUM_INPUTS
#error "NUM_INPUTS: modes whose factors are read, ndim - 1"
#endif

// One coordinate of a record lies in the 64 bits that start at its word (see RecordFormat).
struct Field {
    unsigned word;
    unsigned shift;
    unsigned mask;
};

// An entry: a value, the output row and the input rows, in a multiple of 8 bytes.
constexpr int VALUE_WORDS = sizeof(VALUE) / 4;
constexpr int ENTRY_NBYTES = (VALUE_WORDS + 1 + NUM_INPUTS + 1) / 2 * 8;

#include "records.cuh"

constexpr int MAX_INPUTS = NUM_INPUTS > 0 ? NUM_INPUTS : 1;

// Passed by value, so it lies in constant memory.
struct Operands {
    Field out_field;
    Field input_fields[MAX_INPUTS];
    unsigned value_slot;  // counted in values, not in words
    const VALUE* factors[MAX_INPUTS];
    unsigned row_nbytes[MAX_INPUTS];  // from each row of a factor to the next
    unsigned last_out_row;            // for assertions
    unsigned last_input_rows[MAX_INPUTS];
};

__device__ __forceinline__ unsigned read_row(const unsigned* record, const Field& field)
{
    // A value follows the coordinates, so there is always a next word, if one that holds no bit.
    const unsigned low = record[field.word];
    const unsigned high = record[field.word + (field.word + 1 < NUM_WORDS)];
    return __funnelshift_r(low, high, field.shift) & field.mask;
}

__device__ __forceinline__ VALUE read_value(const unsigned* record, const Operands& operands)
{
    return reinterpret_cast<const VALUE*>(record)[operands.value_slot];
}
