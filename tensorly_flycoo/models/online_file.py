"""Files of `OnlineCP`: arrays and parameters in a .npz without pickles."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..array_modules import Array, move
from ..io.files import FilePath, replace_file
from ..io.npz import open_arrays, write_arrays

_FORMAT = "tensorly-flycoo online CP model"

#: Goes up when a release cannot read files of the previous one.
_VERSION = 1

_KEYS = ("rank", "mode", "loss", "forget", "n_iter_max", "tol", "keep")


class SavedStream(NamedTuple):
    """What a file holds.

    Attributes
    ----------
    params : dict
        The parameters of the estimator but `init` and `random_state`.
    num_slices : int
    factors, state : list of array
        As in `LeastSquaresStream`.
    rows, last_rows : array (n, R)
        Of the streaming mode: those kept, and those of the last call.
    """

    params: dict[str, Any]
    num_slices: int
    factors: Sequence[Array]
    state: Sequence[Array]
    rows: Array
    last_rows: Array


def write_stream(path: FilePath, saved: SavedStream) -> None:
    """Write a stream to a file, in one atomic step."""
    params = {name: getattr(value, "item", lambda value=value: value)()
              for name, value in saved.params.items()}  # fmt: skip
    counts = {"factors": len(saved.factors), "slices": saved.num_slices}
    header = {"format": _FORMAT, "version": _VERSION, "params": params, **counts}
    arrays = {"rows": saved.rows, "last_rows": saved.last_rows}
    arrays |= {f"factor_{n}": factor for n, factor in enumerate(saved.factors)}
    arrays |= {f"state_{n}": array for n, array in enumerate(saved.state)}
    named = [("header", np.array(json.dumps(header)))]
    with replace_file(path) as file:
        write_arrays(file, named + [(name, move(array, np)) for name, array in arrays.items()])


def read_stream(
    path: FilePath, list_shapes: Mapping[str, Callable[[list[int], int], list[tuple[int, int]]]]
) -> SavedStream:
    """Read what `write_stream` wrote.

    Parameters
    ----------
    path : str or os.PathLike
    list_shapes : mapping of str to callable
        For each loss, lists the shapes of `state` from those of the factors.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the file is damaged, not a stream, or of a later version of this package.
    """
    with open_arrays(path, _damage_error) as reader:
        keys = ("params", "factors", "slices")
        header = reader.read_header(_FORMAT, _VERSION, "an OnlineCP", keys)
        params, counts = header["params"], (header["factors"], header["slices"])
        if not isinstance(params, dict) or set(params) != set(_KEYS):
            raise _damage_error(path, "its header does not have the parameters")
        if not all(type(count) is int and count >= 0 for count in counts) or not counts[0]:
            raise _damage_error(path, "its header does not count factors and slices")
        factors = [reader.read(f"factor_{n}") for n in range(counts[0])]
        if params["loss"] not in list_shapes or any(factor.ndim != 2 for factor in factors):
            raise _damage_error(path, "its loss is unknown, or a factor is no matrix")
        shapes = list_shapes[params["loss"]]([len(f) for f in factors], factors[0].shape[1])
        state = [reader.read(f"state_{n}") for n in range(len(shapes))]
        rows = [reader.read("rows"), reader.read("last_rows")]
    saved = SavedStream(params, counts[1], factors, state, *rows)
    _check(path, saved, shapes)
    return saved


def _check(path: FilePath, saved: SavedStream, shapes: list[tuple[int, int]]) -> None:
    """Refuse arrays whose shapes or dtypes do not match."""
    rank, dtype = saved.params["rank"], saved.factors[0].dtype
    matrices = [*saved.factors, saved.rows, saved.last_rows]
    is_alike = all(array.dtype == dtype for array in (*matrices, *saved.state))
    if dtype not in (np.float32, np.float64) or not is_alike:
        raise _damage_error(path, "its arrays differ in dtype, or are not of floats")
    is_fitting = all(array.ndim == 2 and array.shape[1] == rank for array in matrices)
    if not is_fitting or [array.shape for array in saved.state] != shapes:
        raise _damage_error(path, f"the shapes of its arrays do not match rank {rank}")


def _damage_error(path: FilePath, reason: object) -> ValueError:
    return ValueError(f"{path} is damaged, or not a saved OnlineCP: {reason}")
