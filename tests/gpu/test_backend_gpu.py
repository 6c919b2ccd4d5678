"""TensorLy's functions on CuPy arrays: NumPy's results up to rounding; arrays stay on the GPU."""

import itertools

import cupy
import numpy as np
import pytest
import sparse
import tensorly as tl
from error_bounds import bound_mttkrp

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, cp_to_entries
from tensorly_flycoo.backend import arrays  # noqa: F401 (registers the backend)
from tensorly_flycoo.base.host_threads import MAX_THREADS
from tensorly_flycoo.engines import tall as linear_algebra
from tensorly_flycoo.engines.cuda import engine as cuda
from tensorly_flycoo.engines.cuda import tall, tuning
from tensorly_flycoo.svd import eigen
from tensorly_flycoo.svd.gram import UnfoldingGram

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((6, 4))
SQUARE = MATRIX.T @ MATRIX
ARRAY = RNG.standard_normal((4, 5, 3))
RANK = 5


def to_gpu(x):
    """Move the arrays in an argument to the GPU."""
    if isinstance(x, list):
        return [to_gpu(part) for part in x]
    return cupy.asarray(x) if isinstance(x, np.ndarray) else x


def assert_same(found, expected):
    """Compare a CuPy array with NumPy's, within the rounding of a sum of its size."""
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found.get(), expected)
    else:
        bound = 100 * np.finfo(expected.dtype).eps * max(1, np.abs(expected).max(initial=0))
        assert np.abs(found.get() - expected).max(initial=0) <= bound


# Functions of dense arrays

CALLS = [
    ("norm", ARRAY),
    ("norm", ARRAY, 1),
    ("norm", ARRAY, 2, 1),
    ("norm", MATRIX, 2, 0),
    ("norm", ARRAY, "inf"),
    ("solve", SQUARE, MATRIX.T),
    ("solve", SQUARE, MATRIX[0]),
    ("solve", SQUARE, np.tile(MATRIX.T, (1, 9))),
    ("conj", MATRIX),
    ("transpose", ARRAY),
    ("transpose", ARRAY, (1, 2, 0)),
    ("moveaxis", ARRAY, 0, 2),
    ("reshape", ARRAY, (4, -1)),
    ("copy", ARRAY),
    ("zeros_like", ARRAY),
    ("dot", MATRIX, SQUARE),
    ("dot", MATRIX.T, MATRIX),
    ("dot", MATRIX[0], MATRIX[1]),
    ("matmul", MATRIX, SQUARE),
    ("sum", ARRAY),
    ("sum", ARRAY, 0),
    ("sum", MATRIX, 0),
    ("sum", MATRIX, -1),
    ("mean", ARRAY),
    ("prod", MATRIX, 0),
    ("abs", ARRAY),
    ("sqrt", np.abs(ARRAY)),
    ("sign", ARRAY),
    ("max", ARRAY),
    ("min", ARRAY),
    ("argmax", MATRIX, 0),
    ("maximum", MATRIX, 0.0),
    ("concatenate", [MATRIX, MATRIX]),
    ("stack", [MATRIX, MATRIX]),
    ("where", MATRIX > 0, MATRIX, -MATRIX),
    ("einsum", "ij,ik->jk", MATRIX, MATRIX),
    ("tensordot", ARRAY, ARRAY, 3),
    ("kron", MATRIX, SQUARE),
    ("clip", MATRIX, 0.0),
    ("clip", MATRIX, None, 0.0),
    ("diag", MATRIX[0]),
    ("diag", SQUARE),
    ("all", MATRIX > 0),
    ("any", MATRIX > 0),
    ("cumsum", MATRIX, 0),
    ("sort", MATRIX, 0),
    ("argsort", MATRIX, 0),
    ("flip", MATRIX),
    ("trace", SQUARE),
    ("log", np.abs(MATRIX)),
    ("exp", MATRIX),
    ("digamma", 1 + np.abs(MATRIX)),
    ("logsumexp", MATRIX, 0),
    ("tensor", MATRIX),
    ("tensor", MATRIX, np.float32),
    ("unfold", ARRAY, 1),
    ("fold", MATRIX, 0, (6, 2, 2)),
]


