"""Initial guesses of CP decompositions: random, from singular vectors, or the user's own."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array
from ..base.checks import check_factors, check_place, check_weights, densify_error, warn
from ..engines.out_of_memory import attempt, check_room
from ..ops.cp_entries import take_model
from ..ops.lazy_svd import LazySVD
from ..spread.spread_layout import SpreadLayout
from ..svd.nndsvd import make_left_vectors_non_negative
from ..svd.unfolding import LazyMatrix, Unfolding
from ..tensor.converters import is_raw_sparse
from ..tensor.tensor import FlycooTensor
from .cp_model import normalize

#: The methods for singular vectors that work for a sparse tensor: they find only the leading ones.
SVDS = ("truncated_svd", "randomized_svd")


def check_initial_guess(init: Any, dtype: np.dtype, on_gpu: bool, rank: int | None = None) -> Any:
    """Return an initial guess, refused if its device, dtype or given rank is not the factors'.

    Arrays of other libraries, such as PyTorch's, are shared as NumPy's or CuPy's. Anything that is
    not a pair of weights and factors is left to TensorLy.
    """
    is_pair = isinstance(init, tuple | list | CPTensor) and len(init) == 2
    if not is_pair and not hasattr(init, "factor_matrices"):  # a ktensor of pyttb has them
        return init
    weights, factors = take_model(init)
    if weights is not None:
        check_place(weights, "the weights of init", on_gpu, "x")
    for n, factor in enumerate(factors):
        if is_raw_sparse(factor):
            name = f"factors[{n}] of init is a {type(factor).__name__}"
            raise TypeError(f"{name}, expected a dense array: pass its todense()")
        check_place(factor, f"factors[{n}] of init", on_gpu, "x")
        if factor.dtype != dtype:
            raise TypeError(
                f"factors[{n}] has dtype {factor.dtype}, expected {dtype}: init must have the "
                "dtype of the tensor's factors"
            )
        if rank is not None and factor.shape[1:] != (rank,):
            raise ValueError(
                f"factors[{n}] of init has shape {factor.shape}, expected ({factor.shape[0]}, "
                f"{rank}): init must have the rank {rank}"
            )
    return weights, factors


def spread_factors(x: FlycooTensor, factors: Iterable[Array]) -> list[Array]:
    """Return the factors, sharded as those of later iterations will be if `x` is spread.

    A resumed run then adds in the same order as an uninterrupted one.
    """
    if isinstance(x._layout, SpreadLayout):
        return x._layout.spread(list(factors))
    return list(factors)


def draw_factors(x: FlycooTensor, rank: int, random: Any) -> list[Array]:
    """Draw TensorLy's random initial guess: uniform in [0, 1), in the order of the modes."""
    engine = x._engine
    shape = x.shape
    dtype = x.dtype

    def draw() -> list[Array]:
        check_room(engine, sum(shape) * rank * dtype.itemsize)
        return [engine.draw_uniform(random, (size, rank), dtype) for size in shape]

    return attempt(f"a random start of rank {rank}", draw)


def take_guess(x: FlycooTensor, rank: int, init: Any) -> list[Array]:
    """Return copies of a guess's factors, with its weights multiplied into the last one."""
    if not isinstance(init, Iterable) or isinstance(init, str):
        raise ValueError(f"init is {init!r}, expected 'random' or (weights, factors)")
    weights, factors = check_initial_guess(init, x.dtype, x.device == "cuda", rank)
    factors = check_factors(factors, x.shape, x.dtype, x._engine.array_type)
    if weights is not None:
        check_weights(weights, rank, x.dtype, x._engine.array_type)
        factors[-1] = factors[-1] * weights
    return [factor.copy() for factor in factors]


