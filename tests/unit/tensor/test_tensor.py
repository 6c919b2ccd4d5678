"""FlycooTensor: building, attributes, copies, the norm, and what it refuses to do."""

import copy
import pickle

import numpy as np
import pytest
import sparse
from problems import make_problem
from small_tensors import HUGE, make_dense, make_huge, make_tensor, to_dense

from tensorly_flycoo import DensifyError, FlycooTensor, mttkrp
from tensorly_flycoo.engines.cpu import engine as cpu

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


@pytest.fixture
def x():
    return make_tensor(make_dense())


@pytest.fixture
def huge():
    return make_huge()


# Building


@LAYOUTS
@DTYPES
def test_from_nonzeros(layout, dtype):
    dense = make_dense(dtype)
    x = make_tensor(dense, layout=layout)
    np.testing.assert_array_equal(to_dense(x), dense)
    assert (x.layout, x.dtype, x.device) == (layout, dtype, "cpu")


@LAYOUTS
def test_duplicates_are_summed_and_zeros_dropped(layout):
    coords = [[1, 0, 1, 2, 2, 0], [3, 2, 3, 0, 0, 1]]
    x = FlycooTensor(coords, [1.0, 2.0, 4.0, 5.0, -5.0, 0.0], (3, 4), layout=layout)
    coords, values = x.nonzeros()
    assert coords.tolist() == [[0, 1], [2, 3]]
    assert values.tolist() == [2, 5]
    assert x.nnz == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([3, 4], [3, 4], id="int"),
        pytest.param([True, True], [1, 1], id="bool"),
        pytest.param(np.array([255, 7], np.uint8), [255, 7], id="uint8"),
        pytest.param(np.array([-128, 7], np.int8), [-128, 7], id="int8"),
        pytest.param([2**53, -(2**53)], [2**53, -(2**53)], id="largest int64"),
        pytest.param(np.array([2**53, 1], np.uint64), [2**53, 1], id="largest uint64"),
    ],
)
def test_integers_and_bools_become_float64(values, expected):
    x = FlycooTensor([[0, 1], [2, 0]], values, (3, 3))
    assert x.dtype == np.float64
    assert x.nonzeros()[1].tolist() == expected


def test_small_integers_are_summed_without_overflow():
    x = FlycooTensor([[1, 1], [2, 2]], np.array([200, 100], np.uint8), (3, 3))
    assert x.nonzeros()[1].tolist() == [300]


