"""Make a tensor from an array that knows its labels: of xarray, or AnnData."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..tensor.coo_cache import is_raw_sparse
from ..tensor.labelled import LabelledTensor, Labels, is_ordered
from ..tensor.tensor import FlycooTensor
from .entries import coarsen, convert_column, number_entries


def from_xarray(array: Any, **options: Any) -> LabelledTensor:
    """Make a tensor from an `xarray.DataArray`: its dimensions become modes, coordinates labels.

    Parameters
    ----------
    array : xarray.DataArray
        Of a `sparse.COO`, or dense. The rows of a dimension without coordinates are numbered.
    **options
        ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    LabelledTensor
        Its method `to_xarray` goes back.

    Raises
    ------
    TypeError
        If `array` is not a DataArray, such as a Dataset.
    ValueError
        If a coordinate occurs twice in a dimension, or `FlycooTensor` refuses the values.

    Examples
    --------
    >>> import sparse, xarray
    >>> array = xarray.DataArray(sparse.eye(2), {"shop": ["a", "b"], "day": [7, 9]})
    >>> x = from_xarray(array)
    >>> x
    <LabelledTensor: shop (2), day (2); dtype=float64, nnz=2>
    >>> x.to_xarray().equals(array)
    True
    """
    if not (hasattr(array, "dims") and hasattr(array, "data")):
        raise TypeError(f"array is a {type(array).__name__}, expected an xarray.DataArray")
    data = array.compute().data  # it may be on disk
    make = FlycooTensor.from_coo if is_raw_sparse(data) else FlycooTensor.from_dense
    labels, ordered = {}, []
    for name, size in zip(array.dims, array.shape, strict=True):
        index = array.indexes.get(name)
        of = np.arange(size) if index is None else index.to_numpy()
        labels[name] = coarsen(of) if of.dtype.kind == "M" else of
        ordered += [name] * is_ordered(index)
    return LabelledTensor(make(data, **options), Labels(labels, ordered=ordered))


def from_anndata(
    adata: Any,
    obs: str | Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
    **options: Any,
) -> LabelledTensor:
    """Make a tensor from an AnnData: cells, or groups of cells, x genes, and x layers.

    Parameters
    ----------
    adata : anndata.AnnData
    obs : str or sequence of str, optional
        Columns of ``adata.obs``, such as donor and cell type. Each becomes a mode, and cells with
        the same entries are added up. By default each cell is a row of the mode "obs".
    layers : sequence of str, optional
        Names in ``adata.layers``, the rows of a last mode "layer"; by default only ``adata.X``.
    **options
        ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    LabelledTensor
        With the modes "obs" or those columns, "var", and "layer" if there are `layers`.

    Raises
    ------
    ImportError
        If `obs` is given and pyarrow is missing.
    TypeError
        If the entries of a column are neither numbers, text nor dates.
    ValueError
        If there is no such column or layer, a cell has no entry in a column, a name occurs twice,
        or `FlycooTensor` refuses the values.

    See Also
    --------
    RaggedTensor : Cells divided into slices, for `parafac2`.

    Notes
    -----
    A matrix in host memory is read once; sparse ones stay sparse.

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

    columns = [obs] if isinstance(obs, str) else obs
    for what, names, known in (("obs", columns, adata.obs), ("layers", layers, adata.layers)):
        if missing := [name for name in names or () if name not in known]:
            raise ValueError(f"{what} has {missing}, expected some of {[*known]}")
    if columns is None:
        coded = {"obs": (np.arange(len(adata.obs_names)), np.asarray(adata.obs_names))}
    else:
        arrow = {name: convert_column(adata.obs[name], name) for name in columns}
        numbered = {name: number_entries(column, name) for name, column in arrow.items()}
        coded = {name: (codes, own.entries) for name, (codes, own) in numbered.items()}
    for name, (codes, _) in coded.items():
        if (codes < 0).any():
            cell = adata.obs_names[int(np.argmin(codes))]
            raise ValueError(f"obs[{name!r}] has no entry for {cell!r}: leave such cells out")
    matrices = [adata.X] if layers is None else [adata.layers[name] for name in layers]
    parts = [coo_array(matrix) for matrix in matrices]
    rows = np.concatenate([part.row for part in parts])
    genes = np.concatenate([part.col for part in parts])
    coords = [*(codes[rows] for codes, _ in coded.values()), genes]
    labels = {name: entries for name, (_, entries) in coded.items()}
    labels["var"] = np.asarray(adata.var_names)
    if layers is not None:
        coords.append(np.repeat(np.arange(len(parts)), [part.nnz for part in parts]))
        labels["layer"] = np.array(layers)
    values, shape = np.concatenate([part.data for part in parts]), [*map(len, labels.values())]
    ordered = [name for name in columns or () if is_ordered(adata.obs[name])]
    tensor = FlycooTensor(np.stack(coords), values, shape, **options)
    return LabelledTensor(tensor, Labels(labels, ordered=ordered))
