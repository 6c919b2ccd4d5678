"""What surrounds a decomposition: all steps from the caller's arguments to the labelled model."""

from __future__ import annotations

import functools
import inspect
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral
from typing import Any, ParamSpec, TypeVar

import tensorly.decomposition
from tensorly._factorized_tensor import FactorizedTensor
from tensorly.backend import BackendManager
from tensorly.cp_tensor import CPTensor

from ..base.checks import check_integer, check_modes, check_real
from ..base.fit_record import FitRecord, attach, current_record, find_record, recording
from ..base.reporting import log_compilation, span
from ..base.watching import watch
from ..engines.out_of_memory import attempt, check_room
from ..ops.ragged import RaggedTensor
from ..spread.memory import count_iteration_nbytes
from ..tensor.converters import find_instead, not_sparse_error
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import Call, is_sparse, refuse_foreign
from ..tensor.labelled import LabelledTensor
from ..tensor.tensor import FlycooTensor
from .cp_model import warn_of_zeros
from .model_uses import check_guess, match_guess
from .scaling import bring_near_one
from .shared_factors import SHARING, check_shared_labels
from .unknown_cells import obey_unknown
from .whole_tensor import WholeTensor

_P = ParamSpec("_P")
_R = TypeVar("_R")
_F = TypeVar("_F", bound=Callable[..., Any])


#: Options that several decompositions have, and the least that each integer may be.
_INTEGERS = {
    "n_iter_max": 0,
    "svd_mask_repeats": 0,
    "n_iter_max_inner": 1,
    "n_iter_parafac": 1,
}
#: Finite numbers. A `tol` below 0 never stops a run, but computes the errors.
_NUMBERS = ("tol", "tol_inner", "tol_outer")
_MODES = ("fixed_modes", "fixed_factors")

#: Those of them that may be None.
_OPTIONAL = ("tol", *_MODES)


def check_options(options: Mapping[str, Any], ndim: int) -> None:
    """Refuse options of the wrong type, or out of range; `ndim` is the tensor's."""
    for name, option in options.items():
        if option is None and name in _OPTIONAL:
            continue
        if name in _INTEGERS:
            check_integer(option, name, _INTEGERS[name])
        elif name in _NUMBERS:
            check_real(option, name)
        elif name in _MODES:
            check_modes(option, ndim, name)


def _check_factors(init: Any, ndim: int, only_some: bool) -> None:
    """Refuse an initial guess that is no model: a pair, or the factors of a Tucker model alone."""
    if hasattr(init, "factors") or hasattr(init, "factor_matrices"):
        return
    if not isinstance(init, tuple | list):
        raise TypeError(
            f"init is a {type(init).__name__}, expected the name of a start or (weights, factors)"
        )
    is_pair = len(init) == 2 and isinstance(init[1], tuple | list)
    factors = init[1] if is_pair else init
    for n, factor in enumerate(factors):
        if getattr(factor, "ndim", None) != 2:
            raise TypeError(f"factors[{n}] of init is a {type(factor).__name__}, expected a matrix")
    if len(factors) != ndim and not only_some:
        raise ValueError(f"init has {len(factors)} factors, expected {ndim}")


