// Small matrices that are copied together.
#pragma once

// Filled by Python (`structs.py`). All sizes are in words of 4 bytes.
struct Copies {
    static constexpr int max_copies = 16;

    const unsigned* sources[max_copies];
    unsigned* targets[max_copies];
    unsigned num_words[max_copies];
    unsigned row_words[max_copies];
    unsigned pitches[max_copies];  // from row to row of a source
};
