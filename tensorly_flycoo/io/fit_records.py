"""The record of how a model was made, in the model's file or checkpoint."""

import math
from collections.abc import Iterator, Mapping
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
    """Return what the header of a model's file says of its record; nothing if it has none."""
    record = find_record(model)
    if record is None:
        return {"flycoo": None}
    facts = {name: getattr(record, name) for name in _PLAIN_FACTS}
    facts["value_column"] = keep_name(record.value_column)
    facts["constraints"] = {str(mode): dict(own) for mode, own in record.constraints.items()}
    facts["mask"] = _describe_mask(record.mask)
    return {"flycoo": facts}


def list_record_arrays(model: Any) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a model's record: the cells that its mask marks, and intervals."""
    record = find_record(model)
    if record is None:
        return
    if isinstance(record.mask, list):
        parts = [_list_missing(of_slice) for of_slice in record.mask]
        slices = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
        yield "mask", np.concatenate([slices[None], np.concatenate(parts, axis=1)])
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
    if facts is None:
        return None
    if not isinstance(facts, dict):
        raise ValueError(f"its header has the record {facts!r}")
    constraints = {int(mode): own for mode, own in dict(facts.get("constraints", {})).items()}
    record = FitRecord(
        **{name: facts[name] for name in _PLAIN_FACTS if name in facts},
        constraints=constraints,
        mask=_read_mask(reader, facts.get("mask")),
        intervals=_read_intervals(reader),
    )
    return _check(record, ndim, rank)


def _describe_mask(mask: Any) -> Any:
    """Return the shape of a mask; of one for each slice, the list of theirs."""
    if mask is None:
        return None
    return [list(of.shape) for of in mask] if isinstance(mask, list) else list(mask.shape)


def _list_missing(mask: Any) -> np.ndarray:
    """Return the coordinates (ndim, count) that a mask marks as missing."""
    mask = mask if hasattr(mask, "coords") else mask.asformat("coo")
    return np.asarray(mask.coords[:, mask.data == 0], np.int64)


def _read_mask(reader: ArrayReader, shape: Any) -> Any:
    """Read a mask of a shape, or the masks of slices of several shapes."""
    if shape is None:
        return None
    if not isinstance(shape, list):
        raise ValueError(f"its header has a mask of shape {shape!r}")
    if all(isinstance(of_slice, list) for of_slice in shape):
        listed = reader.read("mask", (3, None), (_INDEX,))
        return [_check_mask(listed[1:, listed[0] == k], own) for k, own in enumerate(shape)]
    return _check_mask(reader.read("mask", (len(shape), None), (_INDEX,)), shape)


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
    pairs = zip(reader.read_list("lower", dtype), reader.read_list("upper", dtype), strict=True)
    return list(pairs)


def _read_older(header: Mapping[str, Any], ndim: int, rank: int) -> FitRecord | None:
    """Return what a file of release 0.2 or older says: a record of `observed_parafac`, or None."""
    modes = header.get("bias_modes", [])
    ridge = header.get("observed_l2_reg")
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
    record = FitRecord(
        method="observed_parafac",
        absent="weighted" if ridge is None else "unknown",
        l2_reg=0.0 if ridge is None else ridge,
        scale=header.get("observed_scale"),
        bias_modes=modes if isinstance(modes, list) else [modes],  # type: ignore[arg-type]
    )
    return _check(record, ndim, rank)


def _check(record: FitRecord, ndim: int, rank: int) -> FitRecord:
    """Refuse a record whose facts cannot be true; return it with tuples in place of lists."""
    is_text = all(type(fact) is str for fact in (record.method, record.loss, record.dtype))
    numbers = [record.unobserved, record.l2_reg]
    numbers += [1.0 if record.scale is None else record.scale]
    numbers += [strength for own in record.constraints.values() for strength in own.values()]
    are_numbers = all(type(n) is float and 0 <= n < math.inf for n in numbers)
    modes = [*_as_list(record.non_negative), *record.constraints]
    are_modes = all(type(mode) is int and 0 <= mode < ndim for mode in modes)
    biases = _as_list(record.bias_modes)
    are_biases = len(biases) in (0, rank) and all(
        type(mode) is int and -1 <= mode <= ndim for mode in biases
    )
    is_column = record.value_column is None or type(record.value_column) in (str, int)
    are_flags = all(type(flag) is bool for flag in (record.is_weighted, record.is_centred))
    is_known = record.absent in ABSENT and are_flags
    facts = {
        "texts": is_text,
        "numbers": are_numbers and record.scale != 0,
        "modes": are_modes,
        "bias_modes": are_biases,
        "value_column": is_column,
        "absent": is_known,
    }
    if wrong := [name for name, is_right in facts.items() if not is_right]:
        raise ValueError(f"its header has a record with wrong {', '.join(wrong)}: {record!r}")
    return record.replace(non_negative=tuple(record.non_negative), bias_modes=tuple(biases))


def _as_list(fact: Any) -> list[Any]:
    """Return a list of a header's; what is none as one wrong item."""
    return list(fact) if isinstance(fact, list | tuple) else [fact]
