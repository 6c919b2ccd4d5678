"""Checks of user input, and the wording of their errors.

A message gives the argument, what was passed and what was expected. Nothing has changed by then.
"""

import importlib
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .array_modules import Array, as_array, has_true, is_cupy, share
from .reporting import recorder
from .value_dtypes import FLOATS, VALUE_DTYPES
from .watching import clear_line

DEVICES = ("auto", "cpu", "cuda")
LAYOUTS = ("remap", "replicated", "indexed")
PLACES = ("device", "host")

#: An index takes at most 32 bits: no machine could hold a factor with more rows.
MAX_MODE_SIZE = 2**32

#: Bytes that are taken to be free: asking takes longer than allocating them.
SURELY_FREE_NBYTES = 2**28

#: Nonzeros checked at a time.
_CHECK_BLOCK = 2**13

#: Integers up to this size are exact in float64.
_MAX_EXACT_INTEGER = 2**53


class DensifyError(TypeError):
    """The error of an operation that would have to make a sparse tensor dense.

    Examples
    --------
    >>> import numpy as np, tensorly as tl, tensorly_flycoo
    >>> x = tensorly_flycoo.FlycooTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3))
    >>> with tl.backend_context("flycoo"):
    ...     np.asarray(x)
    Traceback (most recent call last):
        ...
    tensorly_flycoo.DensifyError: numpy.asarray would make a dense array of shape (3, 3); \
use x.to_coo() for the nonzeros
    """

    __module__ = "tensorly_flycoo"


def densify_error(operation: str, shape: Sequence[Any], instead: str) -> DensifyError:
    """Build the `DensifyError` of `operation`; `instead` says what to use.

    The usual cause is a forgotten `set_backend`: if so, the message ends with a hint.
    """
    message = f"{operation} would make a dense array of shape {shape}; {instead}"
    backend = current_backend()
    if backend not in (None, "flycoo"):
        message += f'; TensorLy\'s backend is {backend!r}: call tl.set_backend("flycoo")'
    profile = recorder.get()
    if profile is not None:
        profile.refusals.append(message)
    return DensifyError(message)


def current_backend() -> str | None:
    """Return the name of TensorLy's backend, or None if TensorLy is not (fully) imported."""
    get_backend = getattr(sys.modules.get("tensorly"), "get_backend", None)
    if get_backend is None:
        return None
    return get_backend()


def warn(message: str) -> None:
    """Warn at the line of the user: the first one outside this package and TensorLy."""
    # From Python 3.12 on, `skip_file_prefixes` does this.
    frame: Any = sys._getframe(1)
    level = 2
    while frame:
        package, _, _ = str(frame.f_globals.get("__name__")).partition(".")
        if package not in ("tensorly_flycoo", "tensorly"):
            break
        frame = frame.f_back
        level += 1
    clear_line()
    warnings.warn(message, stacklevel=level)


