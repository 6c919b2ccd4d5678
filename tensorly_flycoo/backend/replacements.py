"""The table of TensorLy's functions that are replaced for sparse tensors.

Importing the package sets the attributes of modules that `TABLE` lists, and changes no function
itself: `inspect.unwrap` of a replacement gives TensorLy's own. Names that other modules have bound
before, such as by ``from tensorly.decomposition import parafac``, are bound anew: sorted imports
put that line first. A function that is kept by another name, or in a list, stays what it was. A
replacement passes every call on that is not `ours`.
"""

import functools
import importlib
import inspect
import itertools
import logging
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor, cp_normalize

from .. import decomposition
from ..base.array_modules import Array
from ..base.checks import densify_error, warn
from ..base.reporting import log_compilation, span
from ..engines.tall import inner_product
from ..loop import gram_products, initial_guess
from ..loop.cp_model import make_cp_tensor, residual_square
from ..loop.initial_guess import SVDS, make_initial_guess
from ..loop.ranks import find_cp_rank, find_tucker_rank
from ..loop.whole_tensor import WholeTensor, check_start
from ..ops.residual import ResidualTensor
from ..ops.ttmc import check_free_modes
from ..spread import row_shards
from ..spread.row_shards import RowShards
from ..tensor.converters import is_raw_sparse
from ..tensor.coo_cache import as_flycoo
from ..tensor.entrance import Call, find_sparse
from ..tensor.labelled import LabelledTensor
from ..tensor.tensor import FlycooTensor
from .tensor_algebra import divert, is_ours, unfolding_dot_khatri_rao

_logger = logging.getLogger("tensorly_flycoo")


class Replacement(NamedTuple):
    """One row of the table."""

    names: str  # of TensorLy's functions
    modules: str  # with attributes of these names, below `tensorly`
    #: Called as ours(original, *args, **kwargs); None is our decomposition of that name.
    ours: Callable | None
    reason: str  # why TensorLy's function does not do for a sparse tensor
    needless_if: str  # the change in TensorLy that would make the row needless
    takes: Callable[[str, Call], bool] = is_ours  # of the name and the call: is it ours?


def install_replacements() -> None:
    """Set the attributes of the table's rows that are not set already.

    Raise an ImportError if a name is in none of its modules, or a module has none of its names: a
    sparse tensor would reach TensorLy's own function.
    """
    all_replacements: dict[Callable, Callable] = {}
    for row in TABLE:
        replacements: dict[Callable, Callable] = {}  # one for all modules: pickle compares them
        modules = [importlib.import_module(f"tensorly.{name}") for name in row.modules.split()]
        names = row.names.split()
        places = [pair for pair in itertools.product(modules, names) if hasattr(*pair)]
        missing = {*names, *modules} - {*itertools.chain(*places)}
        if missing:
            raise ImportError(
                f"TensorLy {tl.__version__} lacks {missing} of the functions {names} in "
                f"{row.modules.split()}: install tensorly>=0.9,<0.11"
            )
        for module, name in places:
            original = getattr(module, name)
            if not hasattr(original, "_flycoo_original"):
                replacements.setdefault(original, _replace(original, row))
                setattr(module, name, replacements[original])
        all_replacements |= replacements
    _rebind_names(all_replacements)


def _rebind_names(replacements: Mapping[Callable, Callable]) -> None:
    """Bind names of other modules to the replacements of the functions of those very names.

    Who keeps one by another name may want TensorLy's own, as a decorator does that calls it.
    """
    function_names = {original.__name__ for original in replacements}
    for module_name, module in list(sys.modules.items()):
        package, _, _ = module_name.partition(".")
        if package == "tensorly":  # the table lists the modules that should have replacements
            continue
        bound = getattr(module, "__dict__", {})
        for name in function_names & bound.keys():
            value = bound[name]
            if type(value) is types.FunctionType and value in replacements:
                setattr(module, name, replacements[value])


def _replace(original: Callable, row: Replacement) -> Callable:
    """Make the function that takes the place of `original`, for calls with a sparse tensor."""
    if row.ours is None:
        # A partial of its own: `wraps` changes it.
        function = functools.partial(decomposition.UNGUARDED[original.__name__])
    else:
        function = functools.partial(row.ours, original)
    ours = functools.wraps(original)(function)
    if "decomposition" in row.modules.split():
        replacement = decomposition.guard_labelled(
            ours,
            dense=original,
            takes=row.takes,
            converts=row.ours in (None, _tucker, _deflate),  # others refuse the tensor
            explain=functools.partial(_explain_missing, original),
        )
        replacement._flycoo_original = original
    else:
        replacement = divert(original, ours, row.takes)
    # inspect.getfullargspec, which TensorLy's tests call, does not look below a wrapper.
    replacement.__signature__ = inspect.signature(original)
    return replacement


