"""Sparse tensor completion: a CP model fitted only to the stored entries of a tensor."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, final

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module
from ..base.checks import check_count, check_positive, check_rank, check_real, warn
from ..io.array_file import number
from ..io.checkpoint import Resumed
from ..loop import observed_rows
from ..loop.cp_model import make_cp_tensor
from ..loop.guarding import describe_as
from ..loop.run import Callback, Run, RunModel, Sweep, find_state
from ..loop.starting import restore
from ..loop.stopping import AnyOf, Converged, OutOfPatience, Stop
from ..tensor.coo_cache import LabelledData, as_flycoo
from .observed_entries import ObservedEntries, read_entries, weigh_entries
from .observed_problem import Problem, RowSolver, fit_all
from .parafac import parafac
from .ridge_choice import Split, choose_ridge, is_better_start

#: The iterations without a better model for held-out entries that end a run.
_PATIENCE = 10

#: Steps of conjugate gradients for a row, where all cells count.
_NUM_STEPS = 3


@describe_as(parafac)
def observed_parafac(
    tensor: LabelledData,
    rank: int,
    n_iter_max: int = 100,
    init: Any = "random",
    tol: float = 1e-8,
    random_state: Any = None,
    l2_reg: float | str = "validation",
    return_errors: bool = False,
    callback: Callback | None = None,
    *,
    confidence: "LabelledData | None" = None,
    unobserved: float = 0,
    non_negative: bool = False,
    biases: bool = False,
    cg_steps: int | None = None,
    validation: "LabelledData | None" = None,
) -> Any:
    r"""Fit a CP decomposition to the stored nonzeros only; all other entries are unknown.

    .. math:: \min \sum_k w_k \Big(v_k - \sum_r \prod_n F_n[c_{n,k}, r]\Big)^2
        + \lambda s^{2 - 2/N} \sum_n |F_n|^2

    over the nonzeros :math:`v_k` of `tensor`, whose root mean square is s, by alternating least
    squares. All :math:`w_k` are 1 without `confidence`.

    Parameters
    ----------
    tensor : FlycooTensor or sparse.COO
        With two modes or more. `confidence` says where zeros, which are not stored, were observed.
    rank : int
        R, the number of components.
    init : {"random", CPTensor, (weights, factors), ResumedCP}
        "random": that of TensorLy's `parafac` for the same `random_state`, times :math:`s^{1/N}`;
        or a guess in the dtype of `tensor`, whose weights may be None; or a
        checkpoint to resume (`Progress.resume`).
    l2_reg : float or "validation"
        The ridge :math:`\lambda`, above 0, the same for all rows, however many nonzeros they have.
        Values times :math:`c` give factors times :math:`c^{1/N}`. "validation" tries 100, 30, 10,
        3, 1, 0.3, 0.1, 0.01, 1e-4 and 1e-6, until smaller ones do not help, and takes what predicts
        held-out entries best: those of `validation`, or a tenth of the observed ones, which the run
        then gets back. Two more tenths decide between ridges that are close. The choice is the
        same for each `random_state`. With `unobserved` it is 1.
    callback : callable, optional
        Called with the CPTensor, in float64, and its error before the first and after each
        iteration; returns True to stop. For example a `Progress`.
    confidence : FlycooTensor or sparse.COO, optional
        The weights :math:`w_k`, above 0, of the observed entries; those that `tensor` lacks are
        zeros.
    unobserved : float
        The weight of all other cells, which then count as zeros; no more than any of `confidence`.
        With 1, a `tensor` of ones and a `confidence` that grows with counts, this is the model of
        implicit feedback of Hu, Koren and Volinsky.
    non_negative : bool
        Whether the factors are non-negative: five sweeps of coordinate descent then replace the
        solution of each row. Not together with `biases` or `cg_steps`.
    biases : bool
        Whether the model adds the mean of the values and a bias of each index of each mode, which
        `l2_reg` shrinks too. They are ``ndim + 1`` more components: R + n has the biases of mode n
        in its factor and ones in all others; the last has the mean in the last factor (that is the
        order of a CPTensor: a `LabelledCP` sorts its components by weight). s is then
        that of the differences from the mean, and the biases of a guess in `init` are left out.
    cg_steps : int, optional
        How many steps of conjugate gradients, in the dtype of `tensor`, improve each row; with 0
        its system is solved. By default 3 with `unobserved` and without `non_negative`, else 0. 3
        is also best for many nonzeros and large ranks on GPUs.
    validation : FlycooTensor or sparse.COO, optional
        Entries held out of `tensor`: all errors are then of these, relative to their norm. Ten
        iterations without a new smallest error end the run; the result is the model of the
        smallest, also in a run that is resumed.

    Returns
    -------
    CPTensor
        Weights of ones and factors (I_n, R) in the dtype and on the device of `tensor`. Rows
        without an observed entry are zero (with `cg_steps` nearly), except for their biases.
        Its record, ``model.flycoo``, has `l2_reg`, the ridge that was chosen; `scale`, which is s;
        and with `biases` `bias_modes`, for each component the mode of which it is a bias, N for the
        mean and -1 for others. By its `absent`, `fold_in` and other functions know that cells
        without a row are unknown.
    errors : list of float
        The root of the weighted sum of squared residuals, relative to that of squared values,
        after each iteration; only with `return_errors`.

    Warns
    -----
    UserWarning
        If held-out entries are predicted worse than by the mean, or the ridge leaves nothing of a
        component.

    Raises
    ------
    TypeError
        If `tensor` is not sparse, or `rank`, `l2_reg`, `cg_steps` or an array of `init` has the
        wrong type.
    ValueError
        If `tensor` or `validation` has no nonzeros, `tensor` has one mode, `rank` is below 1,
        `cg_steps` is below 0, `l2_reg` is not above 0, `init` is unknown, a shape or the labels of
        another tensor do not match, or a checkpoint is of another tensor or decomposition; if
        `confidence` lacks a nonzero of `tensor` or has a weight that is 0 or less, or less than
        `unobserved`; if options exclude each other.

    Notes
    -----
    An iteration takes ``nnz * ndim * R**2`` operations and solves, for each row, a system of R
    equations, or, without weights or biases, of as many as the row has nonzeros if that is fewer.
    It computes in float64, whatever the dtype. The workspace holds the nonzeros with coordinates of
    8 bytes, a permutation of them for each mode, and blocks of rows of a fixed size. To choose the
    ridge takes as long as 100 to 200 iterations, if components predict nothing or without noise up
    to 600, and another workspace. The run then starts from the model that was found with that
    ridge, if it settles clearly lower there than from `init`; both take up to 100 iterations.

    With `cg_steps` an iteration takes ``cg_steps + 2`` passes over the nonzeros per mode, of up to
    ``4 * nnz * ndim * R`` operations each. Errors, which cost nothing more, are differences of
    large sums: below about the root of the dtype's rounding they say nothing. The workspace is that
    of `mttkrp`, one more tensor, two with a `confidence`, and five arrays as large as a factor.

    The result is a local minimum. The random guess is non-negative: for values of both signs, try
    several `random_state` and a larger `l2_reg`, and compare the predictions of held-out nonzeros.
    Results are the same in every run on one machine; with a rank above 64 the last bits can change
    with the number of threads of the BLAS.

    References
    ----------
    Tomasi and Bro, "PARAFAC and missing values", Chemometrics and Intelligent Laboratory Systems
    75, 2005. Zhou, Wilkinson, Schreiber and Pan, "Large-scale Parallel Collaborative Filtering for
    the Netflix Prize", AAIM 2008. Hu, Koren and Volinsky, "Collaborative Filtering for Implicit
    Feedback Datasets", ICDM 2008. Takacs, Pilaszy and Tikk, "Applications of the Conjugate Gradient
    Method for Implicit Feedback Collaborative Filtering", RecSys 2011.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo import FlycooTensor, observed_parafac
    >>> random = np.random.RandomState(0)
    >>> factors = [random.random_sample((20, 2)) for _ in range(3)]
    >>> coords = random.randint(0, 20, (3, 1000))
    >>> coords = np.unique(coords, axis=1)  # an eighth of the 8000 entries
    >>> values = np.prod([f[c] for f, c in zip(factors, coords)], axis=0).sum(axis=1)
    >>> x = FlycooTensor(coords, values, (20, 20, 20))
    >>> cp_tensor = observed_parafac(x, rank=2, random_state=0)
    >>> whole = np.einsum("ir,jr,kr->ijk", *factors)
    >>> found = np.einsum("ir,jr,kr->ijk", *cp_tensor.factors)
    >>> bool(np.linalg.norm(found - whole) < 0.01 * np.linalg.norm(whole))
    True
    """
    # Check the options.
    x = as_flycoo(tensor, check_coords=True)
    num_components = check_rank(rank)
    if x.ndim < 2:
        raise ValueError(f"tensor has shape {x.shape}, expected two modes or more")
    if x.nnz == 0:
        raise ValueError("tensor has no nonzeros, expected some: nothing is observed")
    ridge = _read_ridge(l2_reg)
    if non_negative and (biases or cg_steps):
        raise ValueError("non_negative is True, expected biases=False and cg_steps=None with it")
    check_real(unobserved, "unobserved", 0)
    if unobserved and confidence is None:
        raise ValueError(f"unobserved is {unobserved}, expected 0, or more with a confidence")
    num_steps = _choose_num_steps(cg_steps, unobserved, non_negative)

    # Take the data.
    entries = weigh_entries(x, confidence, unobserved)
    held_out = None if validation is None else read_entries(validation, x, "validation")
    problem = Problem(
        x=x,
        rank=num_components,
        init=init,
        mean=entries.find_mean(x.shape),
        biases=biases,
        unobserved=unobserved,
        non_negative=non_negative,
        num_steps=num_steps,
    )

    # Begin with a guess and a ridge, or from a checkpoint.
    if isinstance(init, Resumed):
        beginning = _resume(problem, held_out, ridge, init)
    else:
        beginning = _begin(problem, entries, held_out, ridge, random_state)
    rows = problem.make_rows(entries, beginning.ridge)
    del entries  # conjugate gradients have them in tensors

    # Iterate.
    sweep = ObservedSweep(
        rows=rows,
        model=beginning.model,
        held_out=held_out,
        ridge=beginning.ridge,
        dtype=x.dtype,
        wants_errors=bool(tol or return_errors or callback is not None),
        state=find_state(init),
    )
    stop: Stop = Converged(tol)
    if held_out is not None:
        stop = AnyOf(OutOfPatience(_PATIENCE), stop)
    facts: dict[str, Any] = {"l2_reg": beginning.ridge, "scale": problem.scale}
    if biases:
        facts["bias_modes"] = problem.bias_modes
    result = Run(
        sweep=sweep,
        tensor=x,
        n_iter_max=n_iter_max,
        stop=stop,
        callback=callback,
        return_errors=return_errors,
        finish=sweep.make_result,
        facts=facts,
    ).iterate()
    least = beginning.error
    if sweep.best is not None:
        least = sweep.least
    _warn_of_mean(least, beginning.error_of_mean, ridge)
    return result


def _read_ridge(l2_reg: Any) -> float | None:
    """Return the user's ridge; None if it is to be chosen by validation."""
    if isinstance(l2_reg, str) and l2_reg == "validation":
        return None
    check_positive(l2_reg, "l2_reg")
    return float(l2_reg)


