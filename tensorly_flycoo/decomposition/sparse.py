"""TensorLy's decompositions by singular value decompositions, on sparse tensors."""

import contextvars
import functools
import inspect

from tensorly.tr_tensor import TRTensor, validate_tr_rank
from tensorly.tt_tensor import TTTensor, validate_tt_rank

from ..checks import densify_error
from ..ops.sampling import Reconstruction, SampledTensor
from ..ops.ttmc import check_free_modes
from ..ops.views import make_tensor, permute
from ..tensor.coo_cache import as_flycoo, is_sparse
from . import masked_parafac as masked
from . import resuming
from .ring_cores import decompose_ring

#: The two give the same here.
_SVDS = ("truncated_svd", "randomized_svd")


def tensor_train(input_tensor, rank, svd="truncated_svd", verbose=False, random_state=None):
    """Decompose a sparse tensor, or a view of one, into a tensor train."""
    x = _take(input_tensor, svd, "tensor_train")
    ranks = [int(r) for r in validate_tt_rank(x.shape, rank=rank)]
    return TTTensor(_tell(decompose_ring(x, ranks), 0, "TT", verbose))


def tensor_ring(input_tensor, rank, mode=0, svd="truncated_svd", verbose=False, random_state=None):
    """Decompose a sparse tensor into a tensor ring, beginning with `mode`."""
    x = _take(input_tensor, svd, "tensor_ring")
    ndim = len(x.shape)
    ranks = [int(r) for r in validate_tr_rank(x.shape, rank=rank)]
    if mode:
        x = make_tensor(permute(x, [*range(mode, ndim), *range(mode)]))
    # As TensorLy turns them, with the first rank, which is the last one too, in it twice.
    ranks = (ranks[mode:] + ranks[:mode])[:ndim]
    cores = _tell(decompose_ring(x, [*ranks, ranks[0]]), mode, "TR", verbose)
    return TRTensor(cores[ndim - mode :] + cores[: ndim - mode])


def tensor_train_matrix(original):
    """Look whether there is anything to decompose before TensorLy pairs the modes."""

    @functools.wraps(original)
    def tensor_train_matrix(tensor, *args, **kwargs):
        if tensor.ndim == 2:
            reason = "its one core is the matrix itself: use four modes or more"
            raise densify_error("tl.decomposition.tensor_train_matrix", tensor.shape, reason)
        return original(tensor, *args, **kwargs)

    return tensor_train_matrix


def parafac2(original):
    """Give TensorLy's parafac2, which multiplies each slice with factors, the slices of a tensor.

    They are converted, or cut out of a tensor of three modes, once.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def parafac2(tensor_slices, *args, **kwargs):
        arguments = signature.bind(tensor_slices, *args, **kwargs).arguments
        if is_sparse(tensor_slices):
            if tensor_slices.ndim != 3:
                raise ValueError(
                    f"the tensor has shape {tensor_slices.shape}, expected three modes"
                )
            tensor_slices = as_flycoo(tensor_slices, check_coords=True)
        slices = [as_flycoo(x, check_coords=True) if is_sparse(x) else x for x in tensor_slices]
        if isinstance(arguments.get("init"), str) and arguments["init"] == "svd":
            size = slices[0].shape[1]
            instead = "use init='random', or factors of your own"
            raise densify_error("init='svd' of tl.decomposition.parafac2", (size, size), instead)
        if arguments.get("mask") is not None:
            instead = "it puts a value where one is missing in each iteration; leave mask out"
            raise densify_error("mask= of tl.decomposition.parafac2", slices[0].shape, instead)
        return original(slices, *args, **kwargs)

    return parafac2


def tucker(original):
    """Refuse at once where so many factors are fixed that TensorLy's core would be too large."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def tucker(tensor, *args, **kwargs):
        fixed_modes = signature.bind(tensor, *args, **kwargs).arguments.get("fixed_factors")
        check_free_modes(as_flycoo(tensor, check_coords=True), sorted(fixed_modes or []))
        return original(tensor, *args, **kwargs)

    return tucker


def initialize_tucker(original):
    """Refuse at once what has no sparse version: a mask, too large a core."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize_tucker(tensor, *args, **kwargs):
        arguments = signature.bind(tensor, *args, **kwargs).arguments
        if arguments.get("mask") is not None:
            shape = tuple(tensor.shape)
            raise densify_error("mask= of tucker", shape, "it has no sparse version here")
        x = as_flycoo(tensor, check_coords=True)
        check_free_modes(x, [n for n in range(x.ndim) if n not in arguments["modes"]])
        return original(tensor, *args, **kwargs)

    return initialize_tucker


#: Whether randomised_parafac of a sparse tensor is running in this thread.
_is_sampling = contextvars.ContextVar("is_sampling", default=False)


def randomised_parafac(original):
    """Give TensorLy's randomised_parafac a tensor that can be sampled."""

    @functools.wraps(original)
    def randomised_parafac(tensor, *args, **kwargs):
        sampled = SampledTensor(as_flycoo(tensor, check_coords=True))
        token = _is_sampling.set(True)
        try:
            return original(sampled, *args, **kwargs)
        finally:
            _is_sampling.reset(token)

    return randomised_parafac


def cp_to_tensor(original):
    """Keep what randomised_parafac subtracts from the tensor, for its exact error, unformed."""

    @functools.wraps(original)
    def cp_to_tensor(cp_tensor, *args, **kwargs):
        if _is_sampling.get():
            return Reconstruction(*cp_tensor)
        return original(cp_tensor, *args, **kwargs)

    return cp_to_tensor


def _take(tensor, svd, name):
    if svd not in _SVDS:
        reason = f"expected one of {_SVDS}, of which leading singular vectors can be had alone"
        raise densify_error(f"tl.decomposition.{name} with svd={svd!r}", tensor.shape, reason)
    return tensor if is_sparse(tensor) else make_tensor(tensor)


def _tell(cores, mode, kind, verbose):
    if verbose is True:
        for n, core in enumerate(cores):
            print(f"{kind} factor {(n + mode) % len(cores)} computed with shape {core.shape}")
    return cores


#: By name, what gives what is done for sparse tensors in the place of TensorLy's own function.
MAKERS = {
    "tensor_train": lambda original: tensor_train,
    "tensor_ring": lambda original: tensor_ring,
    "tensor_train_matrix": tensor_train_matrix,
    "parafac2": parafac2,
    "tucker": tucker,
    "parafac": lambda original: resuming.parafac(masked.take_mask(original)),
    "non_negative_parafac": masked.take_mask,
    "randomised_parafac": randomised_parafac,
}