def require(module: str, need: str) -> Any:
    """Import an optional module; the ImportError begins with `need`, which says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{need} ({error})") from None


def check_shape(shape: Iterable[Any]) -> tuple[int, ...]:
    """Return `shape` as a tuple of at least one int, each from 1 to 2**32."""
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise TypeError(f"shape is {shape!r}, expected a sequence of integers") from None
    if not sizes:
        raise ValueError("shape is empty, expected at least one mode")
    for mode, size in enumerate(sizes):
        if not 1 <= size <= MAX_MODE_SIZE:
            raise ValueError(f"shape[{mode}] is {size}, expected 1 to {MAX_MODE_SIZE}")
    return sizes


def check_coords(coords: Array, shape: Sequence[int]) -> Array:
    """Return `coords` as an integer array (ndim, nnz); `check_inside` checks the indices."""
    coords = as_array(coords)
    if coords.size == 0 and coords.dtype == np.float64:  # NumPy's dtype for an empty list
        coords = coords.astype(np.int64)
    if coords.dtype.kind not in "iu":
        raise TypeError(
            f"coords has dtype {coords.dtype}, expected integers: convert it; of a sptensor of "
            "MATLAB make "
            "FlycooTensor(subs.T.astype(int) - 1, vals.ravel(), size.ravel().astype(int))"
        )
    coords = coords.astype(coords.dtype.newbyteorder("="), copy=False)  # as kernels read it
    if coords.ndim != 2:
        raise ValueError(f"coords has shape {coords.shape}, expected (ndim, nnz)")
    ndim = len(shape)
    if coords.shape[0] == ndim:
        return coords
    if coords.shape[1] == ndim:
        raise ValueError(
            f"coords has shape {coords.shape}, expected ({ndim}, nnz), one row per mode: "
            "transpose it (coords.T)"
        )
    raise ValueError(
        f"shape has {ndim} modes, expected {coords.shape[0]}: coords has "
        f"shape {coords.shape}, one row per mode"
    )


def check_inside(coords: Array, shape: Sequence[int]) -> None:
    """Refuse `coords` (ndim, nnz) with an index outside `shape`."""
    # In blocks that fit in the cache, in either memory order of coords.
    block_size = _CHECK_BLOCK
    if is_cupy(coords):  # each check synchronises, so one block holds all nonzeros
        block_size = max(1, coords.shape[1])
    for start in range(0, coords.shape[1], block_size):
        _check_block(coords[:, start : start + block_size], shape, start)


def _check_block(coords: Array, shape: Sequence[int], start: int) -> None:
    """Refuse an index outside `shape` in a block of coords, which begins at nonzero `start`."""
    for mode, (indices, size) in enumerate(zip(coords, shape, strict=True)):
        # Viewed as unsigned, a negative index is beyond all signed ones: one comparison does.
        unsigned = indices.view(indices.dtype.str.replace("i", "u"))
        end = size
        if indices.dtype.kind == "i":
            end = min(size, 2 ** (8 * indices.dtype.itemsize - 1))
        if int(unsigned.max()) < end:
            continue
        place = int(np.argmax(unsigned >= end))
        message = (
            f"coords[{mode}, {start + place}] is {indices[place]} (nonzero {start + place}, "
            f"mode {mode}), expected 0 to {size - 1}"
        )
        if int(unsigned[place]) == size:
            message += "; if the first index is 1, pass coords - 1"
        raise ValueError(message)


def check_dtype(dtype: DTypeLike, name: str = "dtype") -> np.dtype:
    """Return a dtype of `FLOATS`: bools and integers are counts, and become float64."""
    dtype = np.dtype(dtype)
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype not in FLOATS:
        raise TypeError(
            f"{name} is {dtype}, expected {', '.join(VALUE_DTYPES)}, an integer type or bool; "
            "convert the values first"
        )
    return dtype


def check_values(values: Array, nnz: int, dtype: DTypeLike | None = None) -> Array:
    """Return `values` as a float array (nnz,), in `dtype` or in their own precision.

    Only values that lose precision are checked to be finite; for others call `check_finite`.
    """
    values = as_array(values)
    float_dtype = check_dtype(values.dtype, "the dtype of values")
    if dtype is not None:
        float_dtype = check_dtype(dtype)
    if values.shape != (nnz,):
        hint = ", pass values.ravel()" if values.size == nnz else ""
        raise ValueError(
            f"values has shape {values.shape}, expected ({nnz},): coords holds {nnz} nonzeros{hint}"
        )
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8 and nnz > 0:
        _check_exact(values)
    converted = values.astype(float_dtype, copy=False)
    if converted.dtype.itemsize < values.dtype.itemsize:
        check_finite(values)
        check_finite(converted, f"values as {float_dtype}")
    return converted


def _check_exact(values: Array) -> None:
    """Refuse integers of 64 bits that float64 would round."""
    is_rounded = values > _MAX_EXACT_INTEGER
    if values.dtype.kind == "i":
        is_rounded |= values < -_MAX_EXACT_INTEGER
    if is_rounded.any():
        place = int(np.argmax(is_rounded))
        raise ValueError(
            f"values[{place}] is {values[place]}, expected integers up to 2**53, "
            "which float64 holds exactly"
        )


def check_finite(values: Array, name: str = "values") -> None:
    """Refuse nan and infinity: a single one would silently spread to whole factors."""
    if values.dtype.kind == "f" and has_true(~np.isfinite(values)):
        place = int(np.argmax(~np.isfinite(values)))
        raise ValueError(f"{name}[{place}] is {values[place]}, expected finite numbers")


def check_sums(values: Array) -> None:
    """Refuse values that are not finite, where given ones were: sums of duplicates overflowed."""
    check_finite(values, "the tensor would hold values that are not finite: values")


def check_place(array: Array, name: str, is_on_gpu: bool, whose: str) -> None:
    """Refuse an array that is not on the device of `whose`: nothing is copied silently."""
    if is_cupy(array) != is_on_gpu:
        expected = "cupy.ndarray" if is_on_gpu else "numpy.ndarray"
        raise TypeError(
            f"{name} is a {_name(type(array))}, expected a {expected} on the device of {whose}"
        )


def check_current_gpu(arrays: Mapping[str, Array | list[Array]], gpu: int) -> None:
    """Refuse CuPy arrays, or lists of them, that are not on the current GPU, where kernels run."""
    by_name: dict[str, Any] = {}
    for name, array in arrays.items():
        if isinstance(array, list):
            by_name |= {f"{name}[{n}]": element for n, element in enumerate(array)}
        else:
            by_name[name] = array
    for name, array in by_name.items():
        home = array.data.device_id
        if home != gpu:
            raise ValueError(
                f"{name} is on GPU {home}, expected GPU {gpu}, the current one: "
                f"compute inside `with cupy.cuda.Device({home}):`"
            )


def check_mode(mode: Any, ndim: int, name: str = "mode") -> int:
    """Return `mode` as an int from 0 to ndim - 1; `name` is the argument's."""
    index = check_integer(mode, name)
    if not 0 <= index < ndim:
        raise ValueError(f"{name} is {index}, expected 0 to {ndim - 1}")
    return index


