// Columns of a sparse matrix.
#pragma once

#include "orders.cuh"

// The first place of `columns`, which ascend, that does not come before `column`.
__device__ __forceinline__ long long find_column(long long count, const long long* columns,
                                                 long long column)
{
    long long first = 0, last = count;
    while (first < last) {
        const long long middle = (first + last) / 2;
        if (columns[middle] < column) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    return first;
}
