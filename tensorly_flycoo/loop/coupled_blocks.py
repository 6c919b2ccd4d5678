"""The data of a coupled decomposition: tensors and matrices whose modes have names.

Where blocks name the same mode, their labels are joined in order of appearance: `join_labels`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np

from ..base.array_modules import Array, array_module, as_array, is_on_gpu
from ..base.checks import check_choice, check_dtype, check_finite
from ..engines import Engine, select_engine
from ..format.ordering import compute_norm
from ..tensor.converters import find_converter, find_instead, is_raw_sparse
from ..tensor.coo_cache import as_flycoo
from ..tensor.labelled import LabelledTensor, Labels
from ..tensor.tensor import FlycooTensor
from .block_cells import BlockCells
from .scaling import find_exponent
from .whole_tensor import WholeTensor

#: The binary logarithm of the ratio of two weights below which the smaller one is rounding.
_LEAST = -100


@dataclass
class CoupledBlock:
    """One tensor or matrix: its data, the names of its axes, and their labels, if any.

    `read_blocks` makes the data float64, and fills in the fields that have defaults.
    """

    data: Any  # a WholeTensor, or a dense array
    names: list[Any]
    labels: Labels | None
    is_observed: bool = False  # whether all cells that it does not store are unknown
    # By axis, where its rows are in the model; none for an axis with all of the model's rows. Rows
    # of the model without a place here are unknown to the block.
    places: dict[int, Array] = field(default_factory=dict)
    weight: float = 1.0
    modes: Sequence[int] = ()  # the numbers of its axes' modes in the model
    power: float = 1.0  # of two, by which data far from 1 were divided
    square: float = 0.0  # |data|^2, after that

    @property
    def absent(self) -> str:
        """What a cell without a row is, as a `FitRecord` says it."""
        return "unknown" if self.is_observed else "zero"

    def list_known(self) -> BlockCells:
        """List the cells that are stored, by their rows in the model."""
        coords, values = self.data.tensor._sorted_nonzeros()
        coords = list(coords)
        for axis, rows in self.places.items():
            coords[axis] = rows[coords[axis]]
        return BlockCells(self.modes, array_module(values).stack(coords), values)

    def mttkrp(self, mode: int, factors: Sequence[Array]) -> Array:
        """Compute the MTTKRP of a mode of the model, with all its factors, in float64."""
        block_factors = [self.take_rows(factors[n], n) for n in self.modes]
        axis = self.modes.index(mode)
        if isinstance(self.data, WholeTensor):
            product = self.data.mttkrp(None, block_factors, axis)
        else:
            product = _multiply_dense(self.data, block_factors, axis)
        return self._spread(product, mode, factors[mode])

    def take_rows(self, factor: Array, mode: int) -> Array:
        """Return the rows of a factor of the model that the block has."""
        places = self.find_places(mode)
        if places is None:
            return factor
        return factor[places]

    def find_places(self, mode: int) -> Array | None:
        """Return where the block's rows are in a mode of the model; None if it has all of them."""
        return self.places.get(self.modes.index(mode))

    def _spread(self, product: Array, mode: int, factor: Array) -> Array:
        """Put the rows of a product where they are in the model, and zeros where it has others."""
        places = self.find_places(mode)
        if places is None:
            return product
        spread = array_module(product).zeros_like(factor, dtype=product.dtype)
        spread[places] = product
        return spread


def _multiply_dense(array: Array, factors: Sequence[Array], axis: int) -> Array:
    """Compute the MTTKRP of a dense array: by the longest factor, then by one after the other."""
    xp = array_module(array)
    factors = [factor.astype(array.dtype, copy=False) for factor in factors]
    summed_axes = sorted({*range(array.ndim)} - {axis}, key=lambda n: array.shape[n])
    longest = summed_axes.pop()
    ordered = array.transpose(axis, *summed_axes, longest)
    product = xp.tensordot(ordered, factors[longest], 1)
    for n in reversed(summed_axes):
        product = xp.einsum("...ir,ir->...r", product, factors[n])
    return product


@dataclass
class CoupledBlocks:
    """All blocks, and the modes of their model."""

    blocks: list[CoupledBlock]
    weights: list[float]  # as they were given
    sizes: dict[Any, int]  # by the name of the mode
    labels: Labels  # of the modes that have some
    device: str  # "cpu" or "cuda"
    dtype: np.dtype  # of the factors


