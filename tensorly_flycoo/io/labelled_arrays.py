"""Make a tensor from an array that knows its labels: of xarray, or AnnData."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import read_into_memory
from ..base.checks import check_choice
from ..tensor.converters import is_raw_sparse
from ..tensor.labelled import LabelledTensor, Labels, is_ordered
from ..tensor.tensor import FlycooTensor
from ..tensor.unknown import find_blocks
from .dataframe import keep_zeros, open_table
from .entries import ColumnLabels, coarsen, number_entries


def from_xarray(array: Any, *, missing: str = "raise", **options: Any) -> LabelledTensor:
    """Make a tensor from an `xarray.DataArray`: its dimensions become modes, coordinates labels.

    Parameters
    ----------
    array : xarray.DataArray
        Of a `sparse.COO`, or dense. The rows of a dimension without coordinates are numbered.
    missing : {"raise", "unknown"}
        Whether nan is an error, or an unknown cell.
    **options : those of `FlycooTensor`, such as ``dtype``, ``layout`` and ``device``

    Returns
    -------
    LabelledTensor
        Its method `to_xarray` goes back. With ``missing="unknown"`` it stores nothing in place of
        nan, and its `unknown` is their mask, of size 1 in modes in which they fill whole fibres;
        or "all" if nan is the fill_value, and a stored 0 is kept as by `from_dataframe`.

    Raises
    ------
    TypeError
        If `array` is not a DataArray, such as a Dataset.
    ValueError
        If a coordinate is missing or occurs twice in a dimension, `FlycooTensor` refuses the
        values, such as nan.

    Examples
    --------
    >>> import sparse, xarray
    >>> array = xarray.DataArray(sparse.eye(2), {"shop": ["a", "b"], "day": [7, 9]})
    >>> x = from_xarray(array)
    >>> x
    <LabelledTensor: shop (2), day (2); dtype=float64, nnz=2>
    >>> x.to_xarray().equals(array)
    True

    With an unknown value:

    >>> x = from_xarray(xarray.DataArray([[1.0, np.nan, 2.0]]), missing="unknown")
    >>> x.unknown.coords.tolist()
    [[0], [1]]
    """
    if not (hasattr(array, "dims") and hasattr(array, "data")):
        raise TypeError(f"array is a {type(array).__name__}, expected an xarray.DataArray")
    data = array.compute().data  # it may be on disk
    stored = data.data if is_raw_sparse(data) else data
    fill_value = getattr(data, "fill_value", 0)
    check_choice(missing, "missing", ("raise", "unknown"))
    is_nan = np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, bool)
    is_filled = bool(np.isnan(fill_value))  # of which only what is stored is known
    if (is_nan.any() or is_filled) and missing == "raise":
        raise ValueError(
            "array holds nan, expected finite values: pass array.fillna(0); or, if they are unknown"
            ' and not zeros, missing="unknown"'
        )
    if is_raw_sparse(data):
        data = data if hasattr(data, "coords") else data.asformat("coo")
        values = keep_zeros(data.data[~is_nan]) if is_filled else data.data[~is_nan]
        tensor = FlycooTensor(data.coords[:, ~is_nan], values, data.shape, **options)
        coords = data.coords[:, is_nan]
    else:
        tensor = FlycooTensor.from_dense(np.where(is_nan, 0, data), **options)
        coords = np.stack(is_nan.nonzero())
    unknown = "all" if is_filled else find_blocks(coords, tensor.shape)
    labels = {}
    ordered = []
    for name, size in zip(array.dims, array.shape, strict=True):
        index = array.indexes.get(name)
        labels[name] = coarsen(np.arange(size) if index is None else index.to_numpy())
        ordered += [name] * is_ordered(index)
    return LabelledTensor(tensor, Labels(labels, ordered=ordered), unknown)


def from_anndata(
    adata: Any,
    obs: str | Sequence[str] | None = None,
    layers: str | Sequence[str] | None = None,
    **options: Any,
) -> LabelledTensor:
    """Make a tensor from an AnnData: cells, or groups of cells, x genes, and x layers.

    Parameters
    ----------
    adata : anndata.AnnData
        In memory, backed by a file, or lazy.
    obs : str or sequence of str, optional
        Columns of ``adata.obs``, such as donor and cell type. Each becomes a mode, and cells with
        the same entries are added up. By default each cell is a row of the mode "obs".
    layers : str or sequence of str, optional
        A name in ``adata.layers``, to take in place of ``adata.X``; or several, the rows of a last
        mode "layer".
    **options : those of `FlycooTensor`, such as ``dtype``, ``layout`` and ``device``

    Returns
    -------
    LabelledTensor
        With the modes "obs" or those columns, "var", and "layer" if `layers` are a sequence.

    Raises
    ------
    ImportError
        If `obs` is given and pyarrow is missing.
    TypeError
        If `adata` is no AnnData, or the entries of a column are neither numbers, text nor dates.
    ValueError
        If there is no such column or layer, or none at all, a cell has no entry in a column, a name
        occurs twice, a column has the name of a mode, or `FlycooTensor` refuses the values.

    See Also
    --------
    RaggedTensor : Cells divided into slices, for `parafac2`.

    Notes
    -----
    A matrix is read once, into host memory; sparse ones stay sparse.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> import pandas as pd, scipy.sparse
    >>> cells = pd.DataFrame({"donor": ["ann", "bob", "ann"], "type": ["B", "T", "B"]})
    >>> adata = SimpleNamespace(  # has what is read of an AnnData
    ...     X=scipy.sparse.eye_array(3), layers={},
    ...     obs=cells, obs_names=cells.index, var_names=list("xyz"),
    ... )
    >>> from_anndata(adata, ["donor", "type"])
    <LabelledTensor: donor (2), type (2), var (3); dtype=float64, nnz=3>
    """
    from scipy.sparse import coo_array

    if not (hasattr(adata, "obs_names") and hasattr(adata, "layers")):
        raise TypeError(f"adata is a {type(adata).__name__}, expected an anndata.AnnData")
    if "layer" in options:
        raise TypeError("from_anndata has no option 'layer': pass layers=, a name or several")
    columns = _list_names("obs", obs, adata.obs)
    names = _list_names("layers", layers, adata.layers)
    modes = [*(columns or ["obs"]), "var", *["layer"][: not isinstance(layers, str | None)]]
    if len({*modes}) < len(modes):
        raise ValueError(f"the modes are {modes}, expected different ones: rename columns of obs")
    if columns is None:
        cells = np.asarray(adata.obs_names)
        coded = {"obs": (np.arange(cells.size), ColumnLabels(cells))}
    else:
        table = open_table(read_into_memory(adata.obs), columns)
        coded = {name: number_entries(column, name) for name, column in table.items()}
    for name, (codes, _) in coded.items():
        if (codes < 0).any():
            cell = adata.obs_names[int(np.argmin(codes))]
            raise ValueError(f"obs[{name!r}] has no entry for {cell!r}: leave such cells out")
    matrices = [adata.X] if names is None else [adata.layers[name] for name in names]
    if matrices[0] is None:
        raise ValueError(f"adata has no X, expected one, or layers=, some of {[*adata.layers]}")
    parts = [coo_array(read_into_memory(matrix)) for matrix in matrices]
    rows = np.concatenate([part.row for part in parts])
    genes = np.concatenate([part.col for part in parts])
    coords = [*(codes[rows] for codes, _ in coded.values()), genes]
    labels = {name: own.entries for name, (_, own) in coded.items()}
    ordered = [name for name, (_, own) in coded.items() if own.categories is not None]
    labels["var"] = np.asarray(adata.var_names)
    if "layer" in modes:
        coords.append(np.repeat(np.arange(len(parts)), [part.nnz for part in parts]))
        labels["layer"] = np.array(names)
    values = np.concatenate([part.data for part in parts])
    shape = [*map(len, labels.values())]
    tensor = FlycooTensor(np.stack(coords), values, shape, **options)
    return LabelledTensor(tensor, Labels(labels, ordered=ordered))


def _list_names(what: str, given: Any, known: Any) -> list[str] | None:
    """Return one name or several as a list; refuse unknown ones, repeated ones, and none."""
    if given is None:
        return None
    names = [*given] if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"{what} has {missing}, expected some of {[*known]}")
    if not names or len({*names}) < len(names):
        raise ValueError(f"{what} is {given!r}, expected one or more different names")
    return names
