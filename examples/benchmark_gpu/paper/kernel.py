"""A tensor in the paper's format on the GPU, and its kernel, launched as Algorithm 5 says."""

import functools
from pathlib import Path

import cupy
import numpy as np

from tensorly_flycoo.engines.cuda import launch

from .partitioning import make_elements, partition_mode

SOURCE = str(Path(__file__).resolve().with_name("thread_block.cu"))

#: The most threads of a block, on any GPU.
_MAX_THREADS = 1024


class PaperTensor:
    """The nonzeros, with their remap ids, in two copies that swap.

    Attributes
    ----------
    mode : int
        The mode in whose order `t_in` is.
    t_in, t_out : uint32 arrays (nnz, words)
        The elements, and room for them in the order of the next mode.
    starts : list of int64 arrays (num_partitions + 1,)
        Where the partitions of each mode begin.
    """

    def __init__(self, coords, values, shape, num_partitions, assign=partition_mode, by_row=True):
        self.shape, self.mode = shape, 0
        arguments = (coords, values, shape, num_partitions)
        self.t_in, self.starts = make_elements(*arguments, cupy, assign, by_row)
        self.t_out = cupy.empty_like(self.t_in)

    @property
    def nbytes(self):
        """Bytes of both copies and the partitions."""
        return sum(array.nbytes for array in (self.t_in, self.t_out, *self.starts))

    def compute(self, factors, output, num_columns=32, remaps=True):
        """Add the MTTKRP of `mode` to zeros in `output`; remap to the next mode and swap.

        Parameters
        ----------
        factors : list of float32 arrays (I_n, R), contiguous
        output : float32 array (I_mode, R)
        num_columns : int
            The paper's P: columns of threads of a block.
        remaps : bool
            Without, `t_in` stays as it is.
        """
        ndim, rank = len(self.shape), output.shape[1]
        kernel = launch.get_kernel(SOURCE, "thread_block", NDIM=ndim, MODE=self.mode, RANK=rank)
        addresses = np.array([factor.data.ptr for factor in factors], np.uint64)
        struct = addresses.view(f"V{addresses.nbytes}").reshape(())  # `Factors` of the source
        starts, t_out = self.starts[self.mode], self.t_out if remaps else np.uint64(0)
        arguments = (self.t_in, starts, struct, output, t_out)
        num_rows = min(rank, _MAX_THREADS // num_columns)
        kernel((starts.size - 1,), (num_rows, num_columns), arguments)
        if remaps:
            self.t_in, self.t_out = self.t_out, self.t_in
            self.mode = (self.mode + 1) % ndim


def make_steps(x, factors, outputs, num_columns=32):
    """Return for each mode three functions: compute, set the output to zero, compute and remap.

    The first is there to be timed, since the last both computes and remaps.
    """
    steps = []
    for output in outputs:
        compute = functools.partial(x.compute, factors, output, num_columns)
        steps.append(
            (functools.partial(compute, remaps=False), functools.partial(output.fill, 0), compute)
        )
    return steps
