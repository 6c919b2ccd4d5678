"""Write docs/supported.md's table of what takes a sparse tensor, by trying each function.

    python tests/support/supported_table.py         # update the table
    python tests/support/supported_table.py --gpu   # first try all on this machine's GPU, record it

"yes" means that a function runs on a small sparse tensor, "no" that it refuses the tensor; a limit
is listed only if the use it describes is refused. The GPU's column shows what a run on a GPU
recorded in `tests/gpu/supported_table.json`.
"""

import argparse
import datetime
import importlib
import inspect
import json
import operator
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sparse
import tensorly as tl
from sparse_problems import random_coo
from tensorly._factorized_tensor import FactorizedTensor

from tensorly_flycoo import DensifyError, FlycooTensor, set_device
from tensorly_flycoo.base.array_modules import array_module, is_cupy

PAGE = Path(__file__).parents[2] / "docs" / "supported.md"
RECORD = PAGE.parents[1] / "tests" / "gpu" / "supported_table.json"
START = "<!-- Below: written by tests/support/supported_table.py -->\n"
END = "<!-- Above: written by tests/support/supported_table.py -->\n"

#: Modules of TensorLy: the table lists all their public functions and classes.
MODULES = ("decomposition", "contrib.decomposition", "regression", "base", "tenalg")

#: The version of TensorLy that the table describes; earlier ones lack some options.
TENSORLY = "0.10"

#: The sparse tensors that a user may pass to TensorLy.
KINDS = {"COO": lambda coo: coo, "FlycooTensor": FlycooTensor.from_coo}

#: Operations that are not TensorLy functions.
_OPERATIONS = {"slicing": operator.getitem, "iteration": list}

#: Call a function or class (the first argument) with a sparse tensor (the second).
Use = Callable[[Callable, Any], Any]


class Row(NamedTuple):
    """A row of the table: functions and classes that all work, or all fail for one reason.

    Attributes
    ----------
    uses : dict
        How to call each, by its name in `tensorly`.
    limits : dict
        Calls that are refused although `uses` work, by their text in the table.
    why_not : str
        Why all are refused, and what to use instead; empty if they work.
    shape : tuple of int
        Shape of the tensor to try, with 50 nonzeros.
    """

    uses: dict[str, Use]
    limits: dict[str, Use] = {}  # noqa: RUF012 (never written to)
    why_not: str = ""
    shape: tuple[int, ...] = (6, 7, 8)


# How functions and classes are used


def _alike(module, names, use):
    prefix = f"{module}." if module else ""
    return {f"{prefix}{name}": use for name in names.split()}


def _give(*arguments, **options):
    """Call a function with the tensor first, or make an instance of a class and fit the tensor."""

    def use(target, x):
        if inspect.isclass(target):
            return target(*arguments, **options).fit_transform(x)
        return target(x, *arguments, **options)

    return use


def _give_mask(make_mask, *arguments, **options):
    return lambda target, x: _give(*arguments, mask=make_mask(x), **options)(target, x)


def _miss_one(x):
    """Make a mask with one missing entry, in the form that TensorLy documents."""
    return sparse.COO(np.zeros((len(x.shape), 1), int), [0.0], tuple(x.shape), fill_value=1.0)


def _each(*uses):
    return lambda target, x: [use(target, x) for use in uses]


def _ones(x, *shape):
    return tl.ones(shape, **tl.context(x))


def _factors(x):
    return [_ones(x, size, 2) for size in x.shape]


def _vectors(x):
    return [_ones(x, size) for size in x.shape]


def _leave_out_two_modes(target, x):
    """Multiply mode 0 only; the others have more indices together than there are nonzeros."""
    if target is tl.decomposition.partial_tucker:
        return target(x, [2], modes=[0])
    start = (_ones(x, 2, 2, 2), _factors(x))
    return _give([2, 2, 2], fixed_factors=[1, 2], init=start)(target, x)


def _regress(target, x):
    rank = [2] * (len(x.shape) - 1) if target is tl.regression.TuckerRegressor else 2
    return target(rank).fit(x, _ones(x, x.shape[0]))


