"""Others' products of a sparse matrix and a dense one, beside ours, where all compute the same.

With modes 0 and 1 as a group, a tensor of three modes is a matrix X of pairs by indices of mode 2.
A sweep of its MTTKRPs makes two passes over the nonzeros: X C, and X^T K, where row p of K is the
product of the rows A[i] and B[j] of pair p = (i, j).
"""

import functools
import importlib.util

import cupy
import numpy as np
from cupyx.scipy import sparse
from experiments import make_grouped_steps, make_sweep
from report import RANK, describe_groups
from tensors import build, draw_factors, free_memory
from timing import time_steps

from .experiments import compare


def measure_products(problem, repeats):
    """Time X C and X^T K by ours, by cuSPARSE, and by a kernel that nvmath-python generates.

    cuSPARSE's row-major products go through PyTorch. What is not installed is left out.

    Returns
    -------
    dict
        "products": for each way the seconds of both, and the largest relative difference from ours;
        "sweep_s" of ours on the tensor itself: these passes, and the rest of its MTTKRPs.
    """
    coords, values = problem.draw(np.float32)
    row = {"tensor": problem.name, "scale": problem.scale, "nnz": values.size}
    row |= _time_sweep(coords, values, problem.shape, repeats)
    size = problem.shape[1]
    cells = coords[0].astype(np.int64) * size + coords[1]
    pairs, numbers = cupy.unique(cells, return_inverse=True)
    del cells
    factors = draw_factors(problem.shape, RANK, np.float32)
    dense = [factors[0][pairs // size] * factors[1][pairs % size], factors[2]]  # K, C
    row["num_pairs"], shape = pairs.size, (pairs.size, problem.shape[2])
    matrix_coords = cupy.stack([numbers.astype(np.int32), coords[2]])
    x, _ = build(matrix_coords, values, shape, "replicated")
    _, ours, steps = make_sweep(x, RANK, dense)
    row["products"] = [_note("ours", time_steps(steps, repeats), ours, ours)]
    del x, steps
    free_memory()
    matrix = sparse.csr_matrix((values, (matrix_coords[0], matrix_coords[1])), shape)
    matrices = [matrix, matrix.T.tocsr()]
    del matrix_coords, numbers, pairs, coords
    free_memory()
    ways = {"CuPy, column-major": _multiply_by_cupy, **_list_torch(), **_list_nvmath()}
    for name, multiply in ways.items():
        products = multiply(matrices, dense[::-1])
        outs = [product() for product in products]
        row["products"].append(_note(name, time_steps(products, repeats), outs, ours))
    return row


def _note(name, seconds, outs, ours):
    difference = max(compare(*pair) for pair in zip(outs, ours, strict=True))
    return {"name": name, "seconds": seconds.tolist(), "difference": difference}


def _time_sweep(coords, values, shape, repeats):
    x, _ = build(coords, values, shape, None, "auto")
    free_memory()
    outs = [cupy.empty((size, RANK), np.float32) for size in shape]
    steps = make_grouped_steps(x, draw_factors(shape, RANK, np.float32), outs)
    seconds = float(time_steps(steps, repeats).sum())
    return {"groups": describe_groups(x.groups), "sweep_s": seconds}


def _multiply_by_cupy(matrices, dense):
    columns = [cupy.asfortranarray(array) for array in dense]
    pairs = zip(matrices, columns, strict=True)
    return [functools.partial(matrix.dot, array) for matrix, array in pairs]


def _list_torch():
    """Return the way through PyTorch, if it is there."""
    if importlib.util.find_spec("torch") is None:
        print("cuSPARSE's row-major products need PyTorch, which is not installed", flush=True)
        return {}
    return {"PyTorch, row-major": _multiply_by_torch}


def _multiply_by_torch(matrices, dense):
    import torch

    products = []
    for matrix, array in zip(matrices, dense, strict=True):
        parts = map(torch.from_dlpack, (matrix.indptr, matrix.indices, matrix.data))
        rows = torch.sparse_csr_tensor(*parts, size=matrix.shape)
        out = torch.empty(matrix.shape[0], RANK, device="cuda")
        columns = torch.from_dlpack(array)
        products.append(functools.partial(_multiply_into, torch, out, rows, columns))
    return products


def _multiply_into(torch, out, matrix, array):
    torch.addmm(out, matrix, array, beta=0, out=out)
    return cupy.from_dlpack(out)


def _list_nvmath():
    """Return the way through the Universal Sparse Tensor of nvmath-python, if that is there."""
    if importlib.util.find_spec("nvmath") is None:
        print("the kernel for CSR needs nvmath-python, which is not installed", flush=True)
        return {}
    return {"nvmath-python, its own kernel": _multiply_by_nvmath}


def _multiply_by_nvmath(matrices, dense):
    from nvmath.sparse import Matmul, MatmulOptions
    from nvmath.sparse.ust import Tensor

    options = MatmulOptions(codegen=True)  # else it calls cuSPARSE
    products = []
    for matrix, array in zip(matrices, dense, strict=True):
        out = cupy.empty((matrix.shape[0], RANK), np.float32)
        product = Matmul(*map(Tensor.from_package, (matrix, array, out)), options=options)
        product.plan()
        products.append(functools.partial(_add_to_zeros, product, out))
    return products


def _add_to_zeros(product, out):
    """Compute a product by a kernel that can only add it to what is there."""
    out.fill(0)
    product.execute()
    return out
