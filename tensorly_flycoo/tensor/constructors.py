"""Constructors of `FlycooTensor` from other libraries' arrays."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ..array_modules import Array, array_module, as_array
from ..checks import check_fill_value, check_shape


class FromOthers:
    """The part of `FlycooTensor` that converts other libraries' arrays."""

    @abstractmethod
    def __init__(
        self, coords: Array, values: Array, shape: Sequence[int], **options: Any
    ) -> None: ...

    @classmethod
    def from_coo(cls, coo: Any, **options: Any) -> Self:
        """Make a tensor from a `sparse.COO` (or GCXS, DOK) array with fill_value 0.

        Parameters
        ----------
        coo : sparse.SparseArray
        **options
            ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

        Raises
        ------
        TypeError
            If `coo` is not such an array.
        ValueError
            If fill_value is not 0, or `FlycooTensor` refuses the nonzeros.

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
    def from_scipy(cls, matrix: Any, **options: Any) -> Self:
        """Make a two-mode tensor from a SciPy sparse matrix or array, or a CuPy sparse matrix.

        Parameters
        ----------
        matrix : scipy.sparse.spmatrix or sparray, or cupyx.scipy.sparse.spmatrix
        **options
            ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

        Raises
        ------
        TypeError
            If `matrix` is not a sparse matrix.

        Examples
        --------
        >>> import scipy.sparse
        >>> from tensorly_flycoo import FlycooTensor
        >>> FlycooTensor.from_scipy(scipy.sparse.eye_array(3)).nnz
        3
        """
        if not hasattr(matrix, "tocoo"):
            raise TypeError(
                f"matrix is a {type(matrix).__name__}, expected a SciPy sparse matrix; "
                "sparse.stack([sparse.COO(a), sparse.COO(b), ...]) makes a tensor of several"
            )
        coo = matrix.tocoo()
        coords = coo.coords if hasattr(coo, "coords") else (coo.row, coo.col)
        return cls(np.stack(coords), coo.data, coo.shape, **options)

    @classmethod
    def from_torch(cls, tensor: Any, **options: Any) -> Self:
        """Make a tensor from a sparse PyTorch tensor: COO, or a matrix in CSR, CSC and so on.

        Parameters
        ----------
        tensor : torch.Tensor
            With a sparse layout, on a CPU or a GPU; autograd does not track the result.
        **options
            ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

        Raises
        ------
        TypeError
            If `tensor` is not sparse; `from_dense` takes dense ones.
        ValueError
            If some of its modes are dense.

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
    def from_jax(cls, array: Any, **options: Any) -> Self:
        """Make a tensor from a sparse JAX array: BCOO, or a matrix in BCSR.

        Parameters
        ----------
        array : jax.experimental.sparse.BCOO or BCSR
            On a CPU or a GPU, without batch modes and dense modes.
        **options
            ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

        Raises
        ------
        TypeError
            If `array` is not such an array; `from_dense` takes dense ones.
        ValueError
            If some of its modes are batch modes or dense.

        Notes
        -----
        Entries outside of the shape are JAX's padding, and are left out.

        Examples
        --------
        >>> import jax  # doctest: +SKIP
        >>> from tensorly_flycoo import FlycooTensor
        >>> eye = jax.experimental.sparse.eye(3)  # doctest: +SKIP
        >>> FlycooTensor.from_jax(eye)  # doctest: +SKIP
        <FlycooTensor: shape=(3, 3), dtype=float32, nnz=3, layout='remap', device='cpu'>
        """
        if not hasattr(array, "n_batch"):
            raise TypeError(f"array is a {type(array).__name__}, expected a sparse JAX array")
        if array.n_batch or array.n_dense:
            raise ValueError(
                f"array has {array.n_batch} batch modes and {array.n_dense} dense modes, "
                "expected none"
            )
        bcoo = array.to_bcoo() if hasattr(array, "to_bcoo") else array
        coords, values = as_array(bcoo.indices).T, as_array(bcoo.data)
        sizes = array_module(coords).asarray(bcoo.shape)
        is_stored = (coords < sizes[:, None]).all(axis=0)
        return cls(coords[:, is_stored], values[is_stored], bcoo.shape, **options)

    @classmethod
    def from_dense(cls, array: Array, **options: Any) -> Self:
        """Make a tensor from the nonzeros of a dense array.

        Parameters
        ----------
        array : array_like
            From NumPy, CuPy, or another library that exports DLPack.
        **options
            ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

        Raises
        ------
        TypeError
            If `array` is a sparse one of SciPy or JAX, or its values are complex or of another
            unsupported type.
        ValueError
            If `array` has no modes or one of size 0, or a value is not finite.

        Examples
        --------
        >>> import numpy as np
        >>> from tensorly_flycoo import FlycooTensor
        >>> FlycooTensor.from_dense(np.eye(3))
        <FlycooTensor: shape=(3, 3), dtype=float64, nnz=3, layout='remap', device='cpu'>
        """
        if hasattr(array, "tocoo"):
            name = type(array).__name__
            raise TypeError(f"array is a {name}, expected a dense array: call from_scipy instead")
        if hasattr(array, "n_batch"):
            name = type(array).__name__
            raise TypeError(f"array is a {name}, expected a dense array: call from_jax instead")
        array = as_array(array)
        check_shape(array.shape)
        xp = array_module(array)
        places = xp.nonzero(array)
        return cls(xp.stack(places), array[places], array.shape, **options)
