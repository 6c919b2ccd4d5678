"""The record of how a model was made, in the model's file or checkpoint."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..base.array_modules import Array
from ..base.checks import check_inside, check_shape, warn
from ..base.fit_record import ABSENT, FitRecord, find_record
from ..base.value_dtypes import FLOATS
from ..tensor.unknown import make_mask
from .array_file import ArrayReader, Header, keep_name, number

#: The facts that a header holds as they are; the others take arrays, or are only a callback's.
_PLAIN_FACTS = [
    "method",
    "loss",
    "absent",
    "unobserved",
    "is_weighted",
    "l2_reg",
    "non_negative",
    "is_centred",
    "bias_modes",
    "scale",
    "value_column",
    "dtype",
]

_INDEX = np.dtype(np.int64)


def describe_record(model: Any) -> Header:
    """Return the header's entries for a model's record; none if it has no record."""
    record = find_record(model)
    if record is None:
        return {"flycoo": None}
    facts = {name: getattr(record, name) for name in _PLAIN_FACTS}
    facts["value_column"] = keep_name(record.value_column)
    facts["constraints"] = {  # keys of JSON are text
        str(mode): dict(strengths) for mode, strengths in record.constraints.items()
    }
    facts["mask"] = _describe_mask(record.mask)
    return {"flycoo": facts}


def list_record_arrays(model: Any) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a model's record: the cells that its mask marks, and intervals."""
    record = find_record(model)
    if record is None:
        return
    if isinstance(record.mask, list):  # one for each slice of a PARAFAC2 model
        cells = [_list_missing(slice_mask) for slice_mask in record.mask]
        slices = np.repeat(np.arange(len(cells)), [part.shape[1] for part in cells])
        yield "mask", np.concatenate([slices[None], np.concatenate(cells, axis=1)])
    elif record.mask is not None:
        yield "mask", _list_missing(record.mask)
    if record.intervals:
        yield from number("lower", [lower for lower, _ in record.intervals])
        yield from number("upper", [upper for _, upper in record.intervals])


def read_record(reader: ArrayReader, ndim: int, rank: int) -> FitRecord | None:
    """Read the record of a model of `ndim` modes, and refuse one that cannot be true.

    A file of an older release has none, but for some facts of `observed_parafac`: a warning says
    what is not known.
    """
    if "flycoo" not in reader.header:
        return _read_older(reader.header, ndim, rank)
    facts = reader.header["flycoo"]
    if facts is None:  # a model that its user had put together
        return None
    if not isinstance(facts, dict):
        raise ValueError(f"its header has the record {facts!r}")
    stored_constraints = dict(facts.get("constraints", {}))
    constraints = {int(mode): dict(strengths) for mode, strengths in stored_constraints.items()}
    record = FitRecord(
        # Older files lack facts, whose defaults are what they meant.
        **{name: facts[name] for name in _PLAIN_FACTS if name in facts},
        constraints=constraints,
        mask=_read_mask(reader, facts.get("mask")),
        intervals=_read_intervals(reader),
    )
    return _check(record, ndim, rank)


def _describe_mask(mask: Any) -> Any:
    """Return the shape of a mask as a list; of masks of slices, the list of their shapes."""
    if mask is None:
        return None
    if isinstance(mask, list):
        return [list(slice_mask.shape) for slice_mask in mask]
    return list(mask.shape)


def _list_missing(mask: Any) -> np.ndarray:
    """Return the coordinates (ndim, count) that a mask marks as missing."""
    if not hasattr(mask, "coords"):  # such as sparse.GCXS
        mask = mask.asformat("coo")
    is_missing = mask.data == 0
    return np.asarray(mask.coords[:, is_missing], np.int64)


def _read_mask(reader: ArrayReader, shape: Any) -> Any:
    """Read a mask of a shape, or the masks of slices of several shapes."""
    if shape is None:
        return None
    if not isinstance(shape, list):
        raise ValueError(f"its header has a mask of shape {shape!r}")
    if not all(isinstance(size, list) for size in shape):
        return _check_mask(reader.read("mask", (len(shape), None), (_INDEX,)), shape)
    listed = reader.read("mask", (3, None), (_INDEX,))
    slices = listed[0]
    cells = listed[1:]
    return [
        _check_mask(cells[:, slices == number], slice_shape)
        for number, slice_shape in enumerate(shape)
    ]


