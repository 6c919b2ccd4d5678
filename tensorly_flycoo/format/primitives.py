"""The array operations on which building a tensor spends its time."""

import numpy as np


class Primitives:
    """Sort, scatter and mark with the functions of an array module.

    An engine subclasses this with faster versions of the same meaning; results are equal to the
    bit, since a stable sort has only one answer.

    Parameters
    ----------
    xp : module
        numpy or cupy.
    """

    def __init__(self, xp=np):
        self.xp = xp

    def sort_positions(self, keys, num_keys, out=None):
        """Find where a stable sort puts each of the `keys` (nnz,), integers below `num_keys`.

        Returns
        -------
        positions : integer array (nnz,)
            ``sorted_keys[positions] = keys``, a permutation; `out` if it is given.
        """
        nnz = keys.shape[0]
        order = self.xp.argsort(keys, kind="stable")
        return self.scatter(self.xp.arange(nnz, dtype=index_dtype(nnz)), order, out)

    def scatter(self, source, positions, out=None):
        """Set ``out[positions] = source``, in a new array if there is no `out`."""
        out = self.xp.empty_like(source) if out is None else out
        out[positions] = source
        return out

    def mark_absent(self, keys, num_keys):
        """Say for each integer below `num_keys` whether none of the `keys` is it."""
        is_absent = self.xp.ones(num_keys, bool)
        is_absent[keys] = False
        return is_absent


def index_dtype(count, smallest="uint32"):
    """Choose the unsigned type, from `smallest` up, that numbers `count` things from 0.

    Examples
    --------
    >>> index_dtype(65536), index_dtype(65536, smallest="uint16"), index_dtype(2**32 + 1)
    (dtype('uint32'), dtype('uint16'), dtype('uint64'))
    """
    candidates = [np.dtype(smallest), np.dtype(np.uint32), np.dtype(np.uint64)]
    return next(dtype for dtype in candidates if count <= 2 ** (8 * dtype.itemsize))