@pytest.mark.parametrize("call", CALLS, ids=[f"{call[0]}-{k}" for k, call in enumerate(CALLS)])
def test_numpys_answers(call):
    name, *arguments = call
    found = getattr(tl, name)(*map(to_gpu, arguments))
    with tl.backend_context("numpy"):
        expected = np.asarray(getattr(tl, name)(*arguments))
    assert_same(found, expected)


def test_shape_ndim_and_is_tensor():
    x = cupy.asarray(ARRAY)
    assert (tl.shape(x), tl.ndim(x), tl.is_tensor(x)) == (ARRAY.shape, 3, True)


def test_svd_and_eigh():
    left, values, right = tl.svd(cupy.asarray(MATRIX), full_matrices=False)
    assert_same((left * values) @ right, MATRIX)
    assert_same(values, np.linalg.svd(MATRIX, compute_uv=False))
    values, vectors = tl.eigh(cupy.asarray(SQUARE))
    assert_same((vectors * values) @ vectors.T, SQUARE)


def test_lstsq():
    b = MATRIX @ np.arange(4.0)
    assert_same(tl.lstsq(cupy.asarray(MATRIX), cupy.asarray(b))[0], np.arange(4.0))


def test_index_update():
    x = cupy.zeros((3, 4))
    assert tl.index_update(x, tl.index[:, 1], cupy.ones(3)) is x
    assert x.get().tolist() == [[0, 1, 0, 0]] * 3


def test_to_numpy():
    found = tl.to_numpy(cupy.asarray(MATRIX))
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, MATRIX)


def test_conj_of_a_real_array_is_no_copy():
    x = cupy.asarray(MATRIX)
    assert tl.conj(x) is x
    assert tl.conj(x + 1j)[0, 0].get() == MATRIX[0, 0] - 1j


# Making arrays


@DTYPES
def test_context_leads_to_the_gpu(dtype):
    coo = sparse.COO([[0, 1]], np.ones(2, dtype), (3,))
    for x in (coo, tl.tensor(coo)):  # the caller's, on the host
        assert tl.context(x) == {"dtype": np.dtype(dtype)}
    for x in (FlycooTensor.from_coo(coo), cupy.ones(3, dtype)):
        context = tl.context(x)
        assert context == {"dtype": np.dtype(dtype), "device": "cuda"}
        assert_same(tl.ones(3, **context), np.ones(3, dtype))
        assert_same(tl.zeros((3, 2), **context), np.zeros((3, 2), dtype))
        assert_same(tl.eye(3, **context), np.eye(3, dtype=dtype))
        assert_same(tl.tensor([1.5, 2], **context), np.array([1.5, 2], dtype))
        assert_same(tl.tensor(MATRIX, **context), MATRIX.astype(dtype))


def test_context_of_host_arrays_and_tensors_stays_on_the_host():
    x = FlycooTensor([[0, 1]], [1.0, 2.0], (3,), device="cpu")
    for array in (x, np.ones(3)):
        assert tl.context(array) == {"dtype": np.float64}
    assert type(tl.ones(3, **tl.context(x))) is np.ndarray
    assert type(tl.tensor([1.0])) is np.ndarray


def test_an_unknown_device():
    with pytest.raises(ValueError, match="device is 'gpu'"):
        tl.ones(3, device="gpu")


def test_tensor_copies():
    x = cupy.ones(3)
    for found in (tl.tensor(x), tl.tensor(x, **tl.context(x))):
        found[...] = 2
    assert x.get().tolist() == [1, 1, 1]


def test_tensor_of_scalars_on_the_gpu():
    x = cupy.asarray(MATRIX)
    assert_same(tl.tensor([x[0, 0], x[1, 1]]), MATRIX[[0, 1], [0, 1]])


def test_tensor_on_the_host_if_asked():
    assert type(tl.tensor(cupy.ones(3), device="cpu")) is np.ndarray