def read_blocks(
    items: Iterable[Any], block_weights: Iterable[float] | None, missing: str = "zero"
) -> CoupledBlocks:
    """Check blocks as `coupled_parafac` takes them, and join their modes."""
    check_choice(missing, "missing", ("zero", "unknown"))
    blocks, device = open_blocks(items)
    weights = _read_weights(block_weights, len(blocks))
    sizes, labels = _join_modes(blocks)
    dtype = np.result_type(*(block.data.dtype for block in blocks))
    for n, block in enumerate(blocks):
        if missing == "zero" and not block.is_observed:
            _fill_up(block, sizes)
        _prepare_data(n, block, select_engine(device))
        block.modes = [[*sizes].index(name) for name in block.names]
    scaled_weights = weigh_divided(weights, [block.power for block in blocks])
    for block, weight in zip(blocks, scaled_weights, strict=True):
        block.weight = weight
    return CoupledBlocks(blocks, [*map(float, weights)], sizes, labels, device, dtype)


def _read_weights(block_weights: Any, num_blocks: int) -> list[Any]:
    """Return the weights of blocks, by default ones, after checking them."""
    if block_weights is None:
        return [1.0] * num_blocks
    weights = [block_weights]
    if isinstance(block_weights, Iterable):
        weights = list(block_weights)
    are_right = all(isinstance(weight, Real) and 0 < float(weight) < np.inf for weight in weights)
    if len(weights) != num_blocks or not are_right:
        raise ValueError(
            f"block_weights is {weights}, expected {num_blocks} finite numbers above 0, one for "
            "each block"
        )
    return weights


def _join_modes(blocks: list[CoupledBlock]) -> tuple[dict[Any, int], Labels]:
    """Return the size of each mode of the model, and labels; note where each block's rows go."""
    sizes: dict[Any, int] = {}
    labels: dict[Any, np.ndarray] = {}
    all_names = dict.fromkeys(name for block in blocks for name in block.names)  # in their order
    for name in all_names:
        users = {n: block for n, block in enumerate(blocks) if name in block.names}
        sizes[name], labels_of_mode = _join(name, users)
        if labels_of_mode is not None:
            labels[name] = labels_of_mode
    ordered: set[str] = set()
    for block in blocks:
        if block.labels is not None:
            ordered.update(block.labels.ordered)
    return sizes, Labels(labels, ordered=ordered)


def _fill_up(block: CoupledBlock, sizes: Mapping[Any, int]) -> None:
    """Give a block all rows of the model's modes, with zeros for missing ones."""
    shape = tuple(sizes[name] for name in block.names)
    block.data = _move_rows(to_exact(block.data), block.places, shape)
    block.places = {}


def _prepare_data(n: int, block: CoupledBlock, engine: Engine) -> None:
    """Make a block's data float64 and near 1, and measure them; places go to their device."""
    x = to_exact(block.data)
    block.places = {axis: engine.xp.asarray(rows) for axis, rows in block.places.items()}
    is_sparse = isinstance(x, FlycooTensor)
    if is_sparse:
        norm = float(x._layout.norm)
        num_values = x.nnz
    else:
        norm = compute_norm(x.reshape(-1), engine)
        num_values = x.size
    if norm == 0:
        raise ValueError(f"blocks[{n}] has no nonzeros, expected at least one: leave it out")
    block.power = 2.0 ** find_exponent(norm, num_values, x.dtype)
    if block.power != 1:
        x = x * x.dtype.type(1 / block.power)
    block.square = (norm / block.power) ** 2
    block.data = x
    if is_sparse:
        block.data = WholeTensor(x)


def open_blocks(items: Iterable[Any]) -> tuple[list[CoupledBlock], str]:
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
    if x.dtype == np.float64:
        return x
    return x.astype(np.float64)


def weigh_divided(weights: Sequence[float], powers: Sequence[float]) -> list[float]:
    """Return weights in proportion to ``weight * power**2``, for data divided by powers of two.

    Exactly: data times a power of two are to have the same model.
    """
    if all(power == 1 for power in powers):
        return [*map(float, weights)]
    mantissas = []
    exponents = []
    for weight, power in zip(weights, powers, strict=True):
        mantissa, exponent = math.frexp(weight)
        _, exponent_of_power = math.frexp(power)
        log_power = exponent_of_power - 1  # as the mantissa of a power of two is 1/2
        mantissas.append(mantissa)
        exponents.append(exponent + 2 * log_power)
    most = max(exponents) // 2 * 2  # even, so that roots are exact too
    scaled_exponents = [max(exponent - most, _LEAST) for exponent in exponents]
    return [*map(math.ldexp, mantissas, scaled_exponents)]


def group_rows(is_known: np.ndarray, xp: ModuleType) -> list[tuple[Any, np.ndarray]]:
    """Group rows by the blocks that have them, from a mask (rows, blocks): rows, and blocks.

    >>> is_known = np.array([[True, True], [True, False], [True, True]])
    >>> [(rows.tolist(), blocks.tolist()) for rows, blocks in group_rows(is_known, np)]
    [([1], [0]), ([0, 2], [0, 1])]
    """
    if is_known.all():
        return [(slice(None), np.arange(is_known.shape[1]))]
    groups = []
    for kind in np.unique(is_known, axis=0):
        rows = np.flatnonzero((is_known == kind).all(axis=1))
        groups.append((xp.asarray(rows), np.flatnonzero(kind)))
    return groups