def _choose_num_steps(cg_steps: int | None, unobserved: float, non_negative: bool) -> int:
    """Return how many steps of conjugate gradients improve a row; 0 solves its system."""
    if cg_steps is not None:
        return check_count(cg_steps, "cg_steps", 0)
    if unobserved and not non_negative:
        return _NUM_STEPS
    return 0


class _Beginning(NamedTuple):
    """The ridge, model and errors that a run begins with."""

    ridge: float
    model: RunModel
    error: float  # of held-out entries, by the trial of the ridge; 0 without one
    error_of_mean: float  # of the same entries, by the mean of the values; 0 without any


def _resume(
    problem: Problem, held_out: ObservedEntries | None, ridge: float | None, init: Any
) -> _Beginning:
    """Restore a checkpoint, which has the ridge that was chosen."""
    num_columns = len(problem.bias_modes)
    model = restore(init, problem.x, num_columns, "observed_parafac", problem.dtype)
    model.weights = None  # they are ones
    if ridge is None:
        ridge = float(init.state.get("l2_reg", observed_rows.L2_REG))
        check_positive(ridge, "l2_reg")
    error_of_mean = _measure_mean(problem, held_out)
    return _Beginning(ridge, model, error=0.0, error_of_mean=error_of_mean)


def _begin(
    problem: Problem,
    entries: ObservedEntries,
    held_out: ObservedEntries | None,
    ridge: float | None,
    random_state: Any,
) -> _Beginning:
    """Make the initial guess; choose the ridge if it is None."""
    guess = problem.start(random_state)
    error_of_mean = _measure_mean(problem, held_out)
    if ridge is None and problem.unobserved:
        ridge = 1.0  # where all cells count, none can be held out to judge by
    if ridge is not None:
        return _Beginning(ridge, RunModel(None, guess), error=0.0, error_of_mean=error_of_mean)
    ridge, trial, error_at_splits = choose_ridge(problem, _split(entries, held_out))
    if held_out is None:
        error_of_mean = error_at_splits
    factors = guess
    if is_better_start(problem, entries, ridge, trial.factors, guess):
        factors = trial.factors
    return _Beginning(ridge, RunModel(None, factors), trial.error, error_of_mean)