class Exporter:
    """An array that exports DLPack, like those of other libraries, and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_tensor_of_dlpack():
    assert_same(tl.tensor(Exporter(cupy.asarray(MATRIX))), MATRIX)


def test_the_same_seed_gives_numpys_start():
    assert tl.check_random_state(0).random_sample() == np.random.RandomState(0).random_sample()
    start = tl.random.random_cp((4, 5), 2, random_state=0, dtype=np.float64, device="cuda")
    with tl.backend_context("numpy"):
        expected = tl.random.random_cp((4, 5), 2, random_state=0)
    for factor, expected_factor in zip(start.factors, expected.factors, strict=True):
        assert_same(factor, expected_factor)


# Scalars


def test_scalars_are_usable_as_numbers():
    total = tl.sqrt(tl.abs(np.float32(5) ** 2 - tl.sum(cupy.full(9, 1, np.float32))))
    assert isinstance(total, cupy.ndarray)
    assert (total.shape, total.dtype) == ((), np.float32)
    assert total < 4.5
    assert not tl.abs(total) < 1e-8
    assert f"{total}" == "4.0"
    assert float(total) == 4
    assert [total, total][0] / np.float32(2) == 2


# Mixing


@pytest.mark.parametrize(
    "mix",
    [
        pytest.param(lambda a, b: tl.dot(a, b), id="dot"),
        pytest.param(lambda a, b: a * b, id="product"),
        pytest.param(lambda a, b: tl.concatenate([a, b]), id="concatenate"),
        pytest.param(lambda a, b: tl.solve(a, b), id="solve"),
    ],
)
def test_host_and_device_arrays_do_not_mix(mix):
    for first, second in [(cupy.asarray(SQUARE), SQUARE), (SQUARE, cupy.asarray(SQUARE))]:
        with pytest.raises(TypeError):
            mix(first, second)


# Tall matrices

NUM_ROWS = [
    pytest.param(2**15, id="whole blocks"),
    pytest.param(2**16 + 77, id="rows left over"),
]


def make_tall(num_rows, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal((num_rows, RANK)).astype(dtype)


def assert_sum(found, exact, sizes, num_terms, dtype):
    """Compare a sum with the exact one; `num_terms` of its terms are added in its own dtype."""
    assert (found.dtype, found.shape) == (dtype, exact.shape)
    length = 10 + num_terms
    assert (np.abs(found.get() - exact) <= length * np.finfo(dtype).eps * sizes).all()


@DTYPES
@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_gram_sum_and_norms_of_tall_matrices(num_rows, dtype):
    a, b = make_tall(num_rows, dtype), make_tall(num_rows, dtype, seed=1)
    exact_a, exact_b = a.astype(float), b.astype(float)
    x, y = cupy.asarray(a), cupy.asarray(b)
    assert linear_algebra.is_tall(x)
    num_terms = num_rows if dtype == "float64" else 0
    sizes = np.abs(exact_a).sum(axis=0)
    assert_sum(tl.sum(x, axis=0), exact_a.sum(axis=0), sizes, num_terms, dtype)
    norms = np.linalg.norm(exact_a, axis=0)
    assert_sum(tl.norm(x, axis=0), norms, norms, num_terms, dtype)
    sizes = np.abs(exact_a).T @ np.abs(exact_b)
    num_terms = num_terms or num_rows // linear_algebra.NUM_BLOCKS
    assert_sum(tl.dot(tl.transpose(x), y), exact_a.T @ exact_b, sizes, num_terms, dtype)


@DTYPES
def test_rows_that_lie_apart_are_tall_too(dtype):
    wide = cupy.asarray(make_tall(2**16 + 77, dtype))
    narrow = wide[:, 1:-1]
    assert linear_algebra.is_tall(narrow)
    tight = cupy.ascontiguousarray(narrow)
    size = float(np.abs(tight.get()).sum(axis=0).max())
    for function in (
        lambda x: tl.dot(tl.transpose(x), x),
        lambda x: tl.sum(x, axis=0),
        lambda x: tl.norm(x, axis=0),
    ):
        found, expected = function(narrow).get(), function(tight).get()
        assert np.abs(found - expected).max() <= 64 * np.finfo(dtype).eps * size


@pytest.fixture(params=["tensor cores", "cuBLAS"])
def products_by(request, monkeypatch):
    """Also as on a GPU without fast double-precision tensor cores."""
    if request.param == "cuBLAS":
        monkeypatch.setattr(tall, "suits_tensor_cores", lambda x: False)


@DTYPES
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 7, 8, 10, 16, 17, 25, 31, 32, 33, 64])
@pytest.mark.parametrize("pad", [0, 3], ids=["tight", "apart"])
@pytest.mark.usefixtures("products_by")
def test_products_of_tall_matrices(pad, rank, dtype):
    """Rows end within a block; rows of unaligned factors may be padded."""
    rng = np.random.default_rng(rank)
    wide, other = rng.standard_normal((2, 3 * 2**14 + 77, rank + pad)).astype(dtype)
    off = np.diag(0.25 * rng.random(rank - 1), 1)
    gram = np.eye(rank) + off + off.T
    on_gpu = cupy.asarray(gram.astype(dtype))
    x, y = cupy.asarray(wide)[:, :rank], cupy.asarray(other[:, :rank])
    a, b = wide[:, :rank].astype(float), other[:, :rank].astype(float)
    compute = (
        lambda: linear_algebra.transposed_product(x, x),
        lambda: linear_algebra.solve(on_gpu, x.T).T,
        lambda: linear_algebra.inner_product(x, y),
    )
    inverse = np.linalg.inv(on_gpu.get().astype(float)).T
    exact = (a.T @ a, a @ inverse, (a * b).sum())
    sizes = (np.abs(a).T @ np.abs(a), np.abs(a) @ np.abs(inverse), np.abs(a * b).sum())
    counts = (len(a), 4 * rank, len(a)) if dtype == "float64" else (64, 4 * rank, 8)
    for function, expected, size, num_terms in zip(compute, exact, sizes, counts, strict=True):
        found = function()
        assert_sum(found, expected, size, num_terms, dtype)
        assert found.get().tobytes() == function().get().tobytes()


@pytest.mark.usefixtures("products_by")
def test_products_of_tall_matrices_keep_nan_in_its_row():
    x = cupy.ones((2**15, 5), np.float32)
    x[77] = np.nan
    product = linear_algebra.solve(cupy.eye(5, dtype=np.float32), x.T).T.get()
    assert np.isnan(product[77]).all()
    assert (np.delete(product, 77, axis=0) == 1).all()
    assert np.isnan(linear_algebra.transposed_product(x, x).get()).all()
    assert np.isnan(linear_algebra.inner_product(x, x).get())


KINDS = (
    "regular", "without symmetry", "badly scaled", "of rank 1", "of half the rank",
    "with a row of zeros", "zero",
)  # fmt: skip


def make_small(kind, size):
    """Make a well- or ill-conditioned matrix."""
    rng = np.random.default_rng(size)
    noise = rng.random((size, size)) / size
    half = rng.standard_normal((size, (size + 1) // 2))
    scales = np.logspace(0, -6, size)
    return {
        "regular": np.eye(size) + noise,
        "without symmetry": rng.permutation(np.eye(size)) + 0.1 * noise,
        "badly scaled": (np.eye(size) + 0.1 * noise) * np.outer(scales, scales),
        "of rank 1": np.ones((size, size)),
        "of half the rank": half @ half.T,
        "with a row of zeros": np.diag(np.arange(size)),
        "zero": np.zeros((size, size)),
    }[kind].astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 31, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_inverses_of_small_matrices(kind, size):
    """They equal LAPACK's, or pseudo-inverses if a matrix is numerically singular."""
    matrix = make_small(kind, size)
    expected, condition = linear_algebra._invert(matrix)
    bound = 1e-6 * condition * np.abs(expected).max()
    for on_gpu in (cupy.asarray(matrix), cupy.asfortranarray(cupy.asarray(matrix))):
        found, again = (tall.invert(on_gpu).to_array().get() for _ in range(2))
        inverse, product = found[:-1].reshape(2, size, size)
        assert np.abs(inverse - expected).max() <= bound
        assert (product == matrix).all()
        assert found.tobytes() == again.tobytes()