def _read_item(n: int, item: Any) -> CoupledBlock:
    """Read one of the blocks that a user passes: its data, the names of its modes, and labels."""
    if isinstance(item, LabelledTensor):
        item = (item, tuple(item.labels))
    if not isinstance(item, tuple | list) or len(item) != 2 or isinstance(item[1], str):
        raise TypeError(
            f"blocks[{n}] is a {type(item).__name__}, expected (data, names of its modes) such as "
            '(x, ("user", "item")), or a LabelledTensor'
        )
    data, modes = item
    names = list(modes)
    data_labels = None
    is_observed = False
    if isinstance(data, LabelledTensor):
        is_observed = _is_observed(n, data)
        data, data_labels = data
    if isinstance(modes, Mapping):
        labels = Labels(modes)
        shape = getattr(data, "shape", None)
        if shape is None:  # lists
            shape = np.shape(data)
        labels.check(shape)
        return CoupledBlock(data, names, labels, is_observed)
    if data_labels is None:
        return CoupledBlock(data, names, labels=None)
    if not len({*names}) == len(names) == len(data_labels):
        return CoupledBlock(data, names, labels=None)  # `_check_names` will refuse these names
    return CoupledBlock(data, names, _rename(data_labels, names), is_observed)


def _is_observed(n: int, x: LabelledTensor) -> bool:
    """Return whether all cells without a row are unknown; refuse a tensor of which some are."""
    if x.unknown is None:
        return False
    if isinstance(x.unknown, str):  # "all"
        return True
    raise ValueError(
        f"blocks[{n}] has a mask of unknown cells, beside which cells without a row are zeros, "
        "expected all of them unknown, or all zeros: make it of a table that has a row for each "
        'known zero, with missing="unknown"; or pass (x.tensor, x.labels) if all are zeros'
    )


def _rename(labels: Labels, names: list[Any]) -> Labels:
    """Return labels with other names of the modes."""
    renamed = dict(zip(names, labels.values(), strict=True))
    old_names = dict(zip(names, labels, strict=True))
    return Labels(renamed, [name for name in names if old_names[name] in labels.ordered])


def _check_names(n: int, blocks: Sequence[CoupledBlock]) -> None:
    """Refuse a block whose modes have no distinct names, or with none that another block has."""
    names = blocks[n].names
    shape = blocks[n].data.shape
    are_distinct = len(set(names)) == len(names)
    if not are_distinct or len(names) != len(shape) or len(shape) < 2:
        raise ValueError(
            f"blocks[{n}] has shape {shape} and the modes {names}, expected a distinct name for "
            "each of two or more axes"
        )
    other_names = {name for block in blocks if block is not blocks[n] for name in block.names}
    if len(blocks) > 1 and not other_names.intersection(names):
        raise ValueError(
            f"blocks[{n}] has the modes {names}, expected one that another block has too: without "
            "it, decompose this block on its own"
        )


def _find_device(blocks: Sequence[CoupledBlock]) -> str:
    """Return the device of the FlycooTensors and GPU arrays; arrays in host memory follow them."""
    users: dict[str, int] = {}  # the first block on each device
    for n, block in enumerate(blocks):
        x = block.data
        if isinstance(x, FlycooTensor):
            users.setdefault(x._engine.local_device, n)
        elif is_on_gpu(x) or type(x).__module__.startswith("cupyx."):
            users.setdefault("cuda", n)
    if len(users) > 1:
        (device, n), (other_device, other_n) = users.items()
        raise TypeError(
            f"blocks[{other_n}] is on the device {other_device!r}, expected {device!r}, that of "
            f"blocks[{n}]: FlycooTensor(..., device=) chooses it"
        )
    return next(iter(users), select_engine().name)


def _convert(n: int, x: Any, device: str) -> Any:
    """Return a block's data as a FlycooTensor, or if it is dense as a float array."""
    is_coo = is_raw_sparse(x)
    if isinstance(x, FlycooTensor) or (is_coo and select_engine().name == device):
        return as_flycoo(x, check_coords=True)
    converter = find_converter(x)
    if is_coo:
        converter = "from_coo"
    if converter:
        return getattr(FlycooTensor, converter)(x, device=device)
    instead = find_instead(x)
    if instead:
        raise TypeError(
            f"blocks[{n}] is a {type(x).__name__}, expected an array or a sparse tensor: pass "
            f"{instead}, or for a table with a column for each "
            "index (x.to_numpy(), labels by mode)"
        )
    array = as_array(x)
    dtype = check_dtype(array.dtype, f"the dtype of blocks[{n}]")
    check_finite(array.reshape(-1), f"blocks[{n}].reshape(-1)")
    return select_engine(device).xp.asarray(array, dtype)


