// Entry: the paper's MTTKRP of mode MODE, as published: Algorithms 2, 3 and 4. Algorithm 1 is in
//   `partitioning.py`, Algorithm 5 in `kernel.py`. It uses nothing of this package's own kernels.
//
// Mapping: a block has the nonzeros of one partition. Its P columns of threads (threadIdx.y) have a
//   nonzero each at a time. Row r (threadIdx.x) has column r of the factors; if R x P exceeds the
//   1,024 threads of a block, there are fewer rows, and each has several columns.
// Preconditions, the caller's: `t_in` is in the order of MODE, of which partition z begins at
//   partition_starts[z]; `output` is zero; coordinates are within the factors' rows.
// Bytes per nonzero: its element is read, and written if it is remapped; NDIM - 1 rows of factors
//   are read; one row of `output` is read and written by atomics.
// Writes and determinism: `output` by atomics of a block, in no fixed order, so that its last bits
//   differ from run to run; `t_out` at remap ids, which are distinct.
// Source: Wijeratne, Kannan, Prasanna, "Sparse MTTKRP Acceleration for Tensor Decomposition on
//   GPU", Computing Frontiers 2024, doi 10.1145/3649153.3649187.
// MACRO NDIM: number of modes, N
// MACRO MODE: the output mode, d
// MACRO RANK: columns of the factors, R

// x_i = <alpha_i, beta_i, val_i>; rounded up to 16 bytes, so that it is read by few loads.
struct alignas(16) Element {
    unsigned alpha[NDIM];  // b_0 ... b_{N-1}, the remap ids
    unsigned beta[NDIM];   // c_0 ... c_{N-1}, the coordinates
    float value;
};

// Y_0 ... Y_{N-1}, each (I_n, R) and contiguous.
struct Factors {
    const float* y[NDIM];
};

// Algorithm 2, EC: add the contribution of a nonzero to its row of Y_d.
__device__ void compute_element(const Element& x, const Factors& factors, float* output)
{
    for (int r = threadIdx.x; r < RANK; r += blockDim.x) {
        float ell = x.value;
#pragma unroll
        for (int w = 0; w < NDIM; ++w) {
            if (w != MODE) {
                ell *= factors.y[w][(long long)x.beta[w] * RANK + r];
            }
        }
        // No other block has nonzeros of this row (Observation 2), so the scope is the block.
        atomicAdd_block(&output[(long long)x.beta[MODE] * RANK + r], ell);
    }
}

// Algorithm 3, DR: write an element to its place in the order of the next mode.
__device__ void remap_element(const Element& x, Element* t_out)
{
    t_out[x.alpha[(MODE + 1) % NDIM]] = x;  // no other element has this place (Observation 1)
}

// Algorithm 4: run partition blockIdx.x. Without `t_out` nothing is remapped, as where the paper
// times the elementwise computation alone.
extern "C" __global__ void __launch_bounds__(1024)
    thread_block(const Element* __restrict__ t_in, const long long* partition_starts,
                 const Factors factors, float* output, Element* __restrict__ t_out)
{
    const long long end = partition_starts[blockIdx.x + 1];
    for (long long nnz = partition_starts[blockIdx.x]; nnz < end; nnz += blockDim.y) {
        const long long place = nnz + threadIdx.y;
        if (place < end) {
            const Element x = t_in[place];
            compute_element(x, factors, output);
            if (t_out != nullptr && threadIdx.x == blockDim.x - 1) {
                remap_element(x, t_out);
            }
        }
    }
}
