"""The data of a coupled decomposition: tensors and matrices whose modes have names."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, as_array, is_on_gpu
from ..base.checks import check_choice, check_dtype, check_finite
from ..engines import select_engine
from ..format.ordering import compute_norm
from ..tensor.converters import find_converter, find_instead, is_raw_sparse
from ..tensor.coo_cache import as_flycoo
from ..tensor.labelled import LabelledTensor, Labels
from ..tensor.tensor import FlycooTensor
from .scaling import find_exponent
from .whole_tensor import WholeTensor

#: The binary logarithm of the ratio of two weights below which the smaller one is rounding.
_LEAST = -100


@dataclass
class Block:
    """One tensor or matrix: its data, the names of its axes, and their labels, if any.

    `read_blocks` makes the data float64. It adds the places of the rows that move, by axis, its
    weight, the numbers of its modes in the model, the power of two by which data far from 1 were
    divided, and |data|^2 then. Rows without places here are unknown to the block.
    """

    data: Any
    names: list[Any]
    labels: Labels | None
    places: dict[int, Array] = field(default_factory=dict)
    weight: float = 1.0
    modes: Sequence[int] = ()
    power: float = 1.0
    square: float = 0.0

    def mttkrp(self, mode: int, factors: Sequence[Array]) -> Array:
        """Compute the MTTKRP of a mode of the model, with all its factors, in float64."""
        known = [(factors[n], self.find_places(n)) for n in self.modes]
        own = [factor if places is None else factor[places] for factor, places in known]
        axis = self.modes.index(mode)
        array = self.data
        if isinstance(array, WholeTensor):
            return self._spread(array.mttkrp(None, own, axis), mode, factors[mode])
        own = [factor.astype(array.dtype, copy=False) for factor in own]
        # By the longest other factor, then by one after the other.
        xp = array_module(array)
        others = sorted({*range(array.ndim)} - {axis}, key=lambda n: array.shape[n])
        product = xp.tensordot(array.transpose(axis, *others), own[others[-1]], 1)
        for n in reversed(others[:-1]):
            product = xp.einsum("...ir,ir->...r", product, own[n])
        return self._spread(product, mode, factors[mode])

    def find_places(self, mode: int) -> Array | None:
        """Return where the block's rows are in a mode of the model; None if it has all of them."""
        return self.places.get(self.modes.index(mode))

    def _spread(self, product: Array, mode: int, factor: Array) -> Array:
        """Put the rows of a product where they are in the model, and zeros where it has others."""
        if (places := self.find_places(mode)) is None:
            return product
        spread = array_module(product).zeros_like(factor, dtype=product.dtype)
        spread[places] = product
        return spread


@dataclass
class Blocks:
    """All blocks, and the modes of the model: their names, sizes, and labels where there are any.

    `weights` are those given, `device` is "cpu" or "cuda", `dtype` that of the factors.
    """

    blocks: list[Block]
    weights: list[float]
    sizes: dict[Any, int]
    labels: Labels
    device: str
    dtype: np.dtype


def read_blocks(
    items: Iterable[Any], block_weights: Iterable[float] | None, missing: str = "zero"
) -> Blocks:
    """Check blocks as `coupled_parafac` takes them, and join their modes."""
    check_choice(missing, "missing", ("zero", "unknown"))
    blocks, device = open_blocks(items)
    given: Any = [1.0] * len(blocks) if block_weights is None else block_weights
    weights = [*given] if isinstance(given, Iterable) else [given]
    are_right = all(isinstance(weight, Real) and 0 < float(weight) < np.inf for weight in weights)
    if len(weights) != len(blocks) or not are_right:
        raise ValueError(
            f"block_weights is {weights}, expected {len(blocks)} finite numbers above 0, one for "
            "each block"
        )
    sizes: dict[Any, int] = {}
    labels: dict[Any, np.ndarray] = {}
    for name in dict.fromkeys(name for block in blocks for name in block.names):
        users = {n: block for n, block in enumerate(blocks) if name in block.names}
        sizes[name], joined = _join(name, users)
        if joined is not None:
            labels[name] = joined
    ordered = {name for block in blocks if block.labels for name in block.labels.ordered}
    known = Labels(labels, ordered=ordered)
    numbers = {name: n for n, name in enumerate(sizes)}
    dtype = np.result_type(*(block.data.dtype for block in blocks))
    engine = select_engine(device)
    for n, block in enumerate(blocks):
        x = to_exact(block.data)
        if missing == "zero":
            x = _move_rows(x, block.places, tuple(sizes[name] for name in block.names))
            block.places = {}
        block.places = {axis: engine.xp.asarray(rows) for axis, rows in block.places.items()}
        is_sparse = isinstance(x, FlycooTensor)
        norm = float(x._layout.norm) if is_sparse else compute_norm(x.reshape(-1), engine)
        if norm == 0:
            raise ValueError(f"blocks[{n}] has no nonzeros, expected at least one: leave it out")
        block.power = 2.0 ** find_exponent(norm, x.nnz if is_sparse else x.size, x.dtype)
        if block.power != 1:
            x = x * x.dtype.type(1 / block.power)
        block.square = (norm / block.power) ** 2
        block.data = WholeTensor(x) if is_sparse else x
        block.modes = [numbers[name] for name in block.names]
    scaled = weigh_divided(weights, [block.power for block in blocks])
    for block, weight in zip(blocks, scaled, strict=True):
        block.weight = weight
    return Blocks(blocks, [*map(float, weights)], sizes, known, device, dtype)