def _join(name: Any, users: Mapping[int, CoupledBlock]) -> tuple[int, np.ndarray | None]:
    """Unite a mode of several blocks: return its size and labels; set `places` of the blocks."""
    sizes = {}
    labels = {}
    for n, block in users.items():
        axis = block.names.index(name)
        sizes[n] = block.data.shape[axis]
        if block.labels is not None:
            labels[n] = block.labels[name]
    first = next(iter(users))
    if not labels:
        _check_same_size(name, sizes)
        return sizes[first], None
    _check_all_labelled(name, users, labels)
    if all(_are_equal(array, labels[first]) for array in labels.values()):
        return sizes[first], labels[first]
    all_labels, places = join_labels([*labels.values()])
    _check_overlap(name, [*users], all_labels, places)
    for block, rows in zip(users.values(), places, strict=True):
        if not np.array_equal(rows, np.arange(len(all_labels))):
            block.places[block.names.index(name)] = rows
    return len(all_labels), all_labels


_LABEL_HINT = "give a dict of labels by mode in place of the names"


def _are_equal(labels: np.ndarray, expected: np.ndarray) -> bool:
    return labels is expected or np.array_equal(labels, expected)


def _check_same_size(name: Any, sizes: Mapping[int, int]) -> None:
    """Refuse blocks of different sizes in a mode without labels."""
    first, expected = next(iter(sizes.items()))
    for n, size in sizes.items():
        if size != expected:
            raise ValueError(
                f"blocks[{n}] has size {size} in mode {name!r}, expected {expected}, as "
                f"blocks[{first}] has: if its rows have labels, {_LABEL_HINT}"
            )


def _check_all_labelled(name: Any, users: Iterable[int], labels: Mapping[int, Any]) -> None:
    """Refuse a block without labels of a mode that another block labels."""
    for n in users:
        if n not in labels:
            raise ValueError(
                f"blocks[{n}] has no labels of mode {name!r}, expected some, as "
                f"blocks[{next(iter(labels))}] has: {_LABEL_HINT}"
            )


def _check_overlap(
    name: Any, users: Sequence[int], labels: np.ndarray, places: Sequence[np.ndarray]
) -> None:
    """Refuse a block, but for the first, that shares no label of a mode with another one."""
    for place, (n, rows) in enumerate(zip(users, places, strict=True)):
        rows_of_others = [*places[:place], *places[place + 1 :]]
        if place > 0 and not np.isin(rows, np.concatenate(rows_of_others)).any():
            raise ValueError(
                f"blocks[{n}] has labels of mode {name!r} such as {labels[rows[0]]!r}, "
                "expected one that another block has too"
            )


def join_labels(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return all distinct labels, the first array's first, and each array's places among them.

    They are not sorted, as those of one table are (`io/entries.py`): blocks keep their own order.

    >>> labels, places = join_labels([np.array(["b", "a"]), np.array(["c", "b"])])
    >>> labels.tolist(), [rows.tolist() for rows in places]
    (['b', 'a', 'c'], [[0, 1], [2, 0]])
    """
    if len({array.dtype.kind for array in arrays}) > 1:
        arrays = [array.astype(object) for array in arrays]  # Python compares 3 with 3.0, not "3"
    all_labels = np.concatenate(arrays)
    numbers: dict[Any, int] = {}  # of each distinct label
    codes = [numbers.setdefault(label, len(numbers)) for label in all_labels.tolist()]
    _, first_places = np.unique(codes, return_index=True)
    ends = np.cumsum([len(array) for array in arrays])
    return all_labels[first_places], np.split(codes, ends[:-1])


def _move_rows(x: Any, places: Mapping[int, np.ndarray], shape: tuple[int, ...]) -> Any:
    """Return a block in the shape of the model, index i of an axis at ``places[axis][i]``."""
    if not places:
        return x
    if isinstance(x, FlycooTensor):
        coords, values = x._sorted_nonzeros()
        xp = array_module(values)
        moved_coords = list(coords)
        for axis, rows in places.items():
            moved_coords[axis] = xp.asarray(rows)[coords[axis]]
        return x._rebuild(xp.stack(moved_coords), values, shape)
    xp = array_module(x)
    targets = []
    for axis, size in enumerate(x.shape):
        rows = places.get(axis, np.arange(size))
        targets.append(xp.asarray(rows))
    moved = xp.zeros(shape, x.dtype)
    moved[xp.ix_(*targets)] = x
    return moved
