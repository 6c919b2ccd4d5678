"""CP decomposition in which several modes have the same factor."""

from collections.abc import Sequence
from typing import Any

from ..base.checks import check_real
from ..io.checkpoint import Resumed
from ..loop.guarding import check_iteration, describe_as
from ..loop.initial_guess import check_initial_guess, take_guess
from ..loop.ranks import find_cp_rank
from ..loop.run import Callback, Run, RunModel, find_state
from ..loop.shared_factors import (
    Group,
    SharedSweep,
    check_shared,
    read_groups,
    share_factors,
)
from ..loop.starting import start
from ..loop.stopping import Converged
from ..loop.whole_tensor import WholeTensor
from ..tensor.coo_cache import LabelledData, as_flycoo
from ..tensor.tensor import FlycooTensor, check_has_nonzeros
from .parafac import parafac


@describe_as(parafac)
def shared_parafac(
    tensor: LabelledData,
    rank: int | str,
    modes: Sequence[Any],
    n_iter_max: int = 100,
    init: Any = "random",
    svd: str = "truncated_svd",
    tol: float = 1e-8,
    random_state: Any = None,
    verbose: int = 0,
    return_errors: bool = False,
    l2_reg: float = 0,
    callback: Callback | None = None,
) -> Any:
    r"""Decompose a sparse tensor by CP with one factor for several modes, by least squares.

    With ``modes=(0, 2)``, such as senders and receivers or heads and tails,

    .. math:: x_{arb} \approx \sum_k A_{ak} \, R_{rk} \, A_{bk}

    which is INDSCAL, and DistMult where it is trained. The tensor itself need not be symmetric, but
    the model is: it fits the mean of ``x[a, r, b]`` and ``x[b, r, a]``. Any backend will do.

    Parameters
    ----------
    modes : sequence of int or str, or sequence of those
        The modes that share a factor, two or more of one size, such as ``(0, 2)``; or several such
        groups, ``[(0, 1), (2, 3)]``. By number, or by name for a LabelledTensor, in which they must
        have the same labels.
    init : {"random", "svd", CPTensor, ResumedCP}
        The initial guess, in the dtype of `tensor`, where shared modes begin with the factor of
        their first; or a model whose factors are shared; or a checkpoint to resume
        (`Progress.resume`).
    l2_reg : float
        A ridge: the squared residual gets l2_reg times the sum of the squares of all factors, a
        shared one once for each mode. Not where every mode shares its factor.

    Returns
    -------
    CPTensor
        Factors (I_n, R), those of modes that share to the bit the same, in the dtype and on the
        device of `tensor`. The weights (R,) are ones; only where every mode shares its factor they
        are not, and may be negative.
    errors : list of float
        The relative error after each iteration; only with `return_errors`.

    Raises
    ------
    TypeError
        As of `parafac`; and if `tensor` is not sparse, or `modes` no sequence of modes.
    ValueError
        As of `parafac`; and if modes that share have different sizes or labels, are named twice or
        are less than two, if the factors of `init` differ in them, or if every mode shares its
        factor and `l2_reg` is not 0.

    Notes
    -----
    An iteration is a damped Gauss-Newton step of all factors, after which the longest factor that
    belongs to one mode alone, or else the weights, are the best ones. It costs one MTTKRP for each
    mode, one more for each step that is taken back, and at most 30 conjugate gradients, which
    multiply two matrices (R, R) a mode on the host. The squared error and the ridge's share
    together never rise by more than rounding. The MTTKRPs of all modes are kept.

    References
    ----------
    Carroll and Chang, "Analysis of individual differences in multidimensional scaling via an N-way
    generalization of Eckart-Young decomposition", Psychometrika 35, 1970. Yang, Yih, He, Gao and
    Deng, "Embedding entities and relations for learning and inference in knowledge bases", ICLR
    2015. Phan, Tichavsky and Cichocki, "Low complexity damped Gauss-Newton algorithms for
    CANDECOMP/PARAFAC", SIAM Journal on Matrix Analysis and Applications 34, 2013.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor
    >>> from tensorly_flycoo.decomposition import shared_parafac
    >>> rng = np.random.default_rng(0)
    >>> people, kinds = rng.random((20, 2)), rng.random((4, 2))
    >>> x = FlycooTensor.from_dense(np.einsum("ak,rk,bk->arb", people, kinds, people))
    >>> cp, errors = shared_parafac(x, 2, modes=(0, 2), random_state=0, return_errors=True)
    >>> bool(errors[-1] < 1e-6), bool((cp.factors[0] == cp.factors[2]).all())
    (True, True)
    """
    # Check the options.
    check_real(l2_reg, "l2_reg", 0)
    x = as_flycoo(tensor, check_coords=True)
    groups = read_groups(modes, x.shape)
    num_components = find_cp_rank(x, rank)
    if l2_reg and all(len(group) > 1 for group in groups):
        raise ValueError(
            f"l2_reg is {l2_reg}, expected 0 where every mode shares its factor: the weights, "
            "which such a model needs for its signs, have no ridge"
        )
    check_has_nonzeros(x)
    check_iteration(x, num_components)

    # Begin, and iterate.
    model = _begin(x, groups, num_components, init, svd, random_state)
    return Run(
        sweep=SharedSweep(WholeTensor(x), model, groups, l2_reg, find_state(init)),
        tensor=x,
        n_iter_max=n_iter_max,
        stop=Converged(tol),
        callback=callback,
        verbose=verbose,
        return_errors=return_errors,
    ).iterate()


def _begin(
    x: FlycooTensor, groups: list[Group], rank: int, init: Any, svd: str, random_state: Any
) -> RunModel:
    """Make the initial guess, or restore a checkpoint; modes that share get the same array."""
    if isinstance(init, str | Resumed):
        model = start(x, None, rank, init, svd, random_state, solver="shared_parafac")
    else:
        if isinstance(init, list | tuple) and len(init) != 2:
            raise ValueError(f"init has {len(init)} parts, expected 2, the weights and factors")
        take_guess(x, rank, init)  # refuses what is no guess, but multiplies weights in
        weights, factors = check_initial_guess(init, x.dtype, x.device == "cuda", rank)
        check_shared(factors, groups)
        model = RunModel(weights, [factor.copy() for factor in factors])
    model.factors[:] = share_factors(model.factors, groups)
    return model