def test_the_inverse_of_what_is_not_finite_is_nan():
    matrix = cupy.eye(5, dtype=np.float32)
    matrix[1, 2] = np.nan
    assert np.isnan(tall.invert(matrix).to_array().get()).any()


@DTYPES
@pytest.mark.parametrize("rank", [3, 7, 8, 25])
def test_solve_aligns_the_rows_of_tall_factors(rank, dtype):
    """MTTKRP reads padded factors at full speed; they hold the same numbers as unpadded ones."""
    rng = np.random.default_rng(0)
    gram = np.eye(rank) + 0.1 * rng.random((rank, rank))
    rows = rng.standard_normal((2**15 + 5, rank))
    on_gpu = cupy.asarray(rows.astype(dtype))
    factor = tl.solve(cupy.asarray(gram.astype(dtype)), tl.transpose(on_gpu)).T
    assert factor.shape == rows.shape
    assert factor.strides[0] == tuning.choose_row_nbytes(rank * factor.itemsize)
    expected = np.linalg.solve(gram, rows.T).T
    assert np.abs(factor.get() - expected).max() <= 1000 * np.finfo(dtype).eps * np.abs(rows).max()


@DTYPES
def test_tall_results_have_the_same_bits_in_every_run(dtype):
    x = cupy.asarray(make_tall(2**16 + 77, dtype))
    for compute in (lambda: tl.dot(x.T, x), lambda: tl.sum(x, axis=0), lambda: tl.qr(x)[0]):
        assert compute().get().tobytes() == compute().get().tobytes()


