"""Checkpoints of a running parafac: write the state after an iteration to a file, or read it."""

from collections.abc import Sequence

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..array_modules import Array, move
from .files import FilePath, replace_file
from .npz import open_arrays

#: Version of the file format; other versions are refused.
_FORMAT = 1


class ResumedCP(CPTensor):
    """The CP tensor of a checkpoint, for ``init=`` of `tensorly.decomposition.parafac`.

    For a sparse tensor under "flycoo", parafac restores this state instead of using it as an
    initial guess: the weights stay weights (TensorLy multiplies those of a guess into the last
    factor), the arrays move to the tensor's device, and the stopping criterion compares the first
    new error with the last saved one. Otherwise it is an ordinary CP tensor on the host.

    Attributes
    ----------
    weights : numpy.ndarray (rank,)
    factors : list of numpy.ndarray (I_n, rank)
    errors : list of float
        The relative errors at the start and after each iteration so far.
    """

    def __init__(
        self, cp_tensor: CPTensor | tuple[Array | None, list[Array]], errors: list[float]
    ) -> None:
        super().__init__(cp_tensor)
        self.errors = errors

    @property
    def iteration(self) -> int:
        """The number of completed iterations."""
        return len(self.errors) - 1


def save_checkpoint(path: FilePath, cp_tensor: CPTensor, errors: Sequence[float]) -> None:
    """Write the state after an iteration to a file, in one atomic step.

    Parameters
    ----------
    path : str or os.PathLike
        A ``.npz`` of plain arrays. It is written beside `path` and then renamed, so `path` always
        holds a complete state, the old one or the new one.
    cp_tensor : CPTensor
        As parafac passes it to its callback, with NumPy or CuPy arrays.
    errors : sequence of float
        The relative errors at the start and after each iteration.

    Raises
    ------
    TypeError
        If `cp_tensor` is not a CPTensor: tensor rings and parafac with ``sparsity=`` have no
        checkpoints.
    OSError
        If the file cannot be written; the old file at `path` is kept.

    Notes
    -----
    The file is as large as the factors. Factors on a GPU are copied to the host first.

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
    # np.savez keeps the memory order (C or Fortran), on which the last bits of a run may depend.
    factors = {f"factor_{n}": move(f, np) for n, f in enumerate(cp_tensor.factors)}
    arrays = {"format": _FORMAT, "errors": np.asarray(errors), **factors}
    with replace_file(path) as file:
        np.savez(file, weights=move(cp_tensor.weights, np), **arrays)


def load_checkpoint(path: FilePath) -> ResumedCP:
    """Read a checkpoint that `save_checkpoint` or `Progress` wrote.

    Parameters
    ----------
    path : str or os.PathLike

    Returns
    -------
    ResumedCP
        The state, with its arrays on the host.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is not a checkpoint, is damaged, or was written by a later version of this
        package.

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


def _damage_error(path: FilePath, reason: object) -> ValueError:
    return ValueError(f"{path} is damaged, or not a checkpoint of parafac: {reason}")
