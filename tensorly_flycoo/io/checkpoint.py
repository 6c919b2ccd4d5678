"""Checkpoints of a running parafac: the state after an iteration, in a file, and out of it."""

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..array_modules import move
from .files import replace_file
from .npz import open_arrays

#: Number of the layout of the file; other numbers are refused.
_FORMAT = 1


class ResumedCP(CPTensor):
    """The CP tensor of a checkpoint, for ``init=`` of `tensorly.decomposition.parafac`.

    For a sparse tensor under "flycoo" it is the state itself, not a guess: its weights stay weights
    (TensorLy multiplies those of a guess into the last factor), its arrays go to the tensor's
    device, and the stopping criterion compares the first new error with the last one of before.
    For all else it is a CP tensor on the host like any other.

    Attributes
    ----------
    weights : numpy.ndarray (rank,)
    factors : list of numpy.ndarray (I_n, rank)
    errors : list of float
        The relative errors at the start and after each iteration so far.
    """

    def __init__(self, cp_tensor, errors):
        super().__init__(cp_tensor)
        self.errors = errors

    @property
    def iteration(self):
        """The number of iterations that were done."""
        return len(self.errors) - 1


def save_checkpoint(path, cp_tensor, errors):
    """Write the state after an iteration to a file, which has the old state or the new at any time.

    Parameters
    ----------
    path : str or os.PathLike
        Written as a ``.npz`` of plain arrays: first beside it, then renamed.
    cp_tensor : CPTensor
        As parafac hands it to its callback; arrays may be NumPy's or CuPy's.
    errors : sequence of float
        The relative errors at the start and after each iteration.

    Raises
    ------
    TypeError
        If `cp_tensor` is no CPTensor: of tensor rings, and with ``sparsity=``, there is no
        checkpoint.
    OSError
        If the file cannot be written; what was at `path` is still there.

    Notes
    -----
    Costs a copy of the factors to the host, where they are on a GPU, and their bytes on disk.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/run.npz"
    >>> save_checkpoint(path, CPTensor((None, [np.ones((3, 2)), np.ones((4, 2))])), [1.0, 0.5])
    >>> load_checkpoint(path).iteration
    1
    """
    if not isinstance(cp_tensor, CPTensor):
        raise TypeError(f"cp_tensor is a {type(cp_tensor).__name__}, expected a CPTensor")
    # np.savez keeps rows or columns contiguous as they are, on which the last bits may depend.
    factors = {f"factor_{n}": move(f, np) for n, f in enumerate(cp_tensor.factors)}
    arrays = {"format": _FORMAT, "errors": np.asarray(errors), **factors}
    with replace_file(path) as file:
        np.savez(file, weights=move(cp_tensor.weights, np), **arrays)


def load_checkpoint(path):
    """Read what `save_checkpoint` or `Progress` wrote.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    ResumedCP
        With arrays on the host.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is no checkpoint, is damaged, or is of a later version of this package.

    Examples
    --------
    >>> load_checkpoint("/nowhere.npz")
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] No such file or directory: '/nowhere.npz'
    """
    with open_arrays(path, _damage_error, takes_fortran=True) as reader:
        arrays = {name: reader.read(name) for name in reader.names()}
    try:
        number = int(arrays.pop("format"))
        if number == _FORMAT:
            weights, errors = arrays.pop("weights"), arrays.pop("errors").tolist()
            factors = [arrays[f"factor_{n}"] for n in range(len(arrays))]
            return ResumedCP((weights, factors), errors)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise _damage_error(path, error) from error
    raise ValueError(
        f"{path} has format {number}, expected {_FORMAT}: a later version of tensorly-flycoo "
        "wrote it"
    )


def _damage_error(path, reason):
    return ValueError(f"{path} is no checkpoint of parafac, or is damaged: {reason}")