def check_modes(modes: Any, ndim: int, name: str) -> None:
    """Refuse anything but a sequence of modes from 0 to ndim - 1; `name` is the argument's."""
    if isinstance(modes, str) or not isinstance(modes, Iterable):
        raise TypeError(f"{name} is {modes!r}, expected a sequence of integers")
    for mode in modes:
        check_mode(mode, ndim, f"a mode of {name}")


def check_real(number: Any, name: str, least: float = -math.inf) -> None:
    """Refuse anything but a finite number of at least `least`; `name` is the argument's."""
    if not isinstance(number, Real) or isinstance(number, bool):
        raise TypeError(f"{name} is {number!r}, expected a number")
    if not (math.isfinite(number) and float(number) >= least):
        bound = f", {least:g} or more" if least > -math.inf else ""
        raise ValueError(f"{name} is {number}, expected a finite number{bound}")


def check_positive(number: Any, name: str) -> None:
    """Refuse anything but a finite number above 0; `name` is the argument's."""
    check_real(number, name)
    if not number > 0:
        raise ValueError(f"{name} is {number}, expected a number above 0")


def check_least(array: Array, name: str, least: float = 0, reason: str = "") -> None:
    """Refuse an array with nan, -inf or an element below `least`; `reason` ends the message."""
    smallest = float(array.min()) if array.size else math.inf
    if not smallest >= least or smallest == -math.inf:
        raise ValueError(f"{name} has the element {smallest}, expected {least:g} or more{reason}")


def spread_numbers(argument: Any, ndim: int, name: str) -> list[Any]:
    """Return one number for each mode, 0 or more, or None; the argument is a list of them, or one.

    >>> spread_numbers(0.5, 2, "penalty"), spread_numbers([0.5, None], 2, "penalty")
    ([0.5, 0.5], [0.5, None])
    """
    if isinstance(argument, str):
        raise TypeError(f"{name} is {argument!r}, expected a number, or one for each mode")
    if not isinstance(argument, Iterable):
        if argument is not None:
            check_real(argument, name, 0)
        return [argument] * ndim
    numbers = list(argument)
    if len(numbers) != ndim:
        raise ValueError(f"{name} has {len(numbers)} numbers, expected {ndim}")
    for mode, number in enumerate(numbers):
        if number is not None:
            check_real(number, f"{name}[{mode}]", 0)
    return numbers


def read_strengths(option: Any, ndim: int, name: str) -> list[float]:
    """Return the strength of each mode, 0 where there is none.

    The option is one number for all modes, a list of them, or a dict by mode.

    >>> read_strengths({1: 10}, 3, "smoothness")
    [0.0, 10.0, 0.0]
    """
    numbers = option
    if isinstance(option, Mapping):
        check_modes(option, ndim, name)
        numbers = [option.get(mode) for mode in range(ndim)]
    return [float(number or 0) for number in spread_numbers(numbers, ndim, name)]


def check_rank(rank: Any, name: str = "rank") -> int:
    """Return `rank` as an int of at least 1."""
    if isinstance(rank, float | np.floating):  # which TensorLy takes, with another meaning
        raise TypeError(
            f"{name} is {rank}, expected an integer: TensorLy reads a fraction as a share of the "
            "number of cells, which are nearly all zeros in a sparse tensor"
        )
    return check_integer(rank, name, 1)


def check_integer(number: Any, name: str, least: float = -math.inf) -> int:
    """Return `number` as an int of at least `least`; `name` is the argument's."""
    if isinstance(number, bool):  # which Python takes for 0 or 1
        raise TypeError(f"{name} is {number!r}, expected an integer")
    try:
        integer = operator.index(number)
    except TypeError:
        raise TypeError(f"{name} is {number!r}, expected an integer") from None
    if integer < least:
        raise ValueError(f"{name} is {integer}, expected at least {least}")
    return integer


def check_count(count: Any, name: str, least: int = 1) -> int:
    """Return `count` as an int of at least `least`, by default 1; `name` is the argument's."""
    return check_integer(count, name, least)