def _check_mask(cells: np.ndarray, sizes: list[Any]) -> Any:
    """Make a mask of the cells that are missing, and refuse those that are outside of it."""
    shape = check_shape(sizes)
    if len(shape) != len(cells):
        raise ValueError(f"its header has a mask of shape {shape}")
    check_inside(cells, shape)
    return make_mask(cells, shape)


def _read_intervals(reader: ArrayReader) -> list[tuple[np.ndarray, np.ndarray]]:
    """Read the intervals of the factors' elements, an empty list if there are none."""
    if "lower_0" not in reader.names():
        return []
    dtype = reader.read("lower_0", dtypes=FLOATS).dtype
    lower = reader.read_list("lower", dtype)
    upper = reader.read_list("upper", dtype)
    return list(zip(lower, upper, strict=True))


def _read_older(header: Mapping[str, Any], ndim: int, rank: int) -> FitRecord | None:
    """Read the record from a file of release 0.2 or older: of `observed_parafac`, or None."""
    ridge = header.get("observed_l2_reg")  # not stored where absent cells had a weight
    if ridge is None and "observed_scale" not in header:
        warn(
            "the file is of an older release, which kept no record of how a model was made: its "
            "mask, weights, loss, constraints and signs are not known, and functions take it for a "
            "plain model of all cells"
        )
        return None
    warn(
        "the file is of an older release, whose record of how a model was made lacks the weights "
        "of confidence=, the weight of unobserved=, signs, and the column of the values"
    )
    absent = "unknown"
    if ridge is None:
        absent = "weighted"
        ridge = 0.0
    record = FitRecord(
        method="observed_parafac",
        absent=absent,
        l2_reg=ridge,
        scale=header.get("observed_scale"),
        bias_modes=_as_list(header.get("bias_modes", [])),  # type: ignore[arg-type]
    )
    return _check(record, ndim, rank)


def _check(record: FitRecord, ndim: int, rank: int) -> FitRecord:
    """Refuse a record whose facts cannot be true; return it with tuples in place of lists."""
    numbers = [record.unobserved, record.l2_reg]
    if record.scale is not None:
        numbers.append(record.scale)
    for strengths in record.constraints.values():
        numbers += strengths.values()
    modes = [*_as_list(record.non_negative), *record.constraints]
    # One for each component, or none: its mode, ndim for the mean, -1 if it is no bias.
    bias_modes = _as_list(record.bias_modes)
    flags = [record.is_weighted, record.is_centred]

    # A comparison follows the check of types: others may not compare.
    are_finite = _are_all(float, numbers) and all(0 <= value < math.inf for value in numbers)
    are_modes = _are_all(int, modes) and all(0 <= mode < ndim for mode in modes)
    are_bias_modes = _are_all(int, bias_modes) and all(-1 <= mode <= ndim for mode in bias_modes)
    checks = {
        "texts": _are_all(str, [record.method, record.loss, record.dtype]),
        "numbers": are_finite and record.scale != 0,
        "modes": are_modes,
        "bias_modes": are_bias_modes and len(bias_modes) in (0, rank),
        "value_column": record.value_column is None or type(record.value_column) in (str, int),
        "absent": record.absent in ABSENT and _are_all(bool, flags),
    }
    wrong = [name for name, is_right in checks.items() if not is_right]
    if wrong:
        raise ValueError(f"its header has a record with wrong {', '.join(wrong)}: {record!r}")
    return record.replace(non_negative=tuple(record.non_negative), bias_modes=tuple(bias_modes))


def _are_all(kind: type, facts: Iterable[Any]) -> bool:
    """Whether all facts are of exactly this type, as JSON gives them: True is no int."""
    return all(type(fact) is kind for fact in facts)


def _as_list(fact: Any) -> list[Any]:
    """Return a list of a header; anything else as its only, and wrong, item."""
    if isinstance(fact, list | tuple):
        return list(fact)
    return [fact]