def _explain_missing(original: Callable, kwargs: Mapping[str, Any]) -> str:
    """Say so if TensorLy's function lacks an argument that ours of the same name has."""
    name = original.__name__
    twin = getattr(decomposition, name, original)
    parameters = inspect.signature(original).parameters
    twin_parameters = inspect.signature(twin).parameters
    if kwargs.keys() <= parameters.keys() or not kwargs.keys() <= twin_parameters.keys():
        return ""
    return f": tensorly_flycoo.decomposition.{name} takes it"


def _tucker(original: Callable, **options: Any) -> Any:
    """Compute a Tucker model, or a partial one by TensorLy's own loop."""
    if original.__name__ == "tucker":
        return decomposition.UNGUARDED["tucker"](**options)
    x = options["tensor"]
    rank = options["rank"]
    modes = options.get("modes")
    num_modes = tl.ndim(x) if modes is None else len(modes)
    if isinstance(rank, list | tuple):
        rank = rank[:num_modes]  # tucker with fixed_factors passes more
    options["rank"] = find_tucker_rank(x, rank, num_modes)  # no fraction of the number of cells
    return inspect.unwrap(original)(**options)  # contrib.sparse's would change the backend


class _Outer(NamedTuple):
    """An outer product of vectors that is not formed: times a number it is a CP model."""

    vectors: Sequence[Array]

    def __mul__(self, number: Any) -> CPTensor:
        factors = [vector.reshape(-1, 1) for vector in self.vectors]
        return CPTensor((number.reshape(1), factors))


def _deflate(original: Callable, **options: Any) -> Any:
    """Run a power iteration of TensorLy's, whose `outer` makes a model to subtract."""
    function: Any = inspect.unwrap(original)
    names = {**function.__globals__, "outer": _Outer}
    deflate = types.FunctionType(function.__code__, names, argdefs=function.__defaults__)
    return deflate(**options)


def _cp_lstsq_grad(
    original: Callable, cp_tensor: Any, tensor: Any, return_loss: bool = False, mask: Any = None
) -> Any:
    """Compute the gradient of half the squared norm of the residual, and that."""
    _refuse_mask(mask, tensor, "tensorly_flycoo.decomposition.parafac")
    residual = tensor
    if not isinstance(tensor, ResidualTensor):
        residual = as_flycoo(tensor, check_coords=True)
    residual = residual - CPTensor(cp_tensor)
    weights, factors = cp_tensor
    gradient = [-residual.mttkrp(factors, mode, weights) for mode in range(residual.ndim)]
    if return_loss:
        return CPTensor((None, gradient)), 0.5 * residual.norm() ** 2
    return CPTensor((None, gradient))


def _contrib_algebra(original: Callable, *args: Any, **kwargs: Any) -> Any:
    """Compute what contrib.sparse would by pydata/sparse, which alone takes sparse operands."""
    named = inspect.signature(original).bind(*args, **kwargs).arguments
    x = named.get("tensor", named.get("mask"))
    operands = [argument for argument in named.values() if argument is not x]
    models = [operand for operand in operands if isinstance(operand, CPTensor)]
    if find_sparse([*operands, *map(list, models)]) is not None:
        return original(**named)
    result = getattr(tl.tenalg, original.__name__)(**named)
    if is_raw_sparse(x) and isinstance(result, FlycooTensor):
        return result.to_coo()
    return result


def _register_sparse_backend(original: Callable, name: str) -> None:
    """Make contrib.sparse's functions of arrays under "flycoo" those that it has under "numpy"."""
    original("numpy")
    loaded = sys.modules[original.__module__]._LOADED_BACKENDS
    loaded[name] = loaded["numpy"]