def open_blocks(items: Iterable[Any]) -> tuple[list[Block], str]:
    """Check the data and names of blocks, each by itself; return them on one device, and it."""
    blocks = [_read_item(n, item) for n, item in enumerate(items)]
    if not blocks:
        raise ValueError("blocks is empty, expected at least one (data, modes)")
    device = _find_device(blocks)
    for n, block in enumerate(blocks):
        block.data = _convert(n, block.data, device)
        _check_names(n, blocks)
    return blocks, device


def to_exact(x: Any) -> Any:
    """Return the data of a block in float64.

    MTTKRPs in float32 would hide what a sweep gains, and small eigenvalues of Gram matrices would
    divide their rounding.
    """
    return x if x.dtype == np.float64 else x.astype(np.float64)


def weigh_divided(weights: Sequence[float], powers: Sequence[float]) -> list[float]:
    """Return weights in proportion to ``weight * power**2``, for data divided by powers of two.

    Exactly: data times a power of two are to have the same model.
    """
    if all(power == 1 for power in powers):
        return [*map(float, weights)]
    parts = [math.frexp(weight) for weight in weights]
    shifts = [2 * (math.frexp(power)[1] - 1) for power in powers]
    exponents = [own + shift for (_, own), shift in zip(parts, shifts, strict=True)]
    pairs = zip(parts, exponents, strict=True)
    most = max(exponents) // 2 * 2  # even, so that roots are exact too
    return [math.ldexp(part, max(exponent - most, _LEAST)) for (part, _), exponent in pairs]


def group_rows(is_known: np.ndarray, xp: ModuleType) -> list[tuple[Any, np.ndarray]]:
    """Divide rows by what knows them, of (rows, blocks): rows, and the places of those blocks."""
    if is_known.all():
        return [(slice(None), np.arange(is_known.shape[1]))]
    groups = []
    for kind in np.unique(is_known, axis=0):
        rows = np.flatnonzero((is_known == kind).all(axis=1))
        groups.append((xp.asarray(rows), np.flatnonzero(kind)))
    return groups


def _read_item(n: int, item: Any) -> Block:
    if isinstance(item, LabelledTensor):
        item = (item, tuple(item.labels))
    if not isinstance(item, tuple | list) or len(item) != 2 or isinstance(item[1], str):
        raise TypeError(
            f"blocks[{n}] is a {type(item).__name__}, expected (data, names of its modes) such as "
            '(x, ("user", "item")), or a LabelledTensor'
        )
    data, modes = item
    names = list(modes)
    known = None
    if isinstance(data, LabelledTensor):
        if data.unknown is not None:
            raise ValueError(
                f"blocks[{n}] has unknown cells, which a coupled model would take for zeros: "
                "expected a tensor without; if they are zeros, pass (x.tensor, x.labels)"
            )
        data, known = data
    if isinstance(modes, Mapping):
        labels = Labels(modes)
        labels.check(data.shape if hasattr(data, "shape") else np.shape(data))
        return Block(data, names, labels)
    if known is None or not len({*names}) == len(names) == len(known):
        return Block(data, names, None)
    ordered = [name for name, old in zip(names, known, strict=True) if old in known.ordered]
    return Block(data, names, Labels(dict(zip(names, known.values(), strict=True)), ordered))


def _check_names(n: int, given: Sequence[Block]) -> None:
    own = given[n].names
    shape = given[n].data.shape
    if not len({*own}) == len(own) == len(shape) >= 2:
        raise ValueError(
            f"blocks[{n}] has shape {shape} and the modes {own}, expected a distinct name for each "
            "of two or more axes"
        )
    others = [name for block in given if block is not given[n] for name in block.names]
    if len(given) > 1 and not {*own} & {*others}:
        raise ValueError(
            f"blocks[{n}] has the modes {own}, expected one that another block has too: without "
            "it, decompose this block on its own"
        )


