"""Anomaly scores: the improbability of counts under a CP model of their means."""

from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, move
from ..base.checks import check_finite
from ..loop.model_uses import check_model
from ..results.counts import check_counts, log_upper_tail
from ..results.cp_fit import compare_entries
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.entrance import mirror
from ..tensor.labelled import LabelledTensor


@mirror
def anomaly_scores(x_new: "LabelledData | tuple[Array, Array]", cp_tensor: Any) -> Any:
    r"""Compute how unlikely counts are if a CP model gives the means of Poisson distributions.

    .. math:: -\log_{10} P(X \ge x_k), \quad X \sim \mathrm{Poisson}(m_k)

    By chance, one count in a million has a score of 6 or more. So with many entries,
    some high scores are normal: among n, expect one of ``log10(n)`` or more.

    Parameters
    ----------
    x_new : FlycooTensor, LabelledTensor, sparse.COO or (coords, values)
        The entries: the nonzeros of a tensor, in the sequence of `FlycooTensor.nonzeros`; or
        coordinates (ndim, n), in any sequence, with their counts (n,), which may be zeros.
    cp_tensor : CPTensor or (weights, factors)
        A model of the means, none of them negative, such as of `generalized_parafac`.

    Returns
    -------
    float64 array (n,), or pandas.DataFrame
        From 0 up, on the device of the factors; inf where the model makes a count impossible.
        ``10.0**-scores`` are the probabilities. Of a LabelledTensor, the table of its `to_frame`
        with a column "score".

    Raises
    ------
    TypeError
        If `x_new` is not sparse, or arrays are on different devices.
    ValueError
        If a shape does not match, an index is out of range, a count is negative or not finite, the
        model is negative at an entry, labels or modes differ from those of a `LabelledCP`,
        `cp_tensor` is no CP model or has another loss, or a mode of a LabelledTensor is called
        "value" or "score".

    Notes
    -----
    ``n * R * ndim`` operations for the means. Probabilities are computed on the host, in
    logarithms, however small they are. Scores above 300, and those above 5 of counts above a
    million, have relative errors below 2e-5; others are SciPy's. A count that is no integer is
    rounded up.

    References
    ----------
    Chi and Kolda, "On tensors, sparsity, and nonnegative factorizations", SIAM Journal on Matrix
    Analysis and Applications 33, 2012. Sampford, "Some inequalities on Mill's ratio and related
    functions", Annals of Mathematical Statistics 24, 1953.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import anomaly_scores
    >>> means = (None, [np.array([[1.0], [2.0]]), np.array([[3.0], [0.1]])])
    >>> anomaly_scores(([[0, 1, 1], [0, 0, 1]], [3, 30, 4]), means).round(1)
    array([ 0.2, 11.6,  4.2])
    """
    check_model("anomaly_scores", cp_tensor, x_new)
    entries: Any = x_new
    if not isinstance(x_new, tuple) or isinstance(x_new, LabelledTensor):  # which is a tuple too
        entries = as_flycoo(x_new, check_coords=True)._sorted_nonzeros()
    means, counts = compare_entries(cp_tensor, entries, "x_new")
    xp = array_module(means)
    means = move(means, np)
    counts = move(counts, np)
    check_finite(counts)
    check_finite(means, "the model's values")
    check_counts(counts, means)
    scores = log_upper_tail(counts, means) / -np.log(10) + 0.0  # no -0
    if isinstance(x_new, LabelledTensor):
        table = x_new.to_frame()
        table.insert(table.shape[1], "score", scores)
        return table
    return xp.asarray(scores)