@pytest.mark.parametrize(
    ("given", "asked", "kept"),
    [
        ("float64", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("int64", "float32", "float32"),
        ("float32", "int64", "float64"),
        ("float32", None, "float32"),
    ],
)
def test_dtype_argument(given, asked, kept):
    x = FlycooTensor([[0, 1]], np.array([1, 2], given), (3,), dtype=asked)
    assert x.dtype == kept
    assert x.nonzeros()[1].dtype == kept


# Attributes


@pytest.mark.usual_limits("record", "remap")
def test_attributes(x):
    dense = make_dense()
    assert x.shape == (4, 5, 3)
    assert x.ndim == 3
    assert x.nnz == np.count_nonzero(dense)
    assert x.dtype == np.dtype("float64")
    assert x.density == np.count_nonzero(dense) / 60
    assert (x.layout, x.device) == ("replicated", "cpu")


def test_attributes_beyond_2_to_63_cells(huge):
    assert huge.shape == HUGE
    assert huge.nnz == 50
    assert huge.density == 50 / 2**86


def test_density_of_more_cells_than_the_largest_float():
    x = FlycooTensor(np.zeros((70, 1), int), [1.0], (2**16,) * 70)
    assert x.density == 0


@pytest.mark.parametrize("name", ["shape", "nnz", "dtype", "layout", "nbytes"])
def test_attributes_are_read_only(x, name):
    with pytest.raises(AttributeError):
        setattr(x, name, None)


@pytest.mark.usual_limits("slabs")
@LAYOUTS
@DTYPES
@pytest.mark.parametrize("nnz", [0, 1, 300])
def test_nbytes_is_the_sum_of_all_arrays(layout, dtype, nnz):
    """All arrays that the tensor refers to count."""
    x = make_problem((30, 20, 10), nnz, dtype=dtype).tensor(layout=layout)
    assert x.nbytes == sum_nbytes(x._layout)
    mttkrp(x, make_problem(x.shape, 1, dtype=dtype).factors, 0)
    assert x.nbytes == sum_nbytes(x._layout)


def sum_nbytes(thing):
    """Add up the arrays in an object, its lists and its attributes, counting memory once."""
    return sum({array.ctypes.data: array.nbytes for array in find_arrays(thing)}.values())


def find_arrays(thing):
    if isinstance(thing, np.ndarray):
        yield from [thing] if thing.size else []
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from find_arrays(part)
    elif hasattr(thing, "__dict__"):
        yield from find_arrays(list(vars(thing).values()))


@pytest.mark.usual_limits("groups", "index", "prefixes", "record", "tiles")
def test_bytes_per_nonzero():
    """Two copies of 16 bytes, 6 bytes of ids per mode, and very little for tiles and rows."""
    x = make_problem((30, 20, 10), 30_000, rank=1).tensor()
    assert 2 * 16 + 6 * 3 <= x.nbytes / x.nnz < 2 * 16 + 6 * 3 + 0.1


@pytest.mark.usual_limits("groups", "prefixes", "record", "remap", "slabs")
def test_repr(x):
    expected = "shape=(4, 5, 3), dtype=float64, nnz=10, layout='replicated', device='cpu'"
    assert repr(x) == f"<FlycooTensor: {expected}>"
    assert repr(FlycooTensor([[], []], [], (1, 70_000), layout="indexed")).startswith(
        "<FlycooTensor: shape=(1, 70000), dtype=float64, nnz=0, layout='indexed'"
    )


# Conversions and copies


@LAYOUTS
@DTYPES
def test_to_coo_and_back(layout, dtype):
    dense = make_dense(dtype)
    coo = make_tensor(dense, layout=layout).to_coo()
    assert isinstance(coo, sparse.COO)
    assert (coo.dtype, coo.fill_value) == (dtype, 0)
    np.testing.assert_array_equal(coo.todense(), dense)
    np.testing.assert_array_equal(to_dense(FlycooTensor.from_coo(coo)), dense)


def test_to_coo_and_back_beyond_2_to_63_cells(huge):
    coo = huge.to_coo()
    assert coo.shape == HUGE
    assert coo.nnz == 50
    again = FlycooTensor.from_coo(coo)
    for part, part_again in zip(huge.nonzeros(), again.nonzeros(), strict=True):
        np.testing.assert_array_equal(part, part_again)
    assert set(map(tuple, coo.coords.T.tolist())) >= {(0,) * 4, tuple(size - 1 for size in HUGE)}


@LAYOUTS
def test_nonzeros_are_sorted_in_any_resident_mode(layout):
    problem = make_problem((30, 20, 10), 500)
    x = problem.tensor(layout=layout)
    coords, values = x.nonzeros()
    assert coords.dtype == np.int64
    order = np.lexsort(coords[::-1])
    np.testing.assert_array_equal(order, np.arange(x.nnz))
    mttkrp(x, problem.factors, 1)
    np.testing.assert_array_equal(x.nonzeros()[0], coords)
    np.testing.assert_array_equal(x.nonzeros()[1], values)


def test_nonzeros_are_copies(x):
    coords, values = x.nonzeros()
    coords[...], values[...] = 0, 9
    np.testing.assert_array_equal(to_dense(x), make_dense())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_astype(x, dtype):
    y = x.astype(dtype)
    assert (y.dtype, y.shape, y.layout) == (dtype, x.shape, x.layout)
    np.testing.assert_array_equal(to_dense(y), make_dense(dtype))
    assert x.dtype == np.float64


def test_astype_that_changes_nothing_is_the_tensor_itself(x):
    assert x.astype(np.float64) is x


@pytest.mark.parametrize(("dtype", "error"), [("complex64", TypeError), ("float16", TypeError)])
def test_astype_to_an_unsupported_dtype(x, dtype, error):
    with pytest.raises(error, match=f"dtype is {dtype}, expected float32"):
        x.astype(dtype)


def test_astype_that_overflows():
    x = FlycooTensor([[0]], [1e100], (2,))
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="is inf, expected finite"):
        x.astype("float32")