def _find_device(given: Sequence[Block]) -> str:
    """Return the device of the blocks that are on one; those in host memory go there."""
    place: dict[str, int] = {}
    for n, block in enumerate(given):
        x = block.data
        if isinstance(x, FlycooTensor):
            place.setdefault(x._engine.local_device, n)
        elif is_on_gpu(x) or type(x).__module__.startswith("cupyx."):
            place.setdefault("cuda", n)
    if len(place) > 1:
        (first, n), (second, other) = place.items()
        raise TypeError(
            f"blocks[{other}] is on the device {second!r}, expected {first!r}, that of blocks[{n}]:"
            " FlycooTensor(..., device=) chooses it"
        )
    return next(iter(place), select_engine().name)


def _convert(n: int, x: Any, device: str) -> Any:
    """Return a block's data as a FlycooTensor, or if it is dense as a float array."""
    if isinstance(x, FlycooTensor) or (is_raw_sparse(x) and select_engine().name == device):
        return as_flycoo(x, check_coords=True)
    if converter := "from_coo" if is_raw_sparse(x) else find_converter(x):
        return getattr(FlycooTensor, converter)(x, device=device)
    if instead := find_instead(x):
        raise TypeError(
            f"blocks[{n}] is a {type(x).__name__}, expected an array or a sparse tensor: pass "
            f"{instead}, or for a table with a column for each "
            "index (x.to_numpy(), labels by mode)"
        )
    array = as_array(x)
    dtype = check_dtype(array.dtype, f"the dtype of blocks[{n}]")
    check_finite(array.reshape(-1), f"blocks[{n}].reshape(-1)")
    return select_engine(device).xp.asarray(array, dtype)


def _join(name: Any, users: Mapping[int, Block]) -> tuple[int, np.ndarray | None]:
    """Return a mode's size and labels, the first block's first; note where the others' rows go."""
    sizes = {n: block.data.shape[block.names.index(name)] for n, block in users.items()}
    labels = {n: block.labels[name] for n, block in users.items() if block.labels is not None}
    (first, expected), *_ = sizes.items()
    hint = "give a dict of labels by mode in place of the names"
    for n, size in sizes.items():
        if labels and n not in labels:
            raise ValueError(
                f"blocks[{n}] has no labels of mode {name!r}, expected some, as "
                f"blocks[{next(iter(labels))}] has: {hint}"
            )
        if size != expected and not labels:
            raise ValueError(
                f"blocks[{n}] has size {size} in mode {name!r}, expected {expected}, as "
                f"blocks[{first}] has: if its rows have labels, {hint}"
            )
    arrays = list(labels.values())
    if all(own is arrays[0] or np.array_equal(own, arrays[0]) for own in arrays):
        return expected, labels.get(first)
    joined, split = join_labels(arrays)
    for n, rows in list(zip(labels, split, strict=True))[1:]:
        if not any(np.isin(rows, other).any() for other in split if other is not rows):
            raise ValueError(
                f"blocks[{n}] has labels of mode {name!r} such as {joined[rows[0]]!r}, "
                "expected one that another block has too"
            )
    for block, rows in zip(users.values(), split, strict=True):
        if not np.array_equal(rows, np.arange(len(joined))):
            block.places[block.names.index(name)] = rows
    return len(joined), joined


def join_labels(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return all distinct labels, the first array's first, and where those of each array are."""
    if len({own.dtype.kind for own in arrays}) > 1:  # Python compares 3 with 3.0, not with "3"
        arrays = [own.astype(object) for own in arrays]
    joined = np.concatenate(arrays)
    places: dict[Any, int] = {}
    codes = np.array([places.setdefault(label, len(places)) for label in joined.tolist()])
    firsts = np.unique(codes, return_index=True)[1]
    return joined[firsts], np.split(codes, np.cumsum([len(own) for own in arrays])[:-1])


def _move_rows(x: Any, places: Mapping[int, np.ndarray], shape: tuple[int, ...]) -> Any:
    """Return a block in the shape of the model, index i of an axis at ``places[axis][i]``."""
    if not places:
        return x
    if isinstance(x, FlycooTensor):
        coords, values = x._sorted_nonzeros()
        xp = array_module(values)
        coords = list(coords)
        for axis, rows in places.items():
            coords[axis] = xp.asarray(rows)[coords[axis]]
        return x._rebuild(xp.stack(coords), values, shape)
    xp = array_module(x)
    moved = xp.zeros(shape, x.dtype)
    every = [xp.asarray(places.get(n, np.arange(size))) for n, size in enumerate(x.shape)]
    moved[xp.ix_(*every)] = x
    return moved
