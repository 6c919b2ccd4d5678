"""The table of TensorLy's functions that are replaced for sparse tensors.

Importing the package sets the attributes of modules that `TABLE` lists, and changes no function
itself: `inspect.unwrap` of a replacement gives TensorLy's own, and a name that was bound before the
import stays what it was. A replacement passes every call on that is not `ours`.
"""

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorly as tl

from .. import decomposition
from ..array_modules import Array
from ..checks import densify_error
from ..decomposition.guarding import guard, warn_of_lost_labels
from ..decomposition.initial_guess import check_initial_guess, initialize_cp, spread_factors
from ..decomposition.labelled_cp import label_result
from ..decomposition.ranks import find_tucker_rank
from ..decomposition.resuming import State, prepare_options, take_up
from ..decomposition.singular_vectors import SVDS, make_svd_non_negative, randomized_svd
from ..decomposition.tucker_checks import check_tucker
from ..io.checkpoint import Resumed
from ..linalg import gram_products, sharded
from ..linalg.tall_skinny import inner_product
from ..ops.views import find_sparse
from ..shards.row_shards import RowShards
from ..tensor.coo_cache import as_flycoo
from . import dispatch
from .tensor_algebra import unfolding_dot_khatri_rao


@dataclass(frozen=True)
class Replacement:
    """One row of the table.

    Attributes
    ----------
    names : str
        Of TensorLy's functions.
    modules : str
        The modules with attributes of these names, below `tensorly`.
    ours : callable
        Takes TensorLy's function, then what that takes.
    reason : str
        Why TensorLy's function does not do for a sparse tensor.
    needless_if : str
        The change in TensorLy that would make the row needless.
    label : callable
        For `guard`.
    """

    names: str
    modules: str
    ours: Callable
    reason: str
    needless_if: str
    label: Callable = label_result


def install_replacements() -> None:
    """Set the attributes of the table's rows that are not set already."""
    for row in TABLE:
        replacements: dict[Callable, Callable] = {}  # one for all modules: pickle compares them
        for module_name, name in itertools.product(row.modules.split(), row.names.split()):
            module = importlib.import_module(f"tensorly.{module_name}")
            original = getattr(module, name, None)  # not each module has each name
            if original is not None and not hasattr(original, "_flycoo_replacement"):
                replacements.setdefault(original, _replace(original, row))
                setattr(module, name, replacements[original])


def _replace(original: Callable, row: Replacement) -> Callable:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if dispatch.is_ours(original.__name__, args, kwargs):
            return row.ours(original, *args, **kwargs)
        return original(*args, **kwargs)

    replacement = guard(call, original, row.label)
    replacement._flycoo_replacement = True  # type: ignore[attr-defined]
    # inspect.getfullargspec, which TensorLy's tests call, does not look below a wrapper.
    replacement.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return replacement