@DTYPES
@pytest.mark.parametrize("num_rows", [40, *NUM_ROWS])
@pytest.mark.parametrize("digits", [0, 3, 12])
def test_qr(digits, num_rows, dtype):
    """Also for matrices whose columns are linearly dependent up to rounding."""
    scales = np.logspace(0, -digits, RANK)
    mix = np.linalg.qr(RNG.standard_normal((RANK, RANK)))[0]
    a = ((make_tall(num_rows, "float64") * scales) @ mix).astype(dtype)
    q, r = (part.get() for part in tl.qr(cupy.asarray(a)))
    assert q.dtype == r.dtype == dtype
    bound = 50 * RANK * np.finfo(dtype).eps
    exact = q.astype(float)
    assert np.abs(exact.T @ exact - np.eye(RANK)).max() <= bound
    assert np.linalg.norm(exact @ r - a) <= bound * np.linalg.norm(a)
    np.testing.assert_array_equal(np.tril(r, -1), 0)


@pytest.mark.parametrize("fill", [0.0, 1.0, np.nan])
def test_qr_of_matrices_without_a_cholesky_factor(fill):
    q, r = tl.qr(cupy.full((2**15, 3), fill))
    assert (q.shape, r.shape) == ((2**15, 3), (3, 3))
    if not np.isnan(fill):
        assert cupy.abs(q @ r - fill).max() <= 1e-12


# solve


def make_gram(condition, dtype):
    vectors, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((RANK, RANK)))
    gram = (vectors * np.logspace(0, -np.log10(condition), RANK)) @ vectors.T
    return ((gram + gram.T) / 2).astype(dtype)


@DTYPES
@pytest.mark.parametrize(
    "num_columns", [2**15, 1000, 3, None], ids=["tall", "many", "few", "vector"]
)
@pytest.mark.parametrize("digits", [0, 2, 4, 5])
def test_solve_is_as_right_as_the_condition_allows(digits, num_columns, dtype):
    gram = make_gram(10.0**digits, dtype)
    x = RNG.standard_normal((RANK,) if num_columns is None else (RANK, num_columns))
    b = (gram.astype(float) @ x).astype(dtype)
    found = tl.solve(cupy.asarray(gram), cupy.asarray(b))
    assert (found.dtype, found.shape) == (dtype, x.shape)
    bound = 20 * RANK * np.finfo(dtype).eps * np.linalg.cond(gram.astype(float))
    error = np.linalg.norm(found.get() - x, axis=0)
    assert (error <= bound * np.linalg.norm(x, axis=0)).all()


@DTYPES
@pytest.mark.parametrize("num_columns", [2**15, 1000, 3])
@pytest.mark.parametrize(
    "gram", [np.zeros((3, 3)), np.ones((3, 3)), np.diag([1.0, 0, 2])], ids=["0", "1", "diagonal"]
)
def test_solve_of_singular_systems(gram, num_columns, dtype):
    gram = gram.astype(dtype)
    b = gram @ RNG.standard_normal((3, num_columns)).astype(dtype)
    found = tl.solve(cupy.asarray(gram), cupy.asarray(b)).get()
    bound = 100 * np.finfo(dtype).eps * max(1, np.abs(b).max())
    assert np.abs(gram @ found - b).max() <= bound


