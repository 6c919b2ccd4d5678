"""Labels of modes in files: plain arrays, and text as UTF-8."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..tensor.labelled import Labels
from .array_file import ArrayReader, Header

#: Kinds of labels that are stored as they are: bools, integers, floats, time spans and dates.
_PLAIN_KINDS = "biufmM"


def name_modes(labels: Labels) -> Header:
    """Return what a header says of labels; refuse names that are not text."""
    for name in labels:
        if not isinstance(name, str):
            raise TypeError(
                f"the name of a mode is {name!r}, expected text: LabelledCP(cp, "
                "list(cp.labels.values()), names) renames the modes"
            )
    return {"names": list(labels), "ordered": list(labels.ordered)}


def list_labels(labels: Labels) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays that hold labels in a file; refuse those that are no text or numbers."""
    for n, (name, of) in enumerate(labels.items()):
        if of.dtype.kind in _PLAIN_KINDS:
            yield f"labels_{n}", of
            continue
        others = [type(label).__name__ for label in of.tolist() if not isinstance(label, str)]
        if others:
            raise TypeError(
                f"labels[{name!r}] holds a {others[0]}, expected text, numbers or dates of NumPy,"
                " which a file can hold: convert them by .astype(str) or .astype('datetime64[D]')"
            )
        encoded = [label.encode("utf-8", "surrogatepass") for label in of.tolist()]
        yield f"text_{n}", np.frombuffer(b"".join(encoded), np.uint8)
        yield f"text_ends_{n}", np.cumsum([len(text) for text in encoded], dtype=np.int64)


def read_labels(reader: ArrayReader) -> Labels:
    """Read the labels of the modes that the header names, text as str objects; check no size."""
    names, ordered = reader.header["names"], reader.header["ordered"]
    if not (_are_names(names) and names and _are_names(ordered) and {*ordered} <= {*names}):
        raise ValueError("its header does not name the modes")
    found, stored = [], reader.names()
    for n in range(len(names)):
        is_text = f"labels_{n}" not in stored
        found.append(_read_text(reader, n) if is_text else reader.read(f"labels_{n}", (None,)))
        if found[-1].dtype.kind not in _PLAIN_KINDS + "O":
            raise ValueError(f"labels_{n} has dtype {found[-1].dtype}")
    return Labels(found, names, ordered)


def _are_names(names: Any) -> bool:
    is_text = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return is_text and len(set(names)) == len(names)


def _read_text(reader: ArrayReader, n: int) -> np.ndarray:
    encoded = reader.read(f"text_{n}", (None,), (np.dtype(np.uint8),))
    ends = reader.read(f"text_ends_{n}", (None,), (np.dtype(np.int64),))
    bounds = np.append(0, ends)
    if (np.diff(bounds) < 0).any() or bounds[-1] != encoded.size:
        raise ValueError(f"text_ends_{n} does not match text_{n}")
    text, labels = encoded.tobytes(), np.empty(ends.size, object)
    labels[:] = [
        text[start:end].decode("utf-8", "surrogatepass")
        for start, end in itertools.pairwise(bounds.tolist())
    ]
    return labels
