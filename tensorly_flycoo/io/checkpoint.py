"""Checkpoints: the state of a decomposition after an iteration, written to a file and read."""

import copy
import hashlib
import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from tensorly.cp_tensor import CPTensor
from tensorly.tucker_tensor import TuckerTensor

from ..base.array_modules import Array
from ..base.fit_record import attach, find_record
from ..tensor.pieces import Piece, map_pieces
from ..tensor.tensor import FlycooTensor
from .array_file import CHECKPOINT, Header, number, open_arrays, save_arrays
from .fit_records import describe_record, list_record_arrays, read_record
from .places import FilePath

Model: TypeAlias = CPTensor | TuckerTensor

#: How the names of a model's own arrays begin; others are of the solver's state, or its record.
_OF_MODEL = ("weights", "core", "factor_")

#: The odd multiplier of the first coordinate, of digits of pi, and the ratio of each further one to
#: the one before, of digits of the golden ratio.
_FIRST = 0x243F6A8885A308D3
_NEXT = 0x9E3779B97F4A7C15

#: The bits of a uint64, to which Python's integers are cut.
_MASK = 2**64 - 1

#: Nonzeros hashed at a time: few enough for the cache of a CPU, enough to fill a GPU.
_CPU_BLOCK = 2**14
_GPU_BLOCK = 2**20

#: The digests of tensors, each computed once.
digests: weakref.WeakKeyDictionary[FlycooTensor, str] = weakref.WeakKeyDictionary()


class Resumed:
    """The model of a checkpoint, and what its solver needs to go on.

    Attributes
    ----------
    errors : list of float
        The relative errors at the start and after each iteration.
    solver : str
        The decomposition, "" if unknown.
    digest : str
        That of the tensor, see `find_digest`; "" if unknown.
    state : dict of str to array
        What the solver has kept beside the model.
    """

    def __init__(
        self, model: Any, errors: list[float], solver: str, digest: str, state: dict[str, Any]
    ) -> None:
        super().__init__(model)  # type: ignore[call-arg]  # of a CPTensor or a TuckerTensor
        self.errors = errors
        self.solver = solver
        self.digest = digest
        self.state = state

    @property
    def iteration(self) -> int:
        """The number of completed iterations."""
        return len(self.errors) - 1


class ResumedCP(Resumed, CPTensor):
    """The CP tensor of a checkpoint, for ``init=`` of the decomposition that it is of.

    For a sparse tensor the decomposition restores this state instead of using it as an initial
    guess: the weights stay weights (TensorLy multiplies those of a guess into the last factor), the
    arrays move to the tensor's device, and the stopping criterion compares the first new error with
    the last saved one. For a dense tensor it is an ordinary CP tensor on the host.
    """


class ResumedTucker(Resumed, TuckerTensor):
    """The Tucker tensor of a checkpoint, for ``init=`` of `decomposition.tucker`."""


def copy_model(model: Any) -> Any:
    """Copy a model without the state of its run: a solver may write to the list of factors."""
    if isinstance(model, CPTensor | TuckerTensor):
        copied = copy.copy(model)
        copied.factors = list(model.factors)
        record = find_record(copied)
        if record is not None:
            attach(copied, record.replace(run=None))
        return copied
    return model


def check_saveable(model: object) -> None:
    """Refuse anything but a CP or Tucker tensor: a PARAFAC2 model has no checkpoints."""
    if not isinstance(model, CPTensor | TuckerTensor):
        name = type(model).__name__
        raise TypeError(f"the model is a {name}, expected a CPTensor or a TuckerTensor")