def _initialize_cp(original: Callable, *args: Any, **kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    options = bound.arguments
    tensor = options["tensor"]
    if isinstance(tensor, WholeTensor):
        x = tensor.tensor
        rank = options["rank"]
    else:
        x = _receive_early_import(tensor, options["mask"])
        rank = find_cp_rank(x, options["rank"])
    init = options["init"]
    if isinstance(init, str) and (init == "random" or (init == "svd" and options["svd"] in SVDS)):
        with span("start"):
            weights, factors = make_initial_guess(
                x,
                rank,
                init=init,
                svd=options["svd"],
                random_state=options["random_state"],
                non_negative=options["non_negative"],
            )
        start = make_cp_tensor(weights, initial_guess.spread_factors(x, factors))
        return cp_normalize(start) if options["normalize_factors"] else start
    options["tensor"] = x
    options["init"] = initial_guess.check_initial_guess(init, x.dtype, x.device == "cuda", rank)
    start = original(**options)
    start.factors = initial_guess.spread_factors(x, start.factors)
    return start


def _receive_early_import(tensor: Any, mask: Any) -> FlycooTensor:
    """Receive the tensor of a decomposition that was imported before this package."""
    if isinstance(tensor, LabelledTensor):
        warn(
            "the result has no labels: a decomposition that was imported from TensorLy before "
            "tensorly_flycoo does not keep those of a LabelledTensor; call tl.decomposition.NAME "
            "instead"
        )
    _logger.debug("called by a decomposition that was imported before tensorly_flycoo")
    instead = "tensorly_flycoo.decomposition.parafac or non_negative_parafac"
    _refuse_mask(mask, tensor, instead)
    return as_flycoo(tensor, check_coords=True)


def _initialize_tucker(original: Callable, *args: Any, **kwargs: Any) -> Any:
    """Check the arguments for a sparse tensor, then call TensorLy's function unchanged."""
    options = inspect.signature(original).bind(*args, **kwargs).arguments
    if options.get("non_negative"):
        instead = "use tl.decomposition.non_negative_tucker, or import tensorly_flycoo before it"
        raise densify_error("non-negative Tucker", tuple(options["tensor"].shape), instead)
    x = as_flycoo(options["tensor"], check_coords=True)
    _refuse_mask(options.get("mask"), x, "tensorly_flycoo.decomposition.tucker")
    check_free_modes(x, [mode for mode in range(x.ndim) if mode not in options["modes"]])
    return original(*args, **kwargs)


def _refuse_mask(mask: Any, tensor: Any, instead: str) -> None:
    if mask is not None:
        raise densify_error("mask=", tuple(tensor.shape), f"masks work in {instead}")


def _error_calc(
    original: Callable,
    tensor: Any,
    norm_tensor: Any,
    weights: Array,
    factors: list,
    sparsity: Any,
    mask: Any,
    mttkrp: Any = None,
) -> tuple:
    """Compute the error from the last mode's MTTKRP, where TensorLy forms the full model."""
    _refuse_mask(mask, tensor, "tensorly_flycoo.decomposition.parafac")
    if mttkrp is None:
        mttkrp = unfolding_dot_khatri_rao(tensor, (weights, factors), tl.ndim(tensor) - 1)
    if not isinstance(tensor, WholeTensor):
        # Of a parafac that was imported before this package: it goes on with this one.
        check_start(mttkrp)
        tensor = WholeTensor(as_flycoo(tensor))
    tensor.end_products()
    memory = tensor.memory
    with log_compilation():  # a long call says now what it has compiled
        error: Any = gram_products.compute_fit(
            norm_tensor,
            weights,
            factors,
            mttkrp,
            memory=memory,
            meanwhile=functools.partial(tensor.look_ahead, factors),
        )
    memory.end_iteration()
    if error is None:
        # On several devices all Gram matrices are found with it.
        if all(isinstance(x, RowShards) for x in (mttkrp, *factors)):
            inner = row_shards.inner_product_with_grams(mttkrp, factors)
        else:
            inner = inner_product(mttkrp, factors[-1])
        error = np.sqrt(residual_square(norm_tensor**2, weights, factors, inner))
    # On the host: TensorLy compares errors, and each comparison on a GPU would wait for it.
    error = float(error)
    if tensor.sweep_count is not None:
        tensor.sweep_count.note_error(error / float(norm_tensor))
    return mttkrp.dtype.type(error), tensor, norm_tensor


def _instead(function: Callable) -> Callable:
    return lambda original, *args, **kwargs: function(*args, **kwargs)


def _refuse(instead: str) -> Callable:
    def refuse(original: Callable, *args: Any, **kwargs: Any) -> None:
        x = find_sparse((*args, *kwargs.values()))
        raise densify_error(f"tl's {original.__name__}", tuple(x.shape), instead)

    return refuse


TABLE = (
    Replacement(
        "parafac",
        "decomposition decomposition._cp contrib.sparse.decomposition",
        None,
        "with a mask it forms tensor * mask + model * (1 - mask); a checkpoint is not a guess; a "
        "fraction is no rank",
        "error_calc imputed the entries that a mask leaves out; init took a state",
    ),
    Replacement(
        "non_negative_parafac",
        "decomposition decomposition._nn_cp contrib.sparse.decomposition",
        None,
        "as for parafac",
        "as for parafac; it took a callback",
    ),
    Replacement(
        "non_negative_parafac_hals",
        "decomposition decomposition._nn_cp",
        None,
        "hals_nnls updates a factor column by column, in Python",
        "hals_nnls were a function of the backend",
    ),
    Replacement(
        "constrained_parafac",
        "decomposition decomposition._constrained_cp",
        None,
        "it makes arrays without naming a device, and three proximal operators form square "
        "matrices as large as a mode",
        "it passed tl.context(tensor) on, and those operators took linear time",
    ),
    Replacement(
        "parafac2",
        "decomposition decomposition._parafac2",
        None,
        "it multiplies slice by slice, and projects to a dense tensor",
        "nothing: our loop multiplies all slices at once",
    ),
    Replacement(
        "tucker partial_tucker",
        "decomposition decomposition._tucker contrib.sparse.decomposition",
        _tucker,
        "a checkpoint is not a guess; a fraction is no rank",
        "it took a callback and a state, and refused fractions",
    ),
    Replacement(
        "non_negative_tucker non_negative_tucker_hals",
        "decomposition decomposition._tucker contrib.sparse.decomposition",
        None,
        "it forms products as long as an unfolding, and the model for its error",
        "it took both from the core, Gram matrices and multi_mode_dot",
    ),
    Replacement(
        "error_calc",
        "decomposition._cp decomposition._nn_cp",
        _error_calc,
        "without an MTTKRP (callback, line search) it forms the full model",
        "it computed a missing MTTKRP itself (docs/upstream.md)",
    ),
    Replacement(
        "initialize_cp",
        "decomposition._cp decomposition._nn_cp",
        _initialize_cp,
        "it draws on the host, and takes any dtype and device, and a checkpoint, for a guess",
        "the backend drew; it passed a guess through tl.tensor; init took a state",
    ),
    Replacement(
        "initialize_tucker",
        "decomposition._tucker",
        _initialize_tucker,
        "with a mask, or several modes left out, it forms an array as large as an unfolding",
        "nothing: a sparse tensor is refused here before anything is computed",
    ),
    Replacement(
        "randomized_svd",
        "tenalg.svd",
        _instead(initial_guess.randomized_svd),
        "it draws a random row for each column of an unfolding",
        "truncated_svd and randomized_svd passed n_eigenvecs to the backend (docs/upstream.md)",
    ),
    Replacement(
        "make_svd_non_negative",
        "tenalg.svd",
        _instead(initial_guess.make_svd_non_negative),
        "it reads right singular vectors, as long as an unfolding",
        "it took the norms of their positive and negative parts from the backend",
    ),
    Replacement(
        "power_iteration symmetric_power_iteration",
        "decomposition decomposition._cp_power decomposition._symmetric_cp",
        _deflate,
        "it forms the outer product of vectors that it subtracts",
        "outer made a CP model, which tensors subtracted",
    ),
    Replacement(
        "randomised_parafac",
        "decomposition decomposition._cp",
        _refuse("use tl.decomposition.parafac, whose sweeps are faster: few fibres have a nonzero"),
        "it indexes the tensor with lists, and forms the model for its error",
        "nothing: on sparse tensors it lost against parafac wherever it was measured",
    ),
    Replacement(
        "tensor_train tensor_train_matrix tensor_ring tensor_ring_als tensor_ring_als_sampled",
        "decomposition decomposition._tt decomposition._tr_svd decomposition._tr_als",
        _refuse("use tl.decomposition.tucker"),
        "it forms a matrix as long as an unfolding, or indexes the tensor with lists",
        "nothing: it is dense by nature",
    ),
    Replacement(
        "cp_lstsq_grad",
        "cp_tensor",
        _cp_lstsq_grad,
        "it forms the model and the residual",
        "it subtracted the CP model as it is, and took the loss from tl.norm",
    ),
    Replacement(
        "mode_dot multi_mode_dot khatri_rao unfolding_dot_khatri_rao",
        "contrib.sparse.tenalg contrib.sparse.cp_tensor",
        _contrib_algebra,
        "it enters the backend numpy.sparse, where our hooks let a COO pass",
        "contrib.sparse left the current backend as it is if that takes sparse tensors",
    ),
    Replacement(
        "register_sparse_backend",
        "contrib.sparse.backend",
        _register_sparse_backend,
        "it knows no sparse backend but that of numpy",
        "it had a table that plugins may add to",
        takes=lambda name, call: call.args == ("flycoo",),
    ),
)
