"""Non-negative least squares for tall factors by hierarchical ALS, many rows at once."""

import numpy as np

from ..array_modules import is_cupy

#: Rows that are computed with at once: with their targets they stay in a core's cache.
_BLOCK_SIZE = 64


def solve_nonnegative(
    targets, gram, rows, num_sweeps, tolerance, *, sparsity=None, ridge=None, smallest=0.0
):  # fmt: skip
    """Improve the rows that minimise ``|x U.T - m|`` with ``x >= smallest``, in place.

    Column by column, each set to its minimiser while the others are held, as TensorLy's hals_nnls
    does, in the same order, and with the same rule to stop.

    Parameters
    ----------
    targets : float array (I, R)
        ``m U``, an MTTKRP. All arrays are NumPy's or CuPy's, C-contiguous and of one dtype.
    gram : array (R, R)
        ``U.T U``; columns with a zero on its diagonal stay as they are.
    rows : array (I, R)
        C-contiguous; starts the iteration and receives the result.
    num_sweeps : int
        At most.
    tolerance : float
        Stops when the error of a sweep is less than this part of that of the first; the error is
        the sum of squared distances of all columns from each new one.
    sparsity, ridge : float, optional
        Penalties, on the sum of elements and of their squares.
    smallest : float

    Notes
    -----
    ``4 * I * R**2`` operations a sweep. A sweep that changes nothing is the last: those that follow
    would not either. The result does not depend on the number of threads. On a GPU the host waits
    for each sweep.

    References
    ----------
    Gillis and Glineur, "Accelerated Multiplicative Updates and Hierarchical ALS Algorithms for
    Nonnegative Matrix Factorization", Neural Computation 24, 2012.

    Examples
    --------
    >>> rows = np.ones((1, 2))
    >>> gram = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> solve_nonnegative(np.array([[4.0, 1.0]]), gram, rows, 100, 0.0)
    >>> rows
    array([[2., 0.]])
    """
    sweep = _sweep_on_gpu if is_cupy(rows) else _sweep_on_cpu
    penalties = [rows.dtype.type(x or 0.0) for x in (sparsity, ridge, smallest)]
    first_error = None
    for _ in range(num_sweeps):
        error, num_changes = sweep(targets, gram, rows, *penalties)
        first_error = error if first_error is None else first_error
        if error < tolerance * first_error or num_changes == 0:
            break


def _sweep_on_gpu(*arguments):
    from ..engines.cuda.solvers import sweep_nonnegative

    return sweep_nonnegative(*arguments)


def _sweep_on_cpu(targets, gram, rows, *penalties):
    from ..engines.cpu.engine import launch
    from ..engines.cpu.solvers import sweep_nonnegative

    num_blocks = -(-rows.shape[0] // _BLOCK_SIZE)
    errors, changes = np.zeros(num_blocks), np.zeros(num_blocks, np.int64)
    arguments = (_BLOCK_SIZE, targets, gram, rows, *penalties, errors, changes)
    launch(sweep_nonnegative, num_blocks, *arguments)
    return errors.sum(), changes.sum()