def make_initial_guess(
    x: FlycooTensor,
    rank: int,
    init: Any,
    svd: str,
    random_state: Any,
    *,
    unfold: Callable[[int], Unfolding] | None = None,
    non_negative: bool = False,
    normalize_factors: bool = False,
) -> tuple[Array | None, list[Array]]:
    """Make the initial guess that TensorLy makes from the same arguments.

    The weights are None for ones; the factors are new arrays, on the first device of `x`. `unfold`
    returns the unfolding along a mode, by default that of `x`. A computed guess is made
    non-negative and normalised; the user's stays as it is.
    """
    random = tl.check_random_state(random_state)
    if not isinstance(init, str):
        if normalize_factors:
            warn("init is taken as it is, although normalize_factors=True")
        return None, take_guess(x, rank, init)
    if init == "random":
        factors = draw_factors(x, rank, random)  # none is negative
    elif init == "svd":
        check_svd(svd, "init='svd'", x.shape)
        if unfold is None:
            unfold = functools.partial(Unfolding, x)
        factors = [
            take_left_vectors(x, unfold(mode), rank, svd, random, non_negative=non_negative)
            for mode in range(x.ndim)
        ]
        if non_negative:  # as TensorLy does, after NNDSVD
            factors = [abs(factor) for factor in factors]
    else:
        raise ValueError(f"init is {init!r}, expected 'random', 'svd' or (weights, factors)")
    if normalize_factors:
        return normalize(None, factors)
    return None, factors


def take_left_vectors(
    x: FlycooTensor, unfolding: Any, rank: int, svd: str, random: Any, *, non_negative: bool = False
) -> Array:
    """Make one factor from leading left singular vectors, filled up with random columns."""
    num_vectors = min(rank, *unfolding.shape)
    if svd == "randomized_svd":
        left, values = unfolding.randomized_svd(num_vectors, random)
    else:
        left, values = unfolding.svd(num_vectors)
    if non_negative:
        left = make_left_vectors_non_negative(unfolding, left, values)
    if unfolding.mode == 0:  # so that the model has about the norm of the tensor
        left *= values
    num_random = rank - left.shape[1]
    if num_random == 0:
        return left
    columns = x._engine.draw_uniform(random, (left.shape[0], num_random), x.dtype)
    return np.concatenate([left, columns], axis=1)


def check_svd(svd: object, operation: str, shape: tuple[int, ...]) -> None:
    """Refuse a TensorLy method that needs more than the leading singular vectors."""
    if svd not in SVDS:
        instead = f"expected one of {SVDS}, which find only the leading singular vectors"
        raise densify_error(f"{operation} with svd={svd!r}", shape, instead)


def randomized_svd(
    matrix: Any,
    n_eigenvecs: int | None = None,
    n_oversamples: int = 5,
    n_iter: int = 2,
    random_state: Any = None,
    **ignored: Any,
) -> tuple:
    """Sketch leading singular vectors as TensorLy does, without drawing a row for each column."""
    if matrix.ndim != 2:
        raise ValueError(f"matrix has shape {matrix.shape}, expected two axes: unfold the tensor")
    unfolding = matrix if isinstance(matrix, LazyMatrix) else Unfolding(matrix, 0)
    rank = min(unfolding.shape)
    if n_eigenvecs is not None:
        rank = min(rank, n_eigenvecs)
    decompose = functools.partial(
        unfolding.randomized_svd,
        random=tl.check_random_state(random_state),
        n_oversamples=n_oversamples,
        n_iter=n_iter,
    )
    left, values, right = LazySVD(unfolding, decompose=decompose)
    return left[:, :rank], values[:rank], right[:rank, :]


def make_svd_non_negative(tensor: Any, U: Array, S: Array, V: Any, nntype: Any = True) -> tuple:
    """Make left vectors non-negative. The right vectors were never formed, and stay so."""
    unfolding = tensor if isinstance(tensor, Unfolding) else Unfolding(tensor, 0)
    kind = "nndsvda" if nntype is True else nntype
    return make_left_vectors_non_negative(unfolding, U, S, kind), V
