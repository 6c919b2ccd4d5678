"""Make a FlycooTensor from what other libraries have."""

import numpy as np

from ..array_modules import array_module, as_array
from ..checks import check_fill_value, check_shape


class FromOthers:
    """Give `FlycooTensor` its constructors from other libraries' arrays."""

    @classmethod
    def from_coo(cls, coo, **options):
        """Make one from a `sparse.COO` (or GCXS, DOK) array with fill_value 0.

        Parameters
        ----------
        coo : sparse.SparseArray
        **options
            ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

        Raises
        ------
        TypeError
            If `coo` is something else.
        ValueError
            If fill_value is not 0, or the nonzeros are not valid for `FlycooTensor`.

        Examples
        --------
        >>> import sparse
        >>> from tensorly_flycoo import FlycooTensor
        >>> FlycooTensor.from_coo(sparse.eye(3))
        <FlycooTensor: shape=(3, 3), dtype=float64, nnz=3, layout='remap', device='cpu'>
        """
        if not hasattr(coo, "coords") and hasattr(coo, "asformat"):
            coo = coo.asformat("coo")
        if not (hasattr(coo, "coords") and hasattr(coo, "data") and hasattr(coo, "fill_value")):
            raise TypeError(f"coo is a {type(coo).__name__}, expected a sparse.COO")
        check_fill_value(coo.fill_value)
        return cls(coo.coords, coo.data, coo.shape, **options)

    @classmethod
    def from_scipy(cls, matrix, **options):
        """Make one with two modes from a SciPy sparse matrix or array, or from CuPy's on a GPU.

        Parameters
        ----------
        matrix : scipy.sparse.spmatrix or sparray, or cupyx.scipy.sparse.spmatrix
        **options
            ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

        Raises
        ------
        TypeError
            If `matrix` is something else.

        Examples
        --------
        >>> import scipy.sparse
        >>> from tensorly_flycoo import FlycooTensor
        >>> FlycooTensor.from_scipy(scipy.sparse.eye_array(3)).nnz
        3
        """
        if not hasattr(matrix, "tocoo"):
            raise TypeError(f"matrix is a {type(matrix).__name__}, expected a SciPy sparse matrix")
        coo = matrix.tocoo()
        coords = coo.coords if hasattr(coo, "coords") else (coo.row, coo.col)
        return cls(np.stack(coords), coo.data, coo.shape, **options)

    @classmethod
    def from_torch(cls, tensor, **options):
        """Make one from a sparse PyTorch tensor: COO, or with two modes CSR, CSC and the like.

        Parameters
        ----------
        tensor : torch.Tensor
            Of a sparse layout, on a CPU or a GPU; a gradient is not kept track of.
        **options
            ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

        Raises
        ------
        TypeError
            If `tensor` is something else, or dense; `from_dense` takes those.
        ValueError
            If it has dense modes beside its sparse ones.

        Examples
        --------
        >>> import torch  # doctest: +SKIP
        >>> from tensorly_flycoo import FlycooTensor
        >>> FlycooTensor.from_torch(torch.eye(3).to_sparse())  # doctest: +SKIP
        <FlycooTensor: shape=(3, 3), dtype=float32, nnz=3, layout='remap', device='cpu'>
        """
        layout = str(getattr(tensor, "layout", ""))
        if not layout.startswith("torch.sparse"):
            described = f"{type(tensor).__name__} {layout}".strip()
            raise TypeError(f"tensor is a {described}, expected a sparse torch.Tensor")
        coo = tensor.detach().to_sparse_coo().coalesce()
        if coo.dense_dim():
            raise ValueError(f"tensor has {coo.dense_dim()} dense modes, expected none")
        return cls(coo.indices(), coo.values(), coo.shape, **options)

    @classmethod
    def from_dense(cls, array, **options):
        """Make one of the nonzeros of a dense array, which must fit into memory as it is.

        Parameters
        ----------
        array : array_like
            NumPy's, CuPy's, or one of another library that exports DLPack.
        **options
            ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

        Raises
        ------
        TypeError
            If the values are complex, objects or of another unsupported type.
        ValueError
            If `array` has no mode or one of size 0, or a value is not finite.

        Examples
        --------
        >>> import numpy as np
        >>> from tensorly_flycoo import FlycooTensor
        >>> FlycooTensor.from_dense(np.eye(3))
        <FlycooTensor: shape=(3, 3), dtype=float64, nnz=3, layout='remap', device='cpu'>
        """
        array = as_array(array)
        check_shape(array.shape)
        places = array_module(array).nonzero(array)
        return cls(array_module(array).stack(places), array[places], array.shape, **options)