def _couple(function, x):
    return function(x, _ones(x, x.shape[0], 2), 2)


_SHORT = {"n_iter_max": 2, "random_state": 0}
_SLICES = {**_SHORT, "return_errors": True}  # which TensorLy's class needs
_NON_NEGATIVE = _give(2, non_negative=True, **_SHORT)
_WITH_MASK = _each(_give(2, **_SHORT), _give_mask(_miss_one, 2, **_SHORT))
_MASK = {"a `mask` must have fill_value 1": _give_mask(lambda x: x, 2, **_SHORT)}
_NO_SYMEIG = "not with `symeig_svd`"
_LEFT_OUT = (
    "modes that are left out, if two or more, must not have more indices together than there are "
    "nonzeros"
)

# The rows

_PARAFAC, _TUCKER = "use `parafac`", "use `tucker`"

ROWS = [
    Row(
        _alike("decomposition", "parafac CP", _WITH_MASK),
        {
            **_MASK,
            "no `sparsity`": _give(2, sparsity=0.5, **_SHORT),
            _NO_SYMEIG: _give(2, svd="symeig_svd"),
        },
    ),
    Row(_alike("decomposition", "non_negative_parafac CP_NN", _WITH_MASK), _MASK),
    Row(_alike("decomposition", "non_negative_parafac_hals CP_NN_HALS", _give(2, **_SHORT))),
    Row(_alike("decomposition", "constrained_parafac ConstrainedCP", _NON_NEGATIVE)),
    Row(
        _alike("decomposition", "tucker Tucker partial_tucker", _give([2, 2, 2], n_iter_max=2)),
        {_LEFT_OUT: _leave_out_two_modes},
    ),
    Row(
        _alike(
            "decomposition",
            "non_negative_tucker non_negative_tucker_hals",
            _give([2, 2, 2], **_SHORT),
        )
    ),
    Row(
        _alike(
            "decomposition",
            "parafac2 Parafac2",
            _each(_give(2, **_SLICES), _give_mask(_miss_one, 2, **_SLICES)),
        ),
        {"a `mask` must have fill_value 1": _give_mask(lambda x: x, 2, **_SLICES)},
    ),
    Row(
        {
            "tenalg.mode_dot": lambda f, x: f(x, _vectors(x)[1], 1),
            "tenalg.multi_mode_dot": lambda f, x: f(x, _factors(x), transpose=True),
        },
        {
            f"with matrices dense: {_LEFT_OUT}": lambda f, x: tl.tenalg.multi_mode_dot(
                x, _factors(x)[:1], [0], transpose=True
            )
        },
    ),
    Row({"tenalg.unfolding_dot_khatri_rao": lambda f, x: f(x, (None, _factors(x)), 0)}),
    Row(
        {"tenalg.inner": lambda f, x: f(x, x)},
        {"of all modes, or of one with a vector": lambda f, x: f(x, x, 1)},
    ),
    Row(
        {
            "tenalg.khatri_rao": lambda f, x: f(_factors(x), mask=x),
            "cp_to_tensor": lambda f, x: f((None, _factors(x)), mask=x),
        },
        {
            "only `mask` may be sparse: values at its nonzeros": lambda f, x: tl.tenalg.khatri_rao(
                [x, x]
            )
        },
    ),
    Row(
        _alike("tenalg", "svd_interface", lambda f, x: f(tl.unfold(x, 1), n_eigenvecs=2))
        | _alike("tenalg", "truncated_svd", lambda f, x: f(tl.unfold(x, 1), n_eigenvecs=2)[0]),
        {_NO_SYMEIG: lambda f, x: tl.tenalg.svd_interface(tl.unfold(x, 1), "symeig_svd")},
    ),
    Row(_alike("", "norm sum mean abs", lambda f, x: f(x))),
    Row({"slicing": lambda f, x: f(tl.tensor(x), 1), "iteration": lambda f, x: f(tl.tensor(x))}),
    Row(
        {
            "transpose": lambda f, x: f(x),
            "moveaxis": lambda f, x: f(x, 0, 2),
            "reshape": lambda f, x: f(x, (6, 56)),
            "base.unfold": lambda f, x: f(x, 1),
            "base.fold": lambda f, x: f(tl.unfold(x, 1), 1, x.shape),
            "base.matricize": lambda f, x: f(x, [1]),
            "base.tensor_to_vec": lambda f, x: f(x),
            "base.vec_to_tensor": lambda f, x: f(tl.tensor_to_vec(x), x.shape),
            "base.partial_unfold": lambda f, x: f(x, 1),
            "base.partial_fold": lambda f, x: f(tl.partial_unfold(x, 1), 1, x.shape),
            "base.partial_tensor_to_vec": lambda f, x: f(x),
            "base.partial_vec_to_tensor": lambda f, x: f(tl.partial_tensor_to_vec(x), x.shape),
        },
        {"lazy views; a mode cannot be split": lambda f, x: tl.reshape(x, (2, -1))},
    ),
    Row(
        _alike("decomposition", "tensor_train TensorTrain", _give([1, 2, 2, 1]))
        | _alike("decomposition", "tensor_ring TensorRing", _give([1, 2, 2, 1]))
        | _alike("decomposition", "tensor_train_matrix TensorTrainMatrix", _give([1, 2, 1])),
        why_not=f"it forms right singular vectors, as long as an unfolding: {_TUCKER}",
    ),
    Row(
        _alike("decomposition", "tensor_ring_als TensorRingALS", _give([2, 2, 2, 2]))
        | _alike(
            "decomposition", "tensor_ring_als_sampled TensorRingALSSampled", _give([2] * 4, 9)
        ),
        why_not=f"it forms the product of all cores but one, as long as an unfolding: {_TUCKER}",
    ),
    Row(
        _alike("decomposition", "parafac_power_iteration CPPower SymmetricCP", _give(2))
        | _alike("decomposition", "symmetric_parafac_power_iteration", _give(2))
        | _alike("decomposition", "power_iteration symmetric_power_iteration", _give()),
        shape=(7, 7, 7),
    ),
    Row(
        _alike("decomposition", "randomised_parafac RandomizedCP", _give(2, 20, **_SHORT)),
        why_not=f"few sampled fibres of a sparse tensor have a nonzero: {_PARAFAC}",
    ),
    Row(
        _alike("decomposition", "robust_pca", _give()),
        why_not=f"its low-rank part has an element for each cell: {_PARAFAC}",
    ),
    Row(
        _alike("decomposition", "coupled_matrix_tensor_3d_factorization", _couple),
        why_not="it forms Khatri-Rao products: use `tensorly_flycoo.coupled_parafac`",
    ),
    Row(
        _alike("contrib.decomposition", "tensor_train_cross", _give([1, 2, 2, 1]))
        | _alike("contrib.decomposition", "tensor_train_OI", _give([1, 2, 2, 1]))
        | _alike("contrib.decomposition", "TensorTrain_OI", _give([1, 2, 2, 1], 2, False, False)),
        why_not=f"it reads elements or forms the tensor: {_TUCKER}",
    ),
    Row(
        _alike("regression", "CPRegressor TuckerRegressor CP_PLSR", _regress),
        why_not="its weights or residuals have an element for each cell: regress on the factor of "
        "the samples that `parafac` gives",
    ),
    Row(
        {"cp_tensor.cp_lstsq_grad": lambda f, x: f((None, _factors(x)), x, return_loss=True)},
        {"no `mask`": lambda f, x: f((None, _factors(x)), x, mask=x)},
    ),
    Row(
        _alike("tenalg", "outer batched_outer kronecker", lambda f, x: f([x, x]))
        | {"tenalg.tensordot": lambda f, x: f(x, x, 2)},
        why_not="the result has an element for each pair of cells: use `inner` or `mode_dot`",
        shape=(7, 7, 7),
    ),
]


