"""Files of labelled CP models, and labels in files: arrays and text in a .npz without pickles."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..array_modules import Array, move
from .files import FilePath, replace_file
from .npz import ArrayReader, open_arrays, write_arrays

_FORMAT = "tensorly-flycoo CP model"

#: Goes up when a release cannot read files of the previous one.
_VERSION = 1

#: Kinds of labels that are stored as they are: bools, integers, floats, time spans and dates.
_PLAIN_KINDS = "biufmM"


class SavedCP(NamedTuple):
    """What a file holds: a CP model with labels.

    Attributes
    ----------
    weights : array (R,)
    factors : list of array (I_n, R)
    labels : dict of str to array (I_n,)
    ordered : tuple of str
        The modes whose labels have an order, such as dates.
    observed_l2_reg : float or None
        The ridge of `observed_parafac`, if it made the model.
    """

    weights: Array
    factors: Sequence[Array]
    labels: Mapping[str, np.ndarray]
    ordered: Sequence[str]
    observed_l2_reg: float | None = None


def write_cp(path: FilePath, saved: SavedCP) -> None:
    """Write a labelled model to a file, in one atomic step.

    Raises
    ------
    TypeError
        If a name is not text, or a label is neither text, a number nor a date of NumPy.
    OSError
        If the file cannot be written; the old file at `path` is kept.
    """
    arrays = list(_list_arrays(saved))  # refuses labels before the file is opened
    with replace_file(path) as file:
        write_arrays(file, arrays)


def _list_arrays(saved: SavedCP) -> Iterator[tuple[str, np.ndarray]]:
    header = {"format": _FORMAT, "version": _VERSION, **name_modes(saved.labels, saved.ordered)}
    if saved.observed_l2_reg is not None:
        header["observed_l2_reg"] = saved.observed_l2_reg
    yield "header", np.array(json.dumps(header))
    yield "weights", move(saved.weights, np)
    for n, factor in enumerate(saved.factors):
        yield f"factor_{n}", move(factor, np)
    yield from list_labels(saved.labels)


def name_modes(
    all_labels: Mapping[str, np.ndarray], ordered: Sequence[str]
) -> dict[str, list[str]]:
    """Return what a header says of labels; refuse names that are not text."""
    for name in all_labels:
        if not isinstance(name, str):
            raise TypeError(
                f"the name of a mode is {name!r}, expected text: LabelledCP(cp, "
                "list(cp.labels.values()), names) renames the modes"
            )
    return {"names": list(all_labels), "ordered": list(ordered)}


def list_labels(all_labels: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays that hold labels in a file; refuse labels that are no text or numbers."""
    for n, (name, labels) in enumerate(all_labels.items()):
        if labels.dtype.kind in _PLAIN_KINDS:
            yield f"labels_{n}", labels
            continue
        encoded = [_encode(name, label) for label in labels.tolist()]
        yield f"text_{n}", np.frombuffer(b"".join(encoded), np.uint8)
        yield f"text_ends_{n}", np.cumsum([len(text) for text in encoded], dtype=np.int64)


def _encode(name: str, label: Any) -> bytes:
    if not isinstance(label, str):
        raise TypeError(
            f"labels[{name!r}] holds a {type(label).__name__}, expected text, numbers or dates of "
            "NumPy, which a file can hold: convert them by .astype(str) or .astype('datetime64[D]')"
        )
    return label.encode("utf-8", "surrogatepass")


def read_cp(path: FilePath) -> SavedCP:
    """Read what `write_cp` wrote; text becomes an array of str objects.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the file is damaged, not a labelled model, or of a later version of this package.
    """
    with open_arrays(path, _damage_error) as reader:
        keys = ("names", "ordered")
        header = reader.read_header(_FORMAT, _VERSION, "a labelled CP model", keys)
        labels = read_labels(reader, header)
        factors = [reader.read(f"factor_{n}") for n in range(len(labels))]
        ordered, ridge = tuple(header["ordered"]), header.get("observed_l2_reg")
        if not isinstance(ridge, float | None):
            raise reader.make_error("its header has a wrong observed_l2_reg")
        saved = SavedCP(reader.read("weights"), factors, labels, ordered, ridge)
    _check(path, saved)
    return saved


def read_labels(reader: ArrayReader, header: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read the labels of the modes that a header names; their sizes are not checked."""
    names, ordered = header["names"], header.get("ordered", 0)
    if not (_are_names(names) and names and _are_names(ordered) and {*ordered} <= {*names}):
        raise reader.make_error("its header does not name the modes")
    stored = reader.names()
    all_labels = {
        name: reader.read(f"labels_{n}") if f"labels_{n}" in stored else _read_text(reader, n)
        for n, name in enumerate(names)
    }
    for n, labels in enumerate(all_labels.values()):
        if labels.ndim != 1 or labels.dtype.kind not in _PLAIN_KINDS + "O":
            raise reader.make_error(f"labels_{n} has dtype {labels.dtype}")
    return all_labels


def _are_names(names: Any) -> bool:
    is_text = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return is_text and len(set(names)) == len(names)


def _read_text(reader: ArrayReader, n: int) -> np.ndarray:
    encoded, ends = reader.read(f"text_{n}"), reader.read(f"text_ends_{n}")
    is_vector = encoded.ndim == ends.ndim == 1
    bounds = np.append(0, ends)
    if not is_vector or (encoded.dtype, ends.dtype) != (np.uint8, np.int64):
        raise reader.make_error(f"text_{n} or text_ends_{n} is not text")
    if (np.diff(bounds) < 0).any() or bounds[-1] != encoded.size:
        raise reader.make_error(f"text_ends_{n} does not match text_{n}")
    text, labels = encoded.tobytes(), np.empty(ends.size, object)
    try:
        labels[:] = [
            text[start:end].decode("utf-8", "surrogatepass")
            for start, end in itertools.pairwise(bounds.tolist())
        ]
    except UnicodeDecodeError as error:
        raise reader.make_error(f"text_{n}: {error}") from None
    return labels


def _check(path: FilePath, saved: SavedCP) -> None:
    """Refuse arrays whose shapes or dtypes do not match."""
    arrays = {"weights": saved.weights, **{f"factor_{n}": f for n, f in enumerate(saved.factors)}}
    rank, dtype = saved.weights.size, saved.weights.dtype
    expected = [(rank,), *((labels.size, rank) for labels in saved.labels.values())]
    for (name, array), shape in zip(arrays.items(), expected, strict=True):
        if array.shape != shape or array.dtype != dtype or dtype not in (np.float32, np.float64):
            raise _damage_error(path, f"{name} has shape {array.shape} and dtype {array.dtype}")


def _damage_error(path: FilePath, reason: object) -> ValueError:
    return ValueError(f"{path} is damaged, or not a saved LabelledCP: {reason}")