@LAYOUTS
@DTYPES
@pytest.mark.parametrize("num_modes_computed", [0, 1])
def test_pickle(layout, dtype, num_modes_computed):
    """MTTKRP gives the same bits afterwards, even if records had moved before."""
    problem = make_problem((30, 20, 10), 500, dtype=dtype)
    x = problem.tensor(layout=layout)
    for mode in range(num_modes_computed):
        mttkrp(x, problem.factors, mode)
    y = pickle.loads(pickle.dumps(x))
    assert (y.shape, y.dtype, y.layout, y.nnz) == (x.shape, x.dtype, x.layout, x.nnz)
    for mode in range(3):
        results = [mttkrp(tensor, problem.factors, mode).tobytes() for tensor in (x, y)]
        assert results[0] == results[1]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_hold_the_same(x, duplicate):
    y = duplicate(x)
    np.testing.assert_array_equal(to_dense(y), make_dense())
    np.testing.assert_array_equal(to_dense(x * 2), 2 * make_dense())
    np.testing.assert_array_equal(to_dense(y), make_dense())


# Norm


@LAYOUTS
@DTYPES
def test_norm(layout, dtype):
    x = make_tensor(make_dense(dtype), layout=layout)
    norm = np.linalg.norm(make_dense())
    assert x.norm().dtype == dtype
    assert abs(x.norm() - norm) <= np.finfo(dtype).eps * norm


def test_norm_of_no_nonzeros():
    assert FlycooTensor([[], []], [], (3, 4)).norm() == 0


def test_norm_in_float32_is_summed_in_float64():
    """Summed in float32, the ones would be lost next to 2**26."""
    values = np.ones(70_000, np.float32)
    values[0] = 2.0**13
    x = FlycooTensor(np.arange(70_000)[None], values, (70_000,))
    assert x.norm() == np.float32(np.sqrt(2.0**26 + 69_999))


@LAYOUTS
def test_norm_has_the_same_bits_in_any_resident_mode(layout):
    """So have norms of tensors derived from it."""
    for seed in range(10):
        problem = make_problem((50, 50, 50), 1000, seed=seed)
        x = problem.tensor(layout=layout)
        norm, negative_norm = x.norm(), (-x).norm()
        mttkrp(x, problem.factors, 0)
        assert x.norm() == norm == negative_norm
        assert (-x).norm() == negative_norm


# Operations that would make a dense array

DENSE = np.ones((4, 5, 3))

DENSIFYING = [
    pytest.param(lambda x: x + 1, "FlycooTensor +", id="x + 1"),
    pytest.param(lambda x: 1 + x, "+ FlycooTensor", id="1 + x"),
    pytest.param(lambda x: x - 1, "FlycooTensor -", id="x - 1"),
    pytest.param(lambda x: 1 - x, "- FlycooTensor", id="1 - x"),
    pytest.param(lambda x: x + DENSE, "FlycooTensor +", id="x + array"),
    pytest.param(lambda x: DENSE + x, "numpy.add", id="array + x"),
    pytest.param(lambda x: x - DENSE, "FlycooTensor -", id="x - array"),
    pytest.param(lambda x: DENSE - x, "numpy.subtract", id="array - x"),
    pytest.param(lambda x: x * DENSE, "numpy.multiply", id="x * array"),
    pytest.param(lambda x: DENSE * x, "numpy.multiply", id="array * x"),
    pytest.param(lambda x: x / DENSE, "numpy.divide", id="x / array"),
    pytest.param(lambda x: DENSE @ x, "numpy.matmul", id="array @ x"),
    pytest.param(lambda x: np.greater(DENSE, x), "numpy.greater", id="array > x"),
    pytest.param(lambda x: 1 / x, "/", id="1 / x"),
    pytest.param(lambda x: x / x, "FlycooTensor / FlycooTensor", id="x / x"),
    pytest.param(lambda x: x**0, "FlycooTensor ** 0", id="x ** 0"),
    pytest.param(lambda x: x**-1, "FlycooTensor ** -1", id="x ** -1"),
    pytest.param(lambda x: x**np.nan, "FlycooTensor ** nan", id="x ** nan"),
    pytest.param(lambda x: x**DENSE, "numpy.power", id="x ** array"),
    pytest.param(lambda x: 2**x, "** FlycooTensor", id="2 ** x"),
    pytest.param(np.asarray, "numpy.asarray", id="np.asarray"),
    pytest.param(np.array, "numpy.asarray", id="np.array"),
    pytest.param(np.exp, "numpy.exp", id="np.exp"),
    pytest.param(np.prod, "numpy.prod", id="np.prod"),
    pytest.param(lambda x: np.greater(x, -1), "numpy.greater", id="np.greater(x, -1)"),
    pytest.param(lambda x: np.reshape(x, (20, 3)), "numpy.reshape", id="np.reshape"),
    pytest.param(lambda x: np.moveaxis(x, 0, 1), "numpy.moveaxis", id="np.moveaxis"),
    pytest.param(lambda x: np.dot(x, x), "numpy.dot", id="np.dot"),
    pytest.param(lambda x: np.concatenate([x, DENSE]), "numpy.concatenate", id="np.concatenate"),
    pytest.param(lambda x: np.stack([x, x]), "numpy.stack", id="np.stack"),
    pytest.param(np.zeros_like, "numpy.zeros_like", id="np.zeros_like"),
    pytest.param(np.add.reduce, "numpy.add", id="np.add.reduce"),
    pytest.param(lambda x: np.multiply.outer(x, x), "numpy.multiply", id="np.multiply.outer"),
    pytest.param(lambda x: np.add(x, x, out=DENSE), "numpy.add", id="np.add out"),
]