def guard(
    function: Callable[_P, _R],
    dense: Callable[_P, _R] | None = None,
    label: Callable[[_R, Any], _R] = lambda result, data: result,
    describe: Callable[[str, Mapping[str, Any], Any], FitRecord] | None = None,
    takes: Callable[[str, Call], bool] = lambda name, call: True,
    converts: bool = True,
    explain: Callable[[Mapping[str, Any]], str] = lambda kwargs: "",
) -> Callable[_P, _R]:
    """Surround a decomposition with all that happens to its arguments and its result.

    `decompose`, below, has the steps in their order. The function gets its arguments by name: a
    FlycooTensor or a RaggedTensor without labels, whose values are near 1, modes by number, and
    arrays on the device of the tensor. It logs all that it compiles in one line, and explains a
    MemoryError.

    Calls without a sparse tensor go to `dense`, by default TensorLy's function of that name, if
    any, and so do those that `takes` (name, call) leaves to TensorLy; a table is refused. `label`
    gives the result the labels of its data, and `describe` (name, options, tensor) says how the
    function makes a model. `explain` (kwargs) adds a hint to the TypeError for a wrong argument.
    With `converts=False` the function gets a `sparse.COO` as it is.
    """
    name = function.__name__
    signature = inspect.signature(function)
    first = next(iter(signature.parameters))
    defaults = {key: parameter.default for key, parameter in signature.parameters.items()}
    decompose_dense = dense or _find_dense(function)

    @functools.wraps(function)
    def decompose(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # 1. Which tensor is sparse, if any?
        call = Call(args, kwargs)
        if name == "parafac2":
            call.accept_scipy_slices()
        if call.foreign is not None:
            refuse_foreign(call.foreign)
        if call.tensor is None:
            _refuse_table(args[0] if args else kwargs.get("tensor"))
        # A WholeTensor comes from our own call of TensorLy's loop, if somebody has decorated that.
        is_for_loop = call.tensor is None or isinstance(call.tensor, WholeTensor)
        if is_for_loop or not takes(name, call):
            with log_compilation():
                return decompose_dense(*args, **kwargs)

        # 2. Arguments by name, without labels, and checked.
        call.name_arguments(signature, name, explain)
        data = call.kwargs[first]
        labelled = call.drop_labels()
        if isinstance(data, LabelledTensor):
            _mask_unknown_and_match_guess(call, data, name, defaults)
            if name in SHARING:
                check_shared_labels(call.kwargs.get("modes", defaults["modes"]), data)
        _check_arguments(call, name)

        # 3. The decomposition itself, of values near 1, on a device.
        x = call.tensor
        record = functools.partial(describe or _name_only, name, defaults | call.kwargs, x)
        compute = functools.partial(_compute, function, name, call, first, converts)
        watching = watch(name, call.kwargs)
        with recording(name, record), span(name, x), watching, log_compilation():
            result = attempt(name, compute)
            model = result[0] if isinstance(result, tuple) else result
            if find_record(model) is None and isinstance(model, FactorizedTensor):
                attach(model, current_record(name))  # of TensorLy's own loop

        # 4. The model with its labels, on the caller's side.
        if isinstance(model, CPTensor):
            warn_of_zeros(model)
        if labelled is not None:
            result = label(result, labelled)
        elif getattr(x, "labels", None):  # of a RaggedTensor
            result = label(result, x)
        return call.give_back(result)

    return decompose


def _refuse_table(x: Any) -> None:
    """Refuse a table, or an array of another library, in place of a tensor."""
    if find_instead(x) is not None:
        raise not_sparse_error(x)


def _mask_unknown_and_match_guess(
    call: Call, data: LabelledTensor, name: str, parameters: Collection[str]
) -> None:
    """Make options of what the decomposed tensor knows beside its labels.

    Unknown cells become a mask, and the rows of a guess come into the order of its labels.
    """
    call.kwargs = obey_unknown(data, name, parameters, call.kwargs)
    if "init" in call.kwargs:
        call.kwargs["init"] = match_guess(call.kwargs["init"], data)


def _check_arguments(call: Call, name: str) -> None:
    """Refuse options and a guess that are wrong for any decomposition."""
    for option in _MODES:
        if isinstance(call.kwargs.get(option), Iterable):  # an array or an iterator too
            call.kwargs[option] = list(call.kwargs[option])
    x = call.tensor
    ndim = 3 if name == "parafac2" else x.ndim  # x may be a slice
    check_options(call.kwargs, ndim)
    init = call.kwargs.get("init", "")
    if not isinstance(init, str):
        _check_factors(init, ndim, only_some="modes" in call.kwargs)
        check_guess(name, init, x.shape)


def _compute(
    function: Callable[..., Any], name: str, call: Call, first: str, converts: bool
) -> Any:
    """Convert the argument `first`, move the arrays, bring values near 1, and decompose.

    What runs out of memory here is explained, as it is inside the decomposition.
    """
    if converts:
        _convert_tensor(call, first)
    call.move_to_device()
    _check_memory(call.kwargs[first], call.kwargs)
    scaling = bring_near_one(name, call.kwargs, first)
    result = function(**call.kwargs)
    if scaling is None:
        return result
    return scaling.scale_result(result)


def _check_memory(data: Any, options: Mapping[str, Any]) -> None:
    """Raise a MemoryError before anything is allocated if not even a plain iteration fits.

    All solvers take as much at least, of the lowest rank of a Tucker model, if they iterate over
    all modes. PARAFAC2 iterates over the matrix of its slices.
    """
    x = data.matrix if isinstance(data, RaggedTensor) else data
    if options.get("n_iter_max") == 0:
        return
    for name in (*_MODES, "modes"):
        if options.get(name) is not None:  # some modes stay as they are
            return
    rank = options.get("rank")
    ranks = rank if isinstance(rank, list | tuple) else [rank]
    numbers = [r for r in ranks if isinstance(r, Integral)]
    if numbers:
        check_iteration(x, int(min(numbers)))


def check_iteration(x: Any, rank: int) -> None:
    """Raise a MemoryError if an iteration over a tensor on the host does not fit."""
    if isinstance(x, FlycooTensor) and x.device == "cpu":
        check_room(x._engine, count_iteration_nbytes(x._engine, x._layout, rank))


def _convert_tensor(call: Call, first: str) -> None:
    """Replace the argument `first`, a COO, by its FlycooTensor, or slices by a RaggedTensor."""
    data = call.kwargs[first]
    if first == "tensor_slices" and not isinstance(data, RaggedTensor):
        with span("conversion"):
            call.replace_tensor(first, RaggedTensor(data))
    elif is_sparse(data):
        call.replace_tensor(first, as_flycoo(data, check_coords=True))


def _name_only(method: str, options: Mapping[str, Any], x: Any) -> FitRecord:
    return FitRecord(method=method)


@functools.cache
def tensorly_loop(name: str) -> Callable[..., Any]:
    """Return TensorLy's decomposition of that name, as it was before our replacement."""
    function = getattr(tensorly.decomposition, name)
    return getattr(function, "_flycoo_original", function)


def _find_dense(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return TensorLy's function of that name, which gets a callback only if it takes one."""
    name = function.__name__
    if not hasattr(tensorly.decomposition, name):
        return function

    def dense(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        original = tensorly_loop(name)
        if "callback" in kwargs and "callback" not in inspect.signature(original).parameters:
            raise TypeError(
                f"callback= of {name} works for sparse tensors only: TensorLy's own function, "
                "which decomposes dense ones, has none; leave it out"
            )
        return original(*args, **kwargs)

    return dense


def require_flycoo_backend() -> None:
    """Refuse to run TensorLy's loop on a sparse tensor under another backend."""
    name = BackendManager.get_backend()
    if name != "flycoo":
        raise RuntimeError(f'TensorLy\'s backend is {name!r}, call tl.set_backend("flycoo")')


def describe_as(*functions: Callable[..., Any]) -> Callable[[_F], _F]:
    """Add to a docstring the parameters that it leaves out, as the last of `functions` has them.

    The parameters are in the order of the signature. One that none describes is a KeyError.
    """

    def describe(function: _F) -> _F:
        if not function.__doc__:  # "python -OO" has none
            return function
        before, texts, after = _split(function.__doc__)
        all_texts = ChainMap(texts)
        for described in reversed(functions):
            _, texts, _ = _split(described.__doc__ or "")
            all_texts.maps.append(texts)
        names = inspect.signature(function).parameters
        listed = dict.fromkeys(all_texts[name] for name in names)  # some share a text
        function.__doc__ = before + "\n".join(listed) + after
        return function

    return describe


def _split(docstring: str) -> tuple[str, dict[str, str], str]:
    """Return a docstring's descriptions by parameter, and the text before and after them."""
    before, heading, rest = inspect.cleandoc(docstring).partition("Parameters\n----------\n")
    listed, returns, after = rest.partition("\n\nReturns\n")
    texts: dict[str, str] = {}
    for text in re.split(r"\n(?=\w)", listed):
        names = re.match(r"[\w, ]+", text)
        if names is not None:
            texts |= dict.fromkeys(names[0].strip().split(", "), text)
    return before + heading, texts, returns + after
