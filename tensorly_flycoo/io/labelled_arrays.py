"""Make a tensor from an array that knows its labels: of xarray, or AnnData."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import read_into_memory
from ..base.checks import check_choice
from ..base.watching import watched
from ..tensor.converters import is_raw_sparse
from ..tensor.labelled import LabelledTensor, Labels, is_ordered
from ..tensor.tensor import FlycooTensor
from ..tensor.unknown import Unknown, find_blocks
from .dataframe import keep_zeros
from .entries import CodedColumn, ColumnLabels, coarsen, list_ordered, number_entries
from .table_rows import open_table


@watched
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
    check_choice(missing, "missing", ("raise", "unknown"))
    data = array.compute().data  # it may be on disk
    is_sparse = is_raw_sparse(data)
    if is_sparse and not hasattr(data, "coords"):  # such as sparse.GCXS
        data = data.asformat("coo")
    stored = data.data if is_sparse else data
    is_nan = _find_nan(stored)
    # With nan as fill_value, only what is stored is known.
    has_nan_fill = bool(np.isnan(getattr(data, "fill_value", 0)))
    if (is_nan.any() or has_nan_fill) and missing == "raise":
        raise ValueError(
            "array holds nan, expected finite values: pass array.fillna(0); or, if they are unknown"
            ' and not zeros, missing="unknown"'
        )
    if is_sparse:
        known_values = stored[~is_nan]
        if has_nan_fill:
            known_values = keep_zeros(known_values)
        tensor = FlycooTensor(data.coords[:, ~is_nan], known_values, data.shape, **options)
        nan_coords = data.coords[:, is_nan]
    else:
        tensor = FlycooTensor.from_dense(np.where(is_nan, 0, data), **options)
        nan_coords = np.stack(is_nan.nonzero())
    unknown: Unknown = "all"
    if not has_nan_fill:
        unknown = find_blocks(nan_coords, tensor.shape)
    return LabelledTensor(tensor, _read_coordinates(array), unknown)


def _find_nan(values: Any) -> np.ndarray:
    """Mark the nan among values; integers have none."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    return np.zeros(values.shape, bool)


def _read_coordinates(array: Any) -> Labels:
    """Return the coordinates of the dimensions of a DataArray; numbers where there are none."""
    labels = {}
    ordered = []
    for name, size in zip(array.dims, array.shape, strict=True):
        index = array.indexes.get(name)
        coordinates = np.arange(size)
        if index is not None:
            coordinates = index.to_numpy()
        labels[name] = coarsen(coordinates)
        if is_ordered(index):
            ordered.append(name)
    return Labels(labels, ordered=ordered)


@watched
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
    # Check what is asked for.
    if not (hasattr(adata, "obs_names") and hasattr(adata, "layers")):
        raise TypeError(f"adata is a {type(adata).__name__}, expected an anndata.AnnData")
    if "layer" in options:  # else FlycooTensor would refuse it, which does not know `layers`
        raise TypeError("from_anndata has no option 'layer': pass layers=, a name or several")
    columns = _list_names("obs", obs, adata.obs)
    names = _list_names("layers", layers, adata.layers)
    has_layers = not isinstance(layers, str | None)  # else those of one matrix
    modes = [*(columns or ["obs"]), "var"]
    if has_layers:
        modes.append("layer")
    if len({*modes}) < len(modes):
        raise ValueError(f"the modes are {modes}, expected different ones: rename columns of obs")

    # Read it.
    coded = _code_cells(adata, columns)
    layer_parts = _read_layers(adata, names)

    # The labels and coordinates of each mode, in this order.
    cells = np.concatenate([part.row for part in layer_parts])
    genes = np.concatenate([part.col for part in layer_parts])
    # Cells with the same entries get the same coordinates, where the tensor adds them.
    coords = [column.codes[cells] for column in coded.values()]
    coords.append(genes)
    labels = {name: column.labels.entries for name, column in coded.items()}
    labels["var"] = np.asarray(adata.var_names)
    if has_layers:
        nnz_of_layers = [part.nnz for part in layer_parts]
        coords.append(np.repeat(np.arange(len(layer_parts)), nnz_of_layers))
        labels["layer"] = np.array(names)

    values = np.concatenate([part.data for part in layer_parts])
    shape = [entries.size for entries in labels.values()]
    tensor = FlycooTensor(np.stack(coords), values, shape, **options)
    ordered = list_ordered({name: column.labels for name, column in coded.items()})
    return LabelledTensor(tensor, Labels(labels, ordered=ordered))


def _read_layers(adata: Any, names: Sequence[str] | None) -> list[Any]:
    """Read some layers of an AnnData, as sparse matrices in memory; without names, its X."""
    from scipy.sparse import coo_array

    matrices = [adata.X]
    if names is not None:
        matrices = [adata.layers[name] for name in names]
    if matrices[0] is None:
        raise ValueError(f"adata has no X, expected one, or layers=, some of {[*adata.layers]}")
    return [coo_array(read_into_memory(matrix)) for matrix in matrices]


def _code_cells(adata: Any, columns: Sequence[str] | None) -> dict[str, CodedColumn]:
    """Number the entries of the cells of an AnnData in some columns; without, the cells."""
    if columns is None:
        cells = np.asarray(adata.obs_names)
        return {"obs": CodedColumn(np.arange(cells.size), ColumnLabels(cells))}
    table = open_table(read_into_memory(adata.obs), columns)
    coded = {name: number_entries(column, name) for name, column in table.items()}
    for name, (codes, _) in coded.items():
        if (codes < 0).any():
            cell = adata.obs_names[int(np.argmin(codes))]
            raise ValueError(f"obs[{name!r}] has no entry for {cell!r}: leave such cells out")
    return coded


def _list_names(argument: str, names: Any, table: Any) -> list[str] | None:
    """Return one name or several as a list; refuse those not in the table, repeats, and none."""
    if names is None:
        return None
    listed = [names]
    if isinstance(names, Iterable) and not isinstance(names, str):
        listed = [*names]
    missing = [name for name in listed if name not in table]
    if missing:
        raise ValueError(f"{argument} has {missing}, expected some of {[*table]}")
    if not listed or len({*listed}) < len(listed):
        raise ValueError(f"{argument} is {names!r}, expected one or more different names")
    return listed