def save_checkpoint(path: FilePath, model: Model, errors: Sequence[float]) -> None:
    """Write the state after an iteration, and the errors so far, to a file in one atomic step.

    `model` is as a decomposition passes it to its callback. The file is as large as the factors and
    the solver's state: `constrained_parafac` has an array as large as each factor. The first
    checkpoint of a sparse tensor takes one pass over its nonzeros, for the digest.
    """
    check_saveable(model)
    header: Header = {"errors": [float(error) for error in errors], **describe_record(model)}
    core_name = "core"
    if isinstance(model, CPTensor):
        core_name = "weights"
    arrays = [(core_name, getattr(model, core_name)), *number("factor", model.factors)]
    arrays += list_record_arrays(model)
    record = find_record(model)
    if record is not None and record.run is not None:
        arrays += [(f"state_{name}", array) for name, array in record.run.arrays.items()]
        header["solver"] = record.method
        header["digest"] = find_digest(record.run.tensor)
    save_arrays(path, CHECKPOINT, header, arrays)


def load_checkpoint(path: FilePath) -> ResumedCP | ResumedTucker:
    """Read a checkpoint that `save_checkpoint` or `Progress` wrote, with its arrays on the host."""
    with open_arrays(path, CHECKPOINT) as reader:
        errors, solver, digest = _read_facts(reader.header)
        model_arrays: dict[str, Array] = {}
        state: dict[str, Array] = {}
        for name in reader.names() - {"header"}:
            if name.startswith("state_"):
                state[name.removeprefix("state_")] = reader.read(name)
            elif name.startswith(_OF_MODEL):
                model_arrays[name] = reader.read(name)
        kind: type[ResumedCP | ResumedTucker] = ResumedCP
        core_name = "weights"
        if "core" in model_arrays:
            kind = ResumedTucker
            core_name = "core"
        core = model_arrays.pop(core_name)
        factors = [model_arrays[f"factor_{mode}"] for mode in range(len(model_arrays))]
        resumed = kind((core, factors), errors, solver, digest, state)
        ndim = len(factors)
        rank = factors[0].shape[1]
        return attach(resumed, read_record(reader, ndim, rank))


def _read_facts(header: Header) -> tuple[list[float], str, str]:
    """Return the errors, the solver and the digest that a header has; refuse other types."""
    errors = header.get("errors", "")
    solver = header.get("solver", "")
    digest = header.get("digest", "")
    are_texts = type(solver) is str and type(digest) is str
    has_errors = isinstance(errors, list) and len(errors) > 0
    are_numbers = has_errors and {type(error) for error in errors} <= {int, float}
    if not (are_texts and are_numbers):
        raise ValueError("its header does not have errors, as numbers, a solver and a digest")
    return [float(error) for error in errors], solver, digest


def find_digest(x: FlycooTensor) -> str:
    """Return 32 hexadecimal digits that depend on shape, dtype and nonzeros only.

    They do not depend on the layout, the device or the order of distinct nonzeros. Two different
    tensors have the same ones with a probability of about 2**-64. One pass over the nonzeros.
    """
    if x not in digests:
        hashes = map_pieces(_hash_piece, x._layout, x._engine)
        total = sum(int(piece_hash) for piece_hash in hashes) & _MASK
        facts = (x.shape, x.dtype.name, x.nnz, total)
        digests[x] = hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
    return digests[x]


def _hash_piece(piece: Piece) -> np.ndarray:
    """Add the hashes of the nonzeros, in any order, modulo 2**64."""
    total = 0
    block_size = _GPU_BLOCK
    if piece.xp is np:
        block_size = _CPU_BLOCK
    for coords, values in piece.iterate_nonzeros(block_size):
        total += int(_hash(coords, values).sum())
    return np.asarray(total & _MASK, np.uint64)


def _hash(coords: Array, values: Array) -> Array:
    """Hash each nonzero to a uint64: a linear function of its words, then a mixing of the bits."""
    bits = values.copy().view(f"u{values.dtype.itemsize}")
    hashes: Array = 0
    multiplier = _FIRST
    for word in [*coords, bits]:
        hashes = hashes + word.astype(np.uint64) * np.uint64(multiplier)
        multiplier = multiplier * _NEXT & _MASK
    for _ in range(2):  # each bit of a word reaches every bit of its hash
        hashes = (hashes ^ hashes >> np.uint64(32)) * np.uint64(_NEXT)
    return hashes ^ hashes >> np.uint64(32)