def list_public(module_name):
    """List the public functions and classes of one of `MODULES`."""
    module = importlib.import_module(f"tensorly.{module_name}")
    found = {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) or inspect.isclass(value)
        if value.__module__.startswith(module.__name__) and "Backend" not in name
    }
    found.update(getattr(module, "_functions", ()))  # those that tenalg dispatches to a backend
    return {f"{module_name}.{name}" for name in found if not name.startswith("_")}


# Trying


def is_refused(row, name, kind):
    """Return whether a function or class refuses the tensor; otherwise check its result.

    A refusal is a DensifyError, or an IndexError for indexing with lists.
    """
    x = KINDS[kind](random_coo(row.shape, 50))
    try:
        found = row.uses[name](find_function(name), x)
    except (DensifyError, IndexError):
        return True
    on_gpu = "device" in tl.context(x)
    for array in _list_arrays(found):
        if is_cupy(array) != on_gpu or not array_module(array).isfinite(array).all():
            raise AssertionError(f"{name} of a {kind} gave {array!r}")
    return False


def find_function(name):
    """Return a function or class by its name in `tensorly`, or one of `_OPERATIONS`."""
    if name in _OPERATIONS:
        return _OPERATIONS[name]
    module, _, name = f"tensorly.{name}".rpartition(".")
    return getattr(importlib.import_module(module), name)