@pytest.mark.parametrize(("operate", "name"), DENSIFYING)
def test_densifying_operations_are_named(x, operate, name):
    with pytest.raises(DensifyError) as caught:
        operate(x)
    assert name in str(caught.value)
    assert "dense array of shape (4, 5, 3)" in str(caught.value)
    assert (DENSE == 1).all()


@pytest.mark.parametrize(
    "operate",
    [
        pytest.param(lambda x: x * x, id="x * x"),
        pytest.param(lambda x: np.multiply(x, x), id="np.multiply(x, x)"),
        pytest.param(lambda x: x < x, id="x < x"),
        pytest.param(lambda x: sparse.eye(4) * x, id="COO * x"),
        pytest.param(lambda x: x ** "2", id="x ** text"),
        pytest.param(lambda x: x**2j, id="x ** complex"),
        pytest.param(lambda x: x @ x, id="x @ x"),
        pytest.param(lambda x: x * 2j, id="x * complex"),
        pytest.param(lambda x: x * "2", id="x * text"),
        pytest.param(float, id="float(x)"),
    ],
)
def test_unsupported_operations_are_type_errors(x, operate):
    """They give no object array and no silent conversion to a dense array."""
    with pytest.raises(TypeError):
        operate(x)


def test_shape_and_ndim_of_numpy(x):
    assert np.shape(x) == (4, 5, 3)
    assert np.ndim(x) == 3


def test_numpy_arrays_do_not_store_a_tensor(x):
    """NumPy does not wrap it as an object."""
    array = np.zeros(1)
    with pytest.raises(ValueError, match="setting an array element with a sequence"):
        array[0] = x
    assert array[0] == 0


# Tiles of the usual size


def test_many_tiles_and_buckets():
    problem = make_problem((50, 60, 70), 30_000)
    x = problem.tensor()
    assert x.nnz > 3 * cpu.BUCKET_SIZE
    problem.check_tensor(pickle.loads(pickle.dumps(x)))
    problem.check_tensor(FlycooTensor.from_coo(x.to_coo()))


@pytest.mark.parametrize(
    ("operate", "text"),
    [
        (lambda x: x * x, r"x\.to_coo\(\) \* y\.to_coo\(\) is the elementwise product"),
        (lambda x: x - DENSE, r"cp_fit\(x, cp\) for the error of a CP model"),
        (lambda x: DENSE - x, r"cp_fit\(x, cp\) for the error of a CP model"),
        (bool, "truth value of a FlycooTensor is ambiguous"),
        (lambda x: x.coords, r"no attribute 'coords'; use x\.nonzeros\(\)\[0\]"),
        (lambda x: x.todense(), r"no attribute 'todense'; use x\.to_coo\(\)\.todense\(\)"),
        (lambda x: x.other, "no attribute 'other'$"),
    ],
)
def test_errors_say_what_to_do(x, operate, text):
    with pytest.raises((TypeError, ValueError, AttributeError), match=text):
        operate(x)
