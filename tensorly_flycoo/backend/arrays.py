"""TensorLy's array functions under "flycoo": NumPy's for dense arrays, ours for sparse tensors.

Dense arrays are NumPy's, or CuPy's for tensors on a GPU. NumPy's functions call CuPy's for CuPy
arrays, so only those are here that do not, or that are slow for tall factors.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from tensorly.backend import BackendManager
from tensorly.backend.numpy_backend import NumpyBackend

from ..base.array_modules import Array, array_module, as_array, is_cupy, is_on_gpu, move, share
from ..base.checks import (
    DEVICES,
    DensifyError,
    check_choice,
    check_dtype,
    check_place,
    densify_error,
)
from ..base.reporting import span
from ..engines import tall
from ..loop.gram_products import GramMemory, GramProduct, find_gram, solve_on_host, start_product
from ..loop.whole_residual import WholeResidual
from ..loop.whole_tensor import WholeTensor
from ..ops import views
from ..ops.lazy import ModeView
from ..ops.lazy_svd import decompose_lazily
from ..ops.mode_product import ModeProduct
from ..ops.residual import ResidualTensor
from ..spread import row_shards
from ..spread.row_shards import RowShards
from ..tensor.converters import find_converter
from ..tensor.coo_cache import as_flycoo
from ..tensor.dense_memory import check_product_fits
from ..tensor.entrance import (
    find_sparse,
    is_callers,
    is_lazy_or_sparse,
    is_sparse,
    lend,
    mirror,
)
from ..tensor.labelled import LabelledTensor
from ..tensor.lazy_array import LazyArray
from ..tensor.tensor import FINDS_ELEMENTS, USE_EXTREMES, USE_MODE_DOT, FlycooTensor

#: Classes with a method for their Frobenius norm.
_KNOW_NORM = (FlycooTensor, ModeProduct, ResidualTensor, WholeResidual)

_USE_NONZEROS = "use tl.tensor(x).nonzeros() or .to_coo() for the nonzeros"


class FlycooBackend(NumpyBackend, backend_name="flycoo"):  # type: ignore[call-arg]
    """TensorLy backend for sparse tensors, with NumPy or CuPy for all dense arrays.

    Sparse tensors are `FlycooTensor` and raw `sparse.COO`. A function that would make one dense
    raises `DensifyError`. Arrays stay where they are: new ones are made on the device of a context,
    and mixing NumPy's and CuPy's raises a TypeError, as under every backend with devices. Scalars
    are arrays on the device too; the host waits for one only when Python looks at its value.
    """

    @staticmethod
    def context(tensor: Any) -> dict[str, Any]:
        """Return the dtype of the factors of `tensor`, and their device if that is a GPU.

        Integers and bools in a sparse tensor are counts, whose factors are float64.
        """
        if isinstance(tensor, WholeTensor):
            return {"dtype": tensor.dtype, "device": tensor.device, "memory": tensor.memory}
        if isinstance(tensor, LazyArray):
            tensor = getattr(tensor, "tensor", tensor)
        if isinstance(tensor, FlycooTensor):
            dtype = tensor.dtype
            on_gpu = tensor.device == "cuda" and not is_callers(tensor)
        elif is_sparse(tensor):  # the caller's own, on the host
            dtype = check_dtype(tensor.dtype, "the dtype of tensor")
            on_gpu = False
        else:
            array = share(tensor)
            dtype = array.dtype
            on_gpu = array_module(array) is not np
        context: dict[str, Any] = {"dtype": dtype}
        if on_gpu:
            context["device"] = "cuda"
        return context

    @staticmethod
    def tensor(data: Any, dtype: Any = None, *, device: str | None = None, **kwargs: Any) -> Any:
        """Make an array, or a FlycooTensor of a sparse one (pydata/sparse, SciPy, CuPy, PyTorch).

        Without a device, data on a GPU becomes a CuPy array and other data a NumPy array.
        """
        if isinstance(data, ModeView | LabelledTensor):
            data = views.make_tensor(data)
        if isinstance(data, FlycooTensor):
            return data if dtype is None else data.astype(dtype)
        if is_sparse(data):
            x = FlycooTensor.from_coo(data, dtype=dtype, device=device, **kwargs)
            return x if device else lend(x)
        constructor = find_converter(data)
        if constructor is not None:
            return getattr(FlycooTensor, constructor)(data, dtype=dtype, device=device, **kwargs)
        if device is None and not is_on_gpu(data):
            return NumpyBackend.tensor(data, dtype=dtype)
        array = as_array(data)
        converted = array
        # Before it moves: random factors of float32 are drawn in float64.
        if dtype is not None and dtype != array.dtype:
            converted = array.astype(dtype)
        moved = converted
        if device is not None:
            moved = move(converted, _module_on(device))
        return moved.copy() if moved is array else moved

    @staticmethod
    def ones(
        shape: Any,
        dtype: Any = None,
        *,
        device: str | None = None,
        memory: GramMemory | None = None,
        **kwargs: Any,
    ) -> Any:
        """Make ones; or begin the product of Gram matrices that parafac starts with them."""
        if memory is not None:
            product = start_product(memory, shape[0], dtype, device == "cuda")
            if product is not None:
                return product
        return _module_on(device).ones(shape, dtype, **kwargs)

    @staticmethod
    def zeros(*args: Any, device: str | None = None, **kwargs: Any) -> Any:
        return _module_on(device).zeros(*args, **kwargs)

    @staticmethod
    def eye(*args: Any, device: str | None = None, memory: Any = None, **kwargs: Any) -> Any:
        return _module_on(device).eye(*args, **kwargs)

    @staticmethod
    def is_tensor(tensor: Any) -> bool:
        return is_sparse(tensor) or isinstance(tensor, np.ndarray) or is_cupy(tensor)

    @staticmethod
    def to_numpy(tensor: Any) -> np.ndarray:
        if is_lazy_or_sparse(tensor):
            dense = "a small tensor fits as tl.tensor(x).to_coo().todense()"
            raise densify_error("tl.to_numpy", tensor.shape, f"{_USE_NONZEROS}; {dense}")
        if not isinstance(tensor, RowShards) and not is_cupy(tensor):
            return NumpyBackend.to_numpy(tensor)
        with span("way back"):
            if isinstance(tensor, RowShards):
                return tensor.to_numpy()
            return move(tensor, np)

    @staticmethod
    def check_random_state(seed: Any) -> Any:
        """Return NumPy's generator: a seed gives the same initial values on every device."""
        if type(seed).__module__.startswith("cupy.random"):
            expected = "an int or numpy.random.RandomState: pass an int, it is as fast on a GPU"
            raise TypeError(f"random_state is a {type(seed).__name__} of CuPy, expected {expected}")
        return NumpyBackend.check_random_state(seed)

    @staticmethod
    def copy(tensor: Any) -> Any:
        if isinstance(tensor, LazyArray):
            return tensor  # it is immutable, as is a FlycooTensor
        if is_sparse(tensor):
            return as_flycoo(tensor, check_coords=True)
        return np.copy(tensor)

    @staticmethod
    def zeros_like(tensor: Any, *args: Any, **kwargs: Any) -> Array:
        if is_lazy_or_sparse(tensor):
            operation = "tl.zeros_like (sparsity= of parafac calls it)"
            raise densify_error(operation, tensor.shape, "leave sparsity out")
        return np.zeros_like(tensor, *args, **kwargs)

    def norm(self, tensor: Any, order: Any = 2, axis: Any = None) -> Any:
        """Compute a norm; of a sparse tensor over all its elements, for an order above 0."""
        if order == 2 and axis == 0 and tall.is_tall(tensor):
            return tall.column_norms(tensor)
        if isinstance(tensor, ModeView) or type(tensor) is WholeTensor:
            tensor = tensor.tensor
        if isinstance(tensor, _KNOW_NORM) and order == 2 and axis is None:
            return tensor.norm()
        if not is_sparse(tensor):
            return super().norm(tensor, order, axis)
        return _norm(tensor, order, axis)

    @staticmethod
    def moveaxis(tensor: Any, source: int, destination: int) -> Any:
        if isinstance(tensor, ModeProduct):
            return tensor.move_axis(source, destination)
        if is_lazy_or_sparse(tensor):
            return views.move_axis(tensor, source, destination)
        return np.moveaxis(tensor, source, destination)

    @staticmethod
    def reshape(tensor: Any, newshape: Any) -> Any:
        if type(tensor) is np.ndarray or is_cupy(tensor) or isinstance(tensor, ModeProduct):
            return tensor.reshape(newshape)
        if is_lazy_or_sparse(tensor):
            return views.reshape(tensor, newshape)
        return np.reshape(tensor, newshape)

    @staticmethod
    def transpose(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        is_dense = isinstance(tensor, (np.ndarray, GramProduct)) or is_cupy(tensor)
        if is_dense and not (args or kwargs):
            return tensor.T
        if is_lazy_or_sparse(tensor):
            return views.permute(tensor, *args, **kwargs)
        return np.transpose(tensor, *args, **kwargs)

    @staticmethod
    def concatenate(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        sparse = find_sparse([tensors])
        if sparse is None:
            return np.concatenate(tensors, *args, **kwargs)
        if not all(map(is_sparse, tensors)):  # a dense array, or a view
            raise densify_error("tl.concatenate", sparse.shape, _USE_NONZEROS)
        return np.concatenate([as_flycoo(x) for x in tensors], *args, **kwargs)

    @staticmethod
    def svd(matrix: Any, full_matrices: bool = True, **kwargs: Any) -> Any:
        """Decompose a matrix; of an unfolding only the leading vectors, when they are sliced."""
        lazy_svd = decompose_lazily(matrix, full_matrices)
        if lazy_svd is not None:
            return lazy_svd
        return np.linalg.svd(matrix, full_matrices=full_matrices, **kwargs)

    @staticmethod
    def conj(x: Any, *args: Any, **kwargs: Any) -> Any:
        # TensorLy conjugates every factor before every product; NumPy copies real arrays too.
        is_dense = isinstance(x, (np.ndarray, GramProduct)) or is_cupy(x)
        is_known = is_dense or is_lazy_or_sparse(x)
        is_real = is_known and x.dtype.kind != "c" and not (args or kwargs)
        return x if is_real else np.conj(x, *args, **kwargs)

    @staticmethod
    def sum(tensor: Any, axis: Any = None, *args: Any, **kwargs: Any) -> Any:
        if axis == 0 and not (args or kwargs) and tall.is_tall(tensor):
            return tall.sum_rows(tensor)
        if is_lazy_or_sparse(tensor):
            return views.reduce_axes("sum", tensor, axis, *args, **kwargs)
        return np.sum(tensor, axis, *args, **kwargs)

    @staticmethod
    def dot(a: Any, b: Any) -> Any:
        """Multiply; tall factors as `engines.tall` does."""
        gram = find_gram(a, b)
        if gram is not None:
            return gram
        if type(a) is type(b) is np.ndarray:
            check_product_fits(a, b)
            if tall.suits_cpu_engine(a, b):
                return tall.multiply(a, b)
            return np.dot(a, b)
        if is_lazy_or_sparse(a) or is_lazy_or_sparse(b):
            return views.dot(a, b)
        if is_cupy(a) and a.ndim == 2 and tall.is_tall(a.T) and tall.is_tall(b):
            return tall.transposed_product(a.T, b)
        check_product_fits(a, b)
        return np.dot(a, b)

    @staticmethod
    def matmul(a: Any, b: Any) -> Any:
        if is_lazy_or_sparse(a) or is_lazy_or_sparse(b):
            return views.dot(a, b)
        return np.matmul(a, b)

    @staticmethod
    def qr(a: Array, *args: Any, **kwargs: Any) -> Any:
        if tall.is_tall(a) and not (args or kwargs):
            return tall.qr(a)
        return np.linalg.qr(a, *args, **kwargs)

    @staticmethod
    def solve(a: Any, b: Any) -> Array:
        """Solve ``a @ x = b``, with the pseudo-inverse where `a` is singular."""
        if isinstance(a, GramProduct):
            return a.solve(b)
        if isinstance(b, RowShards):
            return row_shards.solve(a, b)
        if type(a) is type(b) is np.ndarray:
            return solve_on_host(a, b)
        a = as_array(a)
        b = as_array(b)
        check_place(b, "b", is_cupy(a), "a")
        return tall.solve(a, b)

    def eps(self, dtype: Any) -> Any:
        """Return the rounding unit; of integers, which are counts, that of float64."""
        if np.dtype(dtype).kind in "biu":
            dtype = np.float64
        return super().eps(dtype)

    @staticmethod
    def digamma(x: Any) -> Any:
        return _special_functions_for(x).digamma(x)

    @staticmethod
    def logsumexp(tensor: Any, axis: Any = 0) -> Any:
        return _special_functions_for(tensor).logsumexp(tensor, axis=axis)


@mirror
def _norm(tensor: Any, order: Any, axis: Any) -> Any:
    """Compute a norm of all elements of a sparse tensor."""
    is_largest = order in ("inf", np.inf)
    is_power = isinstance(order, int | float) and order > 0
    if axis is not None or not (is_largest or is_power):
        raise ValueError(
            f"tl.norm of a sparse tensor has order={order!r} and axis={axis!r}, expected a number "
            'above 0 or "inf", and None'
        )
    x = as_flycoo(tensor, check_coords=True)
    if order == 2:
        return x.norm()
    absolute = abs(x)
    if order == 1:
        return absolute.sum()
    largest = absolute.max()
    if is_largest or largest == 0:
        return largest
    # Scaled, so that powers neither overflow nor vanish.
    total = (absolute / largest).map(lambda values: values**order).sum()
    return largest * total ** (1 / order)


def _reduce(name: str) -> Callable:
    """Make the method that reduces a sparse tensor or an array."""

    @functools.wraps(getattr(np, name))
    def reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if is_lazy_or_sparse(tensor):
            return views.reduce_axes(name, tensor, *args, **kwargs)
        return getattr(np, name)(tensor, *args, **kwargs)

    return reduce


for _name in ("mean", "max", "min"):
    FlycooBackend.register_method(_name, _reduce(_name))


def _module_on(device: str | None) -> ModuleType:
    """Return the array module of a context's device; without one arrays are NumPy's."""
    if device in (None, "cpu") or check_choice(device, "device", DEVICES) != "cuda":
        return np
    import cupy

    return cupy


def _special_functions_for(x: Any) -> ModuleType:
    return importlib.import_module("cupyx.scipy.special" if is_cupy(x) else "scipy.special")


#: The functions that take a sparse tensor or a view. So do ufuncs that keep zeros zero; every other
#: one refuses it, by name.
_TAKES_SPARSE = {
    "concatenate",
    "conj",
    "context",
    "copy",
    "dot",
    "matmul",
    "max",
    "mean",
    "min",
    "moveaxis",
    "ndim",
    "norm",
    "reshape",
    "shape",
    "sum",
    "svd",
    "tensor",
    "is_tensor",
    "to_numpy",
    "transpose",
    "zeros_like",
    "partial_svd",
}


#: Functions of shapes, dtypes and seeds, which need no look at their arguments.
_TAKES_NO_ARRAY = {"arange", "check_random_state", "eps", "eye", "finfo", "ones", "zeros"}


#: Products, which `USE_MODE_DOT` says how to do.
_MULTIPLIES = {"einsum", "tensordot", "matmul"}


def _refuse_sparse(name: str, function: Callable) -> Callable:
    """Let a function refuse sparse tensors, or apply a ufunc to their values."""

    @functools.wraps(function)
    def refuse_sparse(*args: Any, **kwargs: Any) -> Any:
        sparse = find_sparse((*args, *kwargs.values()))
        if sparse is None:
            return function(*args, **kwargs)
        if isinstance(function, np.ufunc):
            return views.apply_ufunc(function, *args, **kwargs)
        if name == "clip":
            x, *limits = args
            x = x if isinstance(x, LabelledTensor) else as_flycoo(x)
            return np.clip(x, *limits, **kwargs)
        if name in FINDS_ELEMENTS:
            raise DensifyError(f"tl.{name} takes no sparse tensor; {USE_EXTREMES}")
        instead = USE_MODE_DOT if name in _MULTIPLIES else _USE_NONZEROS
        raise densify_error(f"tl.{name}", sparse.shape, instead)

    return refuse_sparse


for _name in set(BackendManager._functions) - _TAKES_SPARSE - _TAKES_NO_ARRAY:
    _method = inspect.getattr_static(FlycooBackend, _name)
    if isinstance(_method, staticmethod):
        _refusing: Any = staticmethod(_refuse_sparse(_name, _method.__func__))
    else:
        _refusing = _refuse_sparse(_name, _method)
    setattr(FlycooBackend, _name, _refusing)