def _list_arrays(found):
    if isinstance(found, list | tuple | FactorizedTensor):
        return [array for item in found for array in _list_arrays(item)]
    return [found] if isinstance(found, np.ndarray) or is_cupy(found) else []


def check_limit(row, text, kind):
    """Raise AssertionError unless the limit's call is refused for each name of the row."""
    for name in row.uses:
        try:
            row.limits[text](find_function(name), KINDS[kind](random_coo(row.shape, 50)))
        except DensifyError:
            continue
        raise AssertionError(f"{name} of a {kind} works, which the limit {text!r} denies")


# Writing


def make_line(row, record, kind="COO"):
    """Try every call of a row; return its line of the table."""
    for name in row.uses:
        if is_refused(row, name, kind) != bool(row.why_not):
            raise AssertionError(f"{name} of a {kind} {'works' if row.why_not else 'is refused'}")
    for text in row.limits:
        check_limit(row, text, kind)
    why = row.why_not or "; ".join(row.limits)
    on_gpu = sorted({record.get(name, "not run") for name in row.uses})
    names = ", ".join(map(_print_name, row.uses))
    return f"| {names} | {'no' if row.why_not else 'yes'} | {' or '.join(on_gpu)} | {why} |"


def _print_name(name):
    return name if name in _OPERATIONS else f"`{name.rsplit('.', 1)[-1]}`"


def read_record():
    """Return the outcome of each name on a GPU, and a description of the run."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record.get("names", {}), record.get("run", "not run yet")


def make_frame():
    """Return the lines of the table above and below the rows."""
    _, run = read_record()
    start = ["| TensorLy's | CPU | GPU | why not, or what not |", "|---|---|---|---|"]
    return start, ["", f"Tried with TensorLy {TENSORLY}. On a GPU: {run}."]


def make_table():
    """Try everything; return the table in Markdown."""
    (names, _), (start, end) = read_record(), make_frame()
    return "\n".join([*start, *(make_line(row, names) for row in ROWS), *end, ""])


def record_gpu():
    """Try everything on the GPU and record the outcomes."""
    import cupy

    set_device("cuda")
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    run = f"{name}, {datetime.date.today()}, CuPy {cupy.__version__}, TensorLy {tl.__version__}"
    names = {name: _try_on_gpu(row, name) for row in ROWS for name in row.uses}
    RECORD.write_text(json.dumps({"run": run, "names": names}, indent=1) + "\n")
    set_device("cpu")


def _try_on_gpu(row, name):
    outcomes = set()
    for kind in KINDS:
        try:
            outcomes.add("no" if is_refused(row, name, kind) else "yes")
        except Exception:  # any failure is an outcome
            traceback.print_exc()
            outcomes.add("fails")
    return " or ".join(sorted(outcomes))


def main(argv=None):
    """Update the table of docs/supported.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="first try all on the GPU and record it")
    warnings.simplefilter("ignore")
    with tl.backend_context("flycoo"):
        set_device("cpu")
        if parser.parse_args(argv).gpu:
            record_gpu()
        table = make_table()
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text(before + START + table + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