def _measure_mean(problem: Problem, held_out: ObservedEntries | None) -> float:
    """Return the error of held-out entries by the mean of the values; 0 without any."""
    if held_out is None:
        return 0.0
    return held_out.compare(problem.mean)


def _split(entries: ObservedEntries, held_out: ObservedEntries | None) -> Iterator[Split]:
    """Split off the entries that judge ridges: the user's, or else a tenth at a time."""
    if held_out is None:
        return entries.divide()
    return iter([(entries, held_out)])


def _warn_of_mean(error: float, error_of_mean: float, ridge: float | None) -> None:
    """Warn if held-out entries are predicted worse than by the mean; `ridge` is the user's."""
    if not error > error_of_mean:
        return
    advice = ""
    if ridge is not None:
        advice = f'l2_reg="validation" (it is {ridge:g}), '
    warn(
        f"held-out entries are predicted with an error of {error:.3g}, and of {error_of_mean:.3g} "
        f"by the mean: pass {advice}a lower rank or biases=True"
    )


@final
class ObservedSweep(Sweep):
    """Fits the rows of one factor after the other.

    With held-out entries it keeps the model that predicts them best.
    """

    solver = "observed_parafac"

    def __init__(
        self,
        *,
        rows: RowSolver,
        model: RunModel,
        held_out: ObservedEntries | None,
        ridge: float,
        dtype: np.dtype,  # of the result
        wants_errors: bool,
        state: Mapping[str, np.ndarray],  # of a checkpoint; else empty
    ) -> None:
        self.model = model
        self._rows = rows
        self._held_out = held_out
        self._ridge = ridge
        self._dtype = dtype
        self._wants_errors = wants_errors
        # The factors that predict held-out entries best so far, and their error.
        self.best: list[Array] | None = None
        self.least = math.inf
        names = [f"best_{n}" for n in range(len(model.factors))]
        if held_out is not None and state.keys() >= {*names}:
            xp = array_module(model.factors[0])
            self.best = [xp.asarray(state[name]) for name in names]
            self.least = min(model.errors)

    def update(self, iteration: int) -> float | None:
        factors = self.model.factors
        fit_all(self._rows, factors)
        if self._held_out is None and not self._wants_errors:
            return None
        error = self.measure_start()
        if self._held_out is not None and (self.best is None or error < self.least):
            self.least = error
            self.best = list(factors)
        return error

    def measure_start(self) -> float:
        if self._held_out is not None:
            return self._held_out.measure(self.model.factors)
        return self._rows.measure(self.model.factors)

    def make(self) -> CPTensor:
        return make_cp_tensor(self.model.weights, self.model.factors)

    def make_result(self) -> CPTensor:
        """Make the model that predicts held-out entries best, or the last one."""
        factors = self.best or self.model.factors
        return make_cp_tensor(None, [factor.astype(self._dtype) for factor in factors])

    def save_state(self) -> dict[str, Array]:
        return {"l2_reg": np.array(self._ridge), **dict(number("best", self.best or []))}