def check_factors(
    factors: Iterable[Array],
    shape: Sequence[int],
    dtype: np.dtype,
    *array_types: type[Array],
    converts: bool = False,
) -> list[Array]:
    """Return `factors` as a list of matrices (I_n, R), one per mode, of one rank and dtype.

    With `converts` they may come in any precision; those of `dtype` stay the same objects.
    """
    matrices = list(factors)
    if len(matrices) != len(shape):
        raise ValueError(f"factors has {len(matrices)} matrices, expected {len(shape)}, one a mode")
    for n, factor in enumerate(matrices):
        matrix = factor if isinstance(factor, array_types) else share(factor)
        # Only floats are converted: integers are more likely a mistake, which is refused below.
        if converts and getattr(matrix, "dtype", dtype) != dtype and matrix.dtype.kind == "f":
            matrix = matrix.astype(dtype)
        check_matrix(matrix, f"factors[{n}]", shape[n], dtype, *array_types)
        matrices[n] = matrix
        rank = matrices[0].shape[1]
        if matrix.shape[1] != rank:
            raise ValueError(
                f"factors[{n}] has shape {matrix.shape}, expected "
                f"({shape[n]}, {rank}), the rank of factors[0]"
            )
    return matrices


def check_weights(weights: Array, rank: int, dtype: np.dtype, array_type: type[Array]) -> None:
    """Refuse weights that are not an array (R,) in the dtype and on the device of x."""
    if isinstance(weights, array_type) and weights.shape == (rank,) and weights.dtype == dtype:
        return
    kind = _name(type(weights)).removeprefix("builtins.")
    shape = getattr(weights, "shape", ())
    error = TypeError if shape == (rank,) else ValueError
    raise error(
        f"weights is a {kind} of shape {shape} and dtype {getattr(weights, 'dtype', None)}, "
        f"expected a {_name(array_type)} of shape ({rank},) and dtype {dtype}, on the device of x"
    )


def check_out(
    out: Array,
    shape: tuple[int, ...],
    dtype: np.dtype,
    array_type: type[Array],
    inputs: Iterable[tuple[str, Array]],
    may_share_memory: Callable[[Array, Array], bool],
) -> None:
    """Refuse an `out` that cannot hold the result, or overlaps one of the named `inputs`."""
    if not isinstance(out, array_type):
        kind = _name(type(out)).removeprefix("builtins.")
        raise TypeError(f"out is a {kind}, expected a {_name(array_type)} on the device of x")
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(f"out has shape {out.shape}, {out.dtype}, expected {shape}, {dtype}")
    if not out.flags.c_contiguous or not getattr(out.flags, "writeable", True):
        raise ValueError("out is read-only or not C-contiguous, expected writable and C order")
    for name, array in inputs:
        if may_share_memory(out, array):
            raise ValueError(f"out overlaps {name} in memory, expected separate memory")


def check_fill_value(fill_value: Any) -> None:
    """Refuse the fill_value of a sparse array whose unstored entries are not zero."""
    if fill_value != 0:
        raise ValueError(f"fill_value is {fill_value}, expected 0: unstored entries must be zeros")


def check_choice(choice: Any, name: str, choices: tuple[Any, ...]) -> Any:
    """Return an argument, which must be one of `choices`."""
    if choice not in choices:
        raise ValueError(f"{name} is {choice!r}, expected one of {choices}")
    return choice


def check_keep(keep: str, layout: str | None) -> str:
    """Return the layout that `keep` allows, or "auto"; refuse unknown names."""
    check_choice(keep, "keep", PLACES)
    if layout is None:
        layout = "auto"
    check_choice(layout, "layout", ("auto", *LAYOUTS))
    if keep == "device":
        return layout
    if layout not in ("auto", "replicated"):
        raise ValueError(f"layout is {layout!r}, but keep='host' needs 'replicated': leave it out")
    return "replicated"


def num_cells(shape: Iterable[int]) -> int:
    """Count the cells of a tensor as a Python int, which cannot overflow."""
    return math.prod(shape)


def check_matrix(
    matrix: Array, name: str, num_rows: int, dtype: np.dtype, *array_types: type[Array]
) -> None:
    """Refuse anything but a matrix with `num_rows` rows in the dtype of x."""
    if not isinstance(matrix, array_types):
        raise TypeError(
            f"{name} is a {_name(type(matrix))}, expected a {_name(array_types[0])} on the "
            "device of x"
        )
    if matrix.ndim != 2 or matrix.shape[0] != num_rows or matrix.shape[1] < 1:
        raise ValueError(f"{name} has shape {matrix.shape}, expected ({num_rows}, rank)")
    if matrix.dtype != dtype:
        raise TypeError(f"{name} has dtype {matrix.dtype}, expected {dtype}, the dtype of x")


def _name(kind: type) -> str:
    """Return the name of a type with its module, such as "numpy.ndarray"."""
    return f"{kind.__module__}.{kind.__name__}"