def test_solve_gives_a_factor_in_c_order():
    found = tl.solve(cupy.asarray(SQUARE), cupy.ones((1000, 4)).T)
    assert tl.transpose(found).flags.c_contiguous


# Tensors


def make_nonzeros(shape=(30, 20, 10), nnz=300, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, size, nnz) for size in shape])
    return coords, rng.standard_normal(nnz).astype(dtype), shape


def assert_same_tensor(x, y):
    for found, expected in zip(x.nonzeros(), y.nonzeros(), strict=True):
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("convert", [cupy.asarray, lambda a: Exporter(cupy.asarray(a))])
@pytest.mark.parametrize("device", [None, "auto", "cuda"])
def test_tensors_of_device_arrays(device, convert):
    coords, values, shape = make_nonzeros()
    x = FlycooTensor(convert(coords), convert(values), shape, device=device)
    assert x.device == "cuda"
    assert "device='cuda'" in repr(x)
    assert_same_tensor(x, FlycooTensor(coords, values, shape, device="cpu"))


def test_tensors_move_where_the_device_is_named():
    coords, values, shape = make_nonzeros()
    x = FlycooTensor(cupy.asarray(coords), cupy.asarray(values), shape, device="cpu")
    assert x.device == "cpu"
    assert FlycooTensor(coords, values, shape, device="cuda").device == "cuda"


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("coord_dtype", [kind + size for kind in "iu" for size in "1248"])
def test_coords_of_any_integer_type(coord_dtype, order):
    """Nonzeros unsorted, with duplicates and zeros; and sorted, as a tensor returns them."""
    coords, values, shape = make_nonzeros(shape=(30, 1, 100, 2), nnz=900)
    values = np.round(8 * values)  # integers: the order of adding duplicates does not matter
    expected = FlycooTensor(coords, values, shape, device="cpu")
    for given in ((coords, values), expected.nonzeros()):
        narrow = cupy.asarray(given[0].astype(coord_dtype), order=order)
        x = FlycooTensor(narrow, cupy.asarray(given[1]), shape)
        assert_same_tensor(x, expected)


@pytest.mark.parametrize("num_held", [2, 3, 7, 599, 600])
def test_nonzeros_of_the_host_come_in_blocks(monkeypatch, num_held):
    """Unsorted, sorted, and sorted except for one duplicate, wherever a thread's block begins."""
    monkeypatch.setattr(type(cuda.CUDA), "staging_size", num_held * MAX_THREADS)
    coords, values, shape = make_nonzeros(nnz=600)
    expected = FlycooTensor(coords, values, shape, device="cpu")
    rising = expected.nonzeros()
    for place in (0, 1, 6, 7, 8, expected.nnz - 1):
        numbers = np.insert(np.arange(expected.nnz), place, place)
        twice = (rising[0][:, numbers], rising[1][numbers])
        x = FlycooTensor(*twice, shape, device="cuda")
        assert_same_tensor(x, FlycooTensor(*twice, shape, device="cpu"))
    for order, given in itertools.product("CF", ((coords, values), rising)):
        x = FlycooTensor(np.asarray(given[0], order=order), given[1], shape, device="cuda")
        assert_same_tensor(x, expected)
    wrong = coords.copy()
    wrong[1, 599] = -1
    with pytest.raises(ValueError, match=r"coords\[1, 599\] is -1"):
        FlycooTensor(wrong, values, shape, device="cuda")


@pytest.mark.parametrize("coord_dtype", ["int8", "int64"])
def test_negative_coords_are_named(coord_dtype):
    coords, values, shape = make_nonzeros()
    coords[1, 5] = -1
    with pytest.raises(ValueError, match=r"coords\[1, 5\] is -1"):
        FlycooTensor(cupy.asarray(coords.astype(coord_dtype)), cupy.asarray(values), shape)


