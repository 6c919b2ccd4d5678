"""MTTKRP of the nonzeros divided by a model: a step of Poisson CP decompositions."""

from collections.abc import Sequence

from ..array_modules import Array
from ..tensor.memory import attempt, explain_work
from ..tensor.tensor import FlycooTensor


def mttkrp_of_ratios(
    x: FlycooTensor,
    factors: Sequence[Array],
    mode: int,
    smallest: float,
    *,
    wants_logs: bool = False,
    stays: bool = False,
) -> tuple[Array, Array | None]:
    r"""Compute the MTTKRP of :math:`v_k / m_k`, with the values m of a CP model at the nonzeros.

    Parameters
    ----------
    x : FlycooTensor
    factors : sequence of array (I_n, R)
        The model, in the dtype and on the device of `x`.
    mode : int
    smallest : float
        The model divides as this number where it is smaller.
    wants_logs : bool
        Whether to add up :math:`v_k \log m_k` too.
    stays : bool
        Whether layout "remap" stays in `mode`, which is best if `mode` is computed again.

    Returns
    -------
    product : array (I_mode, R)
    log_sum : float64 array () or None
        On the device of `x`; None without `wants_logs`.

    Raises
    ------
    MemoryError
        If memory runs out.

    Notes
    -----
    One pass over the nonzeros, with the workspace of `mttkrp`. Results have the same bits in every
    layout and for any number of threads.

    Examples
    --------
    >>> import numpy as np
    >>> x = FlycooTensor([[0, 1], [1, 0]], [6.0, 8.0], shape=(2, 2))
    >>> factors = [np.ones((2, 1)), np.array([[2.0], [3.0]])]
    >>> product, _ = mttkrp_of_ratios(x, factors, 1, 0.0)
    >>> product
    array([[4.],
           [2.]])
    """
    engine, (rank, size) = x._engine, (factors[0].shape[1], x.shape[mode])

    def compute() -> tuple[Array, Array | None]:
        out = engine.xp.empty((size, rank), x.dtype)
        options = {"wants_logs": wants_logs, "stays": stays}
        return out, engine.mttkrp_of_ratios(x._layout, factors, mode, out, smallest, **options)

    def explain() -> str:
        nbytes = engine.count_workspace_nbytes(x._layout, factors, mode)
        nbytes += size * rank * x.dtype.itemsize
        return explain_work(x, f"an MTTKRP of ratios of mode {mode} and rank {rank}", nbytes)

    return attempt(compute, explain)
