"""NumPy in place of the CUDA kernels for Gram matrices: their callers are tested on a CPU."""

import contextlib
import sys
import types

import numpy as np

from tensorly_flycoo.backend import arrays
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.loop import factor_grams, gram_products, whole_tensor


class Blocks:
    """One block."""

    copies = ()

    def __init__(self, array):
        self._array = array[None]
        self.shape = self._array.shape

    def to_array(self):
        return self._array


class Kernels:
    """What the CUDA engine's kernels compute, and how often."""

    MAX_GRAMS, MAX_SCALES = 3, 3

    def __init__(self):
        self.num_grams = self.num_products = self.num_solves = 0
        self.num_fits = self.num_inner = 0
        self.num_rounded = 0

    def suits_tensor_cores(self, x):
        return x.dtype == np.float32

    def suits_rank(self, rank, dtype):
        return dtype == np.float32

    def gram_blocks(self, x):
        self.num_grams += 1
        return Blocks(x.astype(float).T @ x)

    def invert_product(self, grams, scales, rank, dtype):
        return Blocks(np.linalg.pinv(multiply(grams, scales, rank)))

    def multiply_product(self, grams, scales, rank, dtype):
        self.num_products += 1
        return multiply(grams, scales, rank)

    def solve_rows(self, x, inverse):
        self.num_solves += 1
        y = np.zeros((x.shape[0], x.shape[1] + 1), np.float32)
        y[:, :-1] = x @ inverse.to_array()[0]
        y = y[:, :-1]
        return y, Blocks(y.astype(float).T @ y), Blocks(np.vdot(x, y))

    def solve_and_round_rows(self, x, inverse):
        self.num_rounded += 1
        y, _, _ = self.solve_rows(x, inverse)
        scales = CPU.find_scales(y)
        narrow = CPU.round_rows(y, scales)
        return y, Blocks(y.astype(float).T @ y), None, narrow

    def inner_blocks(self, a, b):
        self.num_inner += 1
        return Blocks(np.vdot(a, b))

    def compute_fit(self, grams, scales, rank, dtype, inner, norm_square, meanwhile):
        self.num_fits += 1
        meanwhile()
        model_square = multiply(grams, scales, rank).sum()
        return np.sqrt(abs(norm_square + model_square - 2 * inner.to_array().sum()))


def multiply(grams, scales, rank):
    product = np.ones((rank, rank))
    for gram in grams:
        product *= gram.to_array().sum(axis=0)
    for array, row, column in scales:
        strides = (row * array.itemsize, column * array.itemsize)
        product *= np.lib.stride_tricks.as_strided(array, product.shape, strides)
    return product


@contextlib.contextmanager
def stand_in_kernels(patch):
    """Let NumPy's float32 arrays pass for CuPy's, with their kernels; yield the kernels."""
    made = Kernels()
    is_cupy = lambda x: isinstance(x, np.ndarray)  # noqa: E731
    for module in (gram_products, factor_grams, arrays):
        patch.setattr(module, "is_cupy", is_cupy)
    patch.setattr(arrays, "check_place", lambda *_: None)
    patch.setattr(gram_products, "_is_on_gpu", is_cupy)
    patch.setattr(gram_products, "gpu_kernels", lambda: made)
    patch.setattr(gram_products, "find_address", lambda array: array.ctypes.data)
    cupy = types.ModuleType("cupy")
    vars(cupy).update(ones=np.ones, zeros=np.zeros, eye=np.eye)
    patch.setitem(sys.modules, "cupy", cupy)
    yield made
    gram_products.stop()


def draw(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).random(shape).astype(dtype)


def list_launches(kernels, monkeypatch):
    """List the modes whose MTTKRPs are launched, and "wait" where the host waits for an error."""
    listed, multiply, fit = [], whole_tensor.multiply, kernels.compute_fit

    def multiply_and_list(layout, engine, factors, mode, *arguments, **options):
        listed.append(mode)
        return multiply(layout, engine, factors, mode, *arguments, **options)

    def fit_and_list(*arguments):
        error = fit(*arguments)
        listed.append("wait")
        return error

    monkeypatch.setattr(whole_tensor, "multiply", multiply_and_list)
    monkeypatch.setattr(kernels, "compute_fit", fit_and_list)
    return listed