def test_arrays_of_another_gpu_are_named(monkeypatch):
    """A GPU that does not exist is made the current one."""
    x = FlycooTensor(*make_nonzeros(), device="cuda")
    factors = [cupy.ones((size, RANK)) for size in x.shape]
    coords, values = map(cupy.asarray, x.nonzeros())
    expected = tensorly_flycoo.mttkrp(x, factors, 0)
    with monkeypatch.context() as patch:
        patch.setattr(cupy.cuda.runtime, "getDevice", lambda: 1)
        with pytest.raises(ValueError, match="x is on GPU 0, expected GPU 1, the current one"):
            tensorly_flycoo.mttkrp(x, factors, 0)
        with pytest.raises(ValueError, match="coords is on GPU 0, expected GPU 1"):
            FlycooTensor(coords, values, x.shape)
    assert (tensorly_flycoo.mttkrp(x, factors, 0) == expected).all()


def test_coords_and_values_in_different_places():
    coords, values, shape = make_nonzeros()
    with pytest.raises(TypeError, match=r"values is a numpy.ndarray, expected a cupy.ndarray"):
        FlycooTensor(cupy.asarray(coords), values, shape)
    with pytest.raises(TypeError, match=r"values is a cupy.ndarray, expected a numpy.ndarray"):
        FlycooTensor(coords, cupy.asarray(values), shape)


BAD_NONZEROS = [
    pytest.param([[0, 3]], [1.0, 1.0], ValueError, "coords.0, 1. is 3", id="too large"),
    pytest.param([[-1, 0]], [1.0, 1.0], ValueError, "coords.0, 0. is -1", id="negative"),
    pytest.param([[0.0, 1.0]], [1.0, 1.0], TypeError, "float64, expected integers", id="floats"),
    pytest.param([[0, 1]], [1.0, np.nan], ValueError, "values.1. is nan", id="nan"),
    pytest.param([[0, 1]], [1.0], ValueError, "values has shape", id="too few values"),
    pytest.param([[0, 1]], [1, 2**53 + 2], ValueError, "values.1. is 9007199254740994", id="large"),
    pytest.param([[0, 1]], [1j, 1], TypeError, "complex128, expected float32", id="complex"),
]


@pytest.mark.parametrize(("coords", "values", "error", "message"), BAD_NONZEROS)
def test_checks_say_the_same_on_both_devices(coords, values, error, message):
    for convert in (np.array, cupy.array):
        with pytest.raises(error, match=message):
            FlycooTensor(convert(coords), convert(values), (3,))


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_operators(layout):
    coords, values, shape = make_nonzeros()
    tensors = [
        FlycooTensor(coords, values, shape, device=device, layout=layout)
        for device in ("cuda", "cpu")
    ]
    for operate in (
        lambda x: x * 2,
        lambda x: cupy.asarray(2.0) * x if x.device == "cuda" else 2.0 * x,
        lambda x: x / 3,
        lambda x: -x,
        lambda x: abs(x),
        lambda x: x + x * 2,
        lambda x: x - x * 2,
        lambda x: x * 0,
        lambda x: x.astype("float32"),
    ):
        on_gpu, on_cpu = map(operate, tensors)
        assert on_gpu.device == "cuda"
        assert_same_tensor(on_gpu, on_cpu)
    with pytest.raises(TypeError, match="devices 'cuda' and 'cpu' differ"):
        tensors[0] + tensors[1]


@DTYPES
def test_a_model_at_entries(dtype):
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((size, RANK)).astype(dtype) for size in (30, 20, 10)]
    weights = rng.standard_normal(RANK).astype(dtype)
    coords = np.stack([rng.integers(0, len(factor), 700) for factor in factors])
    on_gpu = (cupy.asarray(weights), [cupy.asarray(factor) for factor in factors])
    found = cp_to_entries(on_gpu, cupy.asarray(coords)).get()
    exact = np.prod([f[c].astype(float) for f, c in zip(factors, coords, strict=True)], axis=0)
    bound = np.abs(exact) @ np.abs(weights) * (RANK + 3) * np.finfo(dtype).eps
    assert (np.abs(found - exact @ weights) <= bound).all()
    np.testing.assert_array_equal(cp_to_entries(on_gpu, coords).get(), found)