def _bind(original: Callable, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Return arguments by name: TensorLy 0.9 has some parameters in another order."""
    try:
        return inspect.signature(original).bind(*args, **kwargs).arguments
    except TypeError as error:
        ours = getattr(decomposition, original.__name__, original)
        is_ours = "callback" in kwargs and "callback" in inspect.signature(ours).parameters
        hint = f": tensorly_flycoo.decomposition.{original.__name__} takes it" if is_ours else ""
        raise TypeError(f"{original.__name__} {error}{hint}") from None


def _call_ours(original: Callable, *args: Any, **kwargs: Any) -> Any:
    return getattr(decomposition, original.__name__)(**_bind(original, args, kwargs))


def _parafac(original: Callable, *args: Any, **kwargs: Any) -> Any:
    given = _bind(original, args, kwargs)
    if given.get("mask") is not None or isinstance(given.get("init"), Resumed):
        return decomposition.parafac(**given)
    options = prepare_options(given)
    return original(options.pop("tensor"), **options)


def _tucker(original: Callable, *args: Any, **kwargs: Any) -> Any:
    given = _bind(original, args, kwargs)
    if original.__name__ == "tucker":
        return decomposition.tucker(**given)
    tensor, rank, modes = given["tensor"], given["rank"], given.get("modes")
    num_modes = tl.ndim(tensor) if modes is None else len(modes)
    if isinstance(rank, list | tuple):
        rank = rank[:num_modes]  # tucker with fixed_factors passes more
    return original(**given | {"rank": find_tucker_rank(tensor, rank, num_modes)})


_OPTIONS = ("rank", "init", "svd", "random_state", "non_negative", "normalize_factors")


def _initialize_cp(original: Callable, *args: Any, **kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    tensor, init = given["tensor"], given["init"]
    gram_products.forget()
    _refuse_mask(given, tensor, "tensorly_flycoo.decomposition.parafac or non_negative_parafac")
    if isinstance(init, State):
        return take_up(init, tensor, given["rank"], given["normalize_factors"])
    if isinstance(init, str) and (init == "random" or (init == "svd" and given["svd"] in SVDS)):
        return initialize_cp(tensor, *(given[name] for name in _OPTIONS))
    context = tl.context(tensor)
    given["init"] = check_initial_guess(init, context["dtype"], "device" in context, given["rank"])
    start = original(**given)
    start.factors = spread_factors(as_flycoo(tensor, check_coords=True), start.factors)
    return start


def _initialize_tucker(original: Callable, *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    if given.get("non_negative"):
        _refuse("use tl.decomposition.tucker")(original, given["tensor"])
    check_tucker(given["tensor"], given["modes"], given.get("mask"))
    return original(*args, **kwargs)


def _refuse_mask(given: dict, tensor: Any, instead: str) -> None:
    if given.get("mask") is not None:
        raise densify_error("mask=", tuple(tensor.shape), f"masks work in {instead}")


def _error_calc(
    original: Callable,
    tensor: Any,
    norm_tensor: Any,
    weights: Array,
    factors: list,
    sparsity: Any,
    mask: Any,
    mttkrp: Array | None = None,
) -> tuple:
    """Compute the error from the last mode's MTTKRP, where TensorLy forms the full model."""
    _refuse_mask({"mask": mask}, tensor, "tensorly_flycoo.decomposition.parafac")
    if sparsity:
        raise densify_error("sparsity=", tensor.shape, "leave it out")
    if mttkrp is None:
        mttkrp = unfolding_dot_khatri_rao(tensor, (weights, factors), tl.ndim(tensor) - 1)
    error = gram_products.compute_fit(norm_tensor, weights, factors, mttkrp)
    gram_products.forget()  # a callback may change factors
    if error is None:
        inner = _inner_product(mttkrp, factors)
        squares = norm_tensor**2 + tl.cp_tensor.cp_norm((weights, factors)) ** 2
        error = tl.sqrt(tl.abs(squares - 2 * inner))
    # On the host: TensorLy compares errors, and each comparison on a GPU would wait for it.
    return mttkrp.dtype.type(float(error)), tensor, norm_tensor


def _inner_product(mttkrp: Array, factors: list) -> Array:
    """Compute the inner product of the tensor and a model, from the last mode's MTTKRP."""
    if all(isinstance(x, RowShards) for x in (mttkrp, *factors)):
        return sharded.inner_product(mttkrp, factors)
    return inner_product(mttkrp, factors[-1])


def _instead(function: Callable) -> Callable:
    return lambda original, *args, **kwargs: function(*args, **kwargs)


def _refuse(instead: str) -> Callable:
    def refuse(original: Callable, *args: Any, **kwargs: Any) -> None:
        x = find_sparse((*args, *kwargs.values()))
        raise densify_error(f"tl's {original.__name__}", tuple(x.shape), instead)

    return refuse


TABLE = (
    Replacement(
        "parafac", "decomposition decomposition._cp", _parafac,
        "with a mask it forms tensor * mask + model * (1 - mask); a checkpoint is not a guess; a "
        "fraction is no rank",
        "error_calc imputed the entries that a mask leaves out; init took a state",
    ),
    Replacement(
        "non_negative_parafac", "decomposition decomposition._nn_cp", _call_ours,
        "as for parafac", "as for parafac; it took a callback",
    ),
    Replacement(
        "non_negative_parafac_hals", "decomposition decomposition._nn_cp", _call_ours,
        "hals_nnls updates a factor column by column, in Python",
        "hals_nnls were a function of the backend",
    ),
    Replacement(
        "constrained_parafac", "decomposition decomposition._constrained_cp", _call_ours,
        "it makes arrays without naming a device, and three proximal operators form square "
        "matrices as large as a mode",
        "it passed tl.context(tensor) on, and those operators took linear time",
    ),
    Replacement(
        "randomised_parafac", "decomposition decomposition._cp", _call_ours,
        "it indexes the tensor with lists, and forms the model for its error",
        "it sampled entries and fibres through two functions of the backend",
    ),
    Replacement(
        "parafac2", "decomposition decomposition._parafac2", _call_ours,
        "it would convert the slices of a raw COO in each iteration",
        "it passed the slices through tl.tensor",
    ),
    Replacement(
        "tensor_train tensor_ring", "decomposition decomposition._tt decomposition._tr_svd",
        _call_ours,
        "it multiplies singular values by right singular vectors, as long as an unfolding",
        "it multiplied the unfolding by the left vectors instead",
    ),
    Replacement(
        "tucker partial_tucker", "decomposition decomposition._tucker", _tucker,
        "a checkpoint is not a guess; a fraction is no rank",
        "it took a callback and a state, and refused fractions",
    ),
    Replacement(
        "error_calc", "decomposition._cp decomposition._nn_cp", _error_calc,
        "without an MTTKRP (callback, line search) it forms the full model",
        "it computed a missing MTTKRP itself (docs/upstream.md)",
    ),
    Replacement(
        "initialize_cp", "decomposition._cp decomposition._nn_cp", _initialize_cp,
        "it draws on the host, and takes any dtype and device, and a checkpoint, for a guess",
        "the backend drew; it passed a guess through tl.tensor; init took a state",
        warn_of_lost_labels,
    ),
    Replacement(
        "initialize_tucker", "decomposition._tucker", _initialize_tucker,
        "with a mask, or several modes left out, it forms an array as large as an unfolding",
        "nothing: a sparse tensor is refused here before anything is computed",
    ),
    Replacement(
        "randomized_svd", "tenalg.svd", _instead(randomized_svd),
        "it draws a random row for each column of an unfolding",
        "truncated_svd and randomized_svd passed n_eigenvecs to the backend (docs/upstream.md)",
    ),
    Replacement(
        "make_svd_non_negative", "tenalg.svd", _instead(make_svd_non_negative),
        "it reads right singular vectors, as long as an unfolding",
        "it took the norms of their positive and negative parts from the backend",
    ),
    Replacement(
        "power_iteration symmetric_power_iteration",
        "decomposition decomposition._cp_power decomposition._symmetric_cp",
        _refuse("use tl.decomposition.parafac"),
        "pydata/sparse subtracts an outer product of vectors from a COO, and densifies it",
        "nothing: it is dense by nature",
    ),
    Replacement(
        "tensor_ring_als tensor_ring_als_sampled", "decomposition decomposition._tr_als",
        _refuse("use tl.decomposition.tensor_ring"),
        "it forms a matrix as long as an unfolding, or indexes the tensor with lists",
        "nothing: it is dense by nature",
    ),
    Replacement(
        "cp_lstsq_grad", "cp_tensor",
        _refuse("use tensorly_flycoo.mttkrp for the part of the gradient that has the tensor"),
        "pydata/sparse subtracts the model from a COO, and densifies it",
        "it took the gradient from an MTTKRP",
    ),
)  # fmt: skip