def test_pickling_goes_through_the_host():
    import pickle

    x = FlycooTensor(*make_nonzeros())
    assert_same_tensor(pickle.loads(pickle.dumps(x)), x)


@DTYPES
def test_mttkrp_against_the_cpu(dtype):
    """Both are within the bound; there, weights are the factor of an extra mode of size 1."""
    coords, values, shape = make_nonzeros(dtype=dtype)
    factors = [RNG.standard_normal((size, RANK)).astype(dtype) for size in shape]
    weights = np.arange(1, RANK + 1, dtype=dtype)
    x, y = (FlycooTensor(coords, values, shape, device=device) for device in ("cuda", "cpu"))
    for mode in range(3):
        out = cupy.full((shape[mode], RANK), np.nan, dtype)
        arguments = (list(map(cupy.asarray, factors)), mode)
        found = tensorly_flycoo.mttkrp(x, *arguments, weights=cupy.asarray(weights), out=out)
        expected = tensorly_flycoo.mttkrp(y, factors, mode, weights=weights)
        assert found is out
        weighted = (np.pad(coords, [(0, 1), (0, 0)]), values, [*factors, weights[None]], mode)
        bound = bound_mttkrp(x, *weighted) + bound_mttkrp(y, *weighted)
        assert (np.abs(found.get() - expected) <= bound).all()


@pytest.mark.parametrize("name", ["factors", "weights"])
def test_host_arrays_for_a_tensor_on_the_gpu_are_moved(name):
    x = FlycooTensor(*make_nonzeros())
    arguments = {
        "factors": [cupy.ones((size, RANK)) for size in x.shape],
        "weights": cupy.arange(1.0, RANK + 1),
    }
    expected = tensorly_flycoo.mttkrp(x, mode=0, **arguments)
    host = arguments[name]
    arguments[name] = [factor.get() for factor in host] if name == "factors" else host.get()
    found = tensorly_flycoo.mttkrp(x, mode=0, **arguments)
    assert bool((found == expected).all())


# svd of unfoldings


@DTYPES
@pytest.mark.parametrize("path", ["direct", "Lanczos on the Gram matrix", "Lanczos"])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_svd_interface(mode, path, dtype, monkeypatch):
    """Use each of the three methods for singular vectors, whatever the size."""
    if path != "direct":
        monkeypatch.setattr(eigen, "MAX_DIRECT_SIZE", 0)
    if path == "Lanczos":
        monkeypatch.setattr(UnfoldingGram, "is_cheap_to_form", lambda gram: False)
    coords, values, shape = make_nonzeros((40, 60, 50), 2000, dtype)
    dense = np.zeros(shape)
    np.add.at(dense, tuple(coords), values)
    matrix = np.moveaxis(dense, mode, 0).reshape(shape[mode], -1)
    x = FlycooTensor(cupy.asarray(coords), cupy.asarray(values), shape)
    left, found, _ = tl.tenalg.svd_interface(tl.unfold(x, mode), n_eigenvecs=3)
    vectors, expected, _ = np.linalg.svd(matrix)
    assert left.dtype == found.dtype == dtype
    assert np.abs(found.get() - expected[:3]).max() <= 1e-5 * expected[0]
    left = left.get().astype(float)
    rest = left - vectors[:, :3] @ (vectors[:, :3].T @ left)
    assert np.abs(rest).max() <= 1e-4 * expected[0] / (expected[2] - expected[3])


def test_svd_of_an_unfolding_of_low_rank():
    x = FlycooTensor(cupy.asarray([[0, 2], [1, 1], [3, 0]]), cupy.asarray([3.0, 4.0]), (5, 4, 6))
    left, values, _ = tl.tenalg.svd_interface(tl.unfold(x, 0), n_eigenvecs=4)
    np.testing.assert_allclose(values.get(), [4, 3, 0, 0])
    np.testing.assert_allclose((left.T @ left).get(), np.eye(4), atol=1e-14)


def test_scipy_like_matrices_on_the_gpu():
    import cupyx.scipy.sparse

    matrix = cupyx.scipy.sparse.csc_matrix(cupy.asarray(MATRIX))
    x = tl.tensor(matrix)
    assert x.device == "cuda"
    np.testing.assert_array_equal(x.to_coo().todense(), MATRIX)
