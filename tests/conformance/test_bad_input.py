"""Bad input to public functions: the error, its message, and no side effects.

test_bad_options.py passes bad values of each numeric option.
"""

import contextlib
import importlib.machinery
import pickle
import sys
import types

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl
from problems import make_problem

import tensorly_flycoo
from tensorly_flycoo import DensifyError, FlycooTensor, engines, mttkrp
from tensorly_flycoo.base.checks import check_inside, densify_error
from tensorly_flycoo.testing import planted_tensor

COORDS, VALUES, SHAPE = [[0, 1], [2, 0]], [1.0, 2.0], (3, 4)


@contextlib.contextmanager
def raises(error, *parts):
    """Expect `error` with a message that contains all `parts`."""
    with pytest.raises(error) as caught:
        yield
    missing = [part for part in parts if part not in str(caught.value)]
    assert missing == [], f"{missing} not in message: {caught.value}"


def case(id, error, *parts, **arguments):
    return pytest.param(arguments, error, parts, id=id)


BAD_NONZEROS = [
    case(
        "coordinate too large", ValueError, "coords[1, 0] is 4", "nonzero 0", "mode 1",
        "expected 0 to 3", coords=[[0, 1], [4, 0]],
    ),
    case(
        "coordinate negative", ValueError, "coords[0, 1] is -1", "nonzero 1", "mode 0",
        "expected 0 to 2", coords=[[0, -1], [2, 0]],
    ),
    case(
        "coordinate beyond int64", ValueError, "coords[0, 0] is 18446744073709551615",
        "expected 0 to 2", coords=np.array([[2**64 - 1, 0], [0, 0]], np.uint64),
    ),
    case(
        "coordinate negative int8", ValueError, "coords[0, 1] is -1", "expected 0 to 999",
        coords=np.array([[0, -1], [2, 0]], np.int8), shape=(1000, 1000),
    ),
    case(
        "coordinate negative int16", ValueError, "coords[0, 1] is -1", "expected 0 to 69999",
        coords=np.array([[0, -1], [2, 0]], np.int16), shape=(70000, 4),
    ),
    case(
        "coordinate too large big-endian", ValueError, "coords[0, 0] is 16777216",
        coords=np.array([[2**24, 0], [2, 0]], ">i4"),
    ),
    case(
        "values masked", ValueError, "has 1 masked entries, expected none",
        values=np.ma.masked_array([1.0, 2.0], [False, True]),
    ),
    case(
        "coords masked", ValueError, "has 1 masked entries, expected none",
        coords=np.ma.masked_array([[0, 1], [2, 0]], [[False, True], [False, False]]),
    ),
    case("coords floats", TypeError, "coords", "float64", "integers", coords=[[0.0], [1.0]]),
    case("coords bools", TypeError, "coords", "bool", "integers", coords=[[True], [False]]),
    case(
        "coords flat", ValueError, "coords has shape (2,)", "expected (ndim, nnz)",
        coords=[0, 1],
    ),
    case(
        "coords transposed", ValueError, "coords has shape (3, 2)", "expected (2, nnz)",
        "transpose it (coords.T)", coords=[[0, 1], [2, 3], [1, 1]],
    ),
    case(
        "more values", ValueError, "values has shape (3,)", "expected (2,)", "coords",
        values=[1.0, 2.0, 3.0],
    ),
    case("fewer values", ValueError, "values has shape (1,)", "expected (2,)", values=[1.0]),
    case("scalar value", ValueError, "values has shape ()", "expected (2,)", values=1.0),
    case(
        "values two-dimensional", ValueError, "values has shape (1, 2)", "expected (2,)",
        values=[[1.0, 2.0]],
    ),
    case("shape too short", ValueError, "shape has 1 modes", "expected 2", shape=(3,)),
    case("shape too long", ValueError, "shape has 3 modes", "expected 2", shape=(3, 4, 5)),
    case("shape empty", ValueError, "shape is empty", "at least one mode", shape=()),
    case("size zero", ValueError, "shape[1] is 0", "expected 1 to", shape=(3, 0)),
    case("size negative", ValueError, "shape[0] is -3", "expected 1 to", shape=(-3, 4)),
    case(
        "size too large", ValueError, "shape[1] is 4294967297", "expected 1 to 4294967296",
        shape=(3, 2**32 + 1),
    ),
    case("size a float", TypeError, "shape is (3, 4.0)", "integers", shape=(3, 4.0)),
    case("shape a number", TypeError, "shape is 3", "sequence of integers", shape=3),
    case(
        "nan", ValueError, "values[1] is nan", "expected finite", values=[1.0, np.nan],
    ),
    case("infinity", ValueError, "values[0] is inf", "expected finite", values=[np.inf, 1.0]),
    case(
        "minus infinity, float32", ValueError, "values[1] is -inf", "expected finite",
        values=np.array([1, -np.inf], np.float32),
    ),
    case(
        "infinite in float32", ValueError, "float32", "[1] is inf", "expected finite",
        values=[1.0, 1e300], dtype="float32",
    ),
    case(
        "infinite sum of duplicates", ValueError, "values", "is inf", "expected finite",
        coords=[[0, 0], [2, 2]], values=[1e308, 1e308],
    ),
    case("complex", TypeError, "values", "complex128", "float64", values=[1j, 2.0]),
    case("object", TypeError, "values", "object", "float64", values=np.array([1, 2], object)),
    case("float16", TypeError, "values", "float16", values=np.ones(2, np.float16)),
    case("longdouble", TypeError, "values", "expected float32", values=np.ones(2, "longdouble")),
    case("text", TypeError, "values", "<U1", "float64", values=["a", "b"]),
    case("dates", TypeError, "values", "datetime64", values=np.zeros(2, "datetime64[s]")),
    case(
        "integer too large", ValueError, "values[1] is 9007199254740993", "2**53",
        values=[1, 2**53 + 1],
    ),
    case(
        "integer too small", ValueError, "values[0] is -9007199254740993", "2**53",
        values=[-(2**53) - 1, 1],
    ),
    case(
        "unsigned integer too large", ValueError, "values[0] is 18446744073709551615",
        values=np.array([2**64 - 1, 1], np.uint64),
    ),
    case("dtype complex", TypeError, "dtype is complex64", "float32", dtype="complex64"),
    case("dtype float16", TypeError, "dtype is float16", "float32", dtype=np.float16),
    case("layout unknown", ValueError, "layout is 'dense'", "remap", layout="dense"),
    case("layout 3", ValueError, "layout is 3", "replicated", layout=3),
    case("device unknown", ValueError, "device is 'tpu'", "'cpu'", "'cuda'", device="tpu"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(("arguments", "error", "parts"), BAD_NONZEROS)
def test_bad_nonzeros(arguments, error, parts):
    arguments = {"coords": COORDS, "values": VALUES, "shape": SHAPE, **arguments}
    with raises(error, *parts):
        FlycooTensor(**arguments)


@pytest.mark.parametrize("dtype", ["i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8"])
def test_negative_coords_of_any_width_are_outside_any_shape(dtype):
    coords = np.array([[0, 5, -1]], dtype)
    check_inside(coords[:, :2], (2**32,))
    with raises(ValueError, "coords[0, 2] is -1", "expected 0 to 4294967295"):
        check_inside(coords, (2**32,))


@pytest.mark.parametrize("dtype", ["i1", "u1", ">i4", ">u8"])
def test_coords_of_other_dtypes(dtype):
    x = FlycooTensor(np.array([[0, 127], [2, 0]], dtype), VALUES, (300, 4))
    assert x.nonzeros()[0].tolist() == [[0, 127], [2, 0]]


def test_arguments_are_not_written_to():
    coords, values = np.array([[1, 0, 1], [2, 0, 2]]), np.array([1.0, 0.0, 3.0])
    before = coords.copy(), values.copy()
    x = FlycooTensor(coords, values, SHAPE)
    coords[...], values[...] = 0, 9
    assert x.nonzeros()[1].tolist() == [4.0]
    with pytest.raises(ValueError, match="values has shape"):
        FlycooTensor(before[0], before[1][:2], SHAPE)
    assert before[0].tolist() == [[1, 0, 1], [2, 0, 2]]


COO = sparse.COO(np.array(COORDS), np.array(VALUES), SHAPE)

BAD_COO = pytest.mark.parametrize(
    ("coo", "error", "parts"),
    [
        pytest.param(
            sparse.COO([[0]], [2.0], (3,), fill_value=1.0), ValueError,
            ["fill_value is 1", "expected 0"], id="fill_value 1",
        ),
        pytest.param(
            sparse.COO([[0]], [2.0], (3,), fill_value=np.nan), ValueError,
            ["fill_value is nan", "expected 0"], id="fill_value nan",
        ),
        pytest.param(COO * 1j, TypeError, ["values", "complex128"], id="complex"),
        pytest.param(
            sparse.COO([[0]], np.array([2], object), (3,)), TypeError, ["values", "object"],
            id="object",
        ),
        pytest.param(COO.astype(np.float16), TypeError, ["values", "float16"], id="float16"),
        pytest.param(COO * np.nan, ValueError, ["fill_value is nan"], id="all nan"),
        pytest.param(
            sparse.COO([[0]], [np.nan], (3,)), ValueError, ["values[0] is nan", "finite"], id="nan"
        ),
    ],
)  # fmt: skip


@BAD_COO
def test_bad_coo(coo, error, parts):
    with raises(error, *parts):
        FlycooTensor.from_coo(coo)


@BAD_COO
def test_bad_raw_coo(coo, error, parts):
    factors = [np.ones((size, 2)) for size in coo.shape]
    with raises(error, *parts):
        mttkrp(coo, factors, 0)


@BAD_COO
def test_bad_coo_through_tensorly(coo, error, parts):
    with tl.backend_context("flycoo"), raises(error, *parts):
        tl.tensor(coo)


@pytest.mark.parametrize(
    "other", [np.eye(3), [[1.0]], None, 3], ids=["array", "list", "None", "int"]
)
def test_not_sparse(other):
    with raises(TypeError, "coo is a ", "expected a sparse.COO"):
        FlycooTensor.from_coo(other)
    with raises(TypeError, "matrix is a ", "SciPy sparse"):
        FlycooTensor.from_scipy(other)
    with raises(TypeError, "x is a ", "expected a FlycooTensor or a sparse.COO"):
        mttkrp(other, [np.ones((3, 2))] * 2, 0)


def test_scipy_matrix_with_nan():
    with raises(ValueError, "values[0] is nan", "finite"):
        FlycooTensor.from_scipy(scipy.sparse.csr_array([[np.nan, 0.0]]))


# Arguments of mttkrp: x is float64 of shape (30, 20, 10), the factors have rank 4.

PROBLEM = make_problem((30, 20, 10), 500, rank=4)
BUFFER = np.full((40, 4), 7.0)


@pytest.fixture(scope="module")
def x():
    return PROBLEM.tensor()


def replaced(n, factor):
    """Return the factors with `factor` in place of number `n`."""
    return [factor if m == n else original for m, original in enumerate(PROBLEM.factors)]


BAD_ARGUMENTS = [
    case("mode too large", ValueError, "mode is 3", "expected 0 to 2", mode=3),
    case("mode negative", ValueError, "mode is -1", "expected 0 to 2", mode=-1),
    case("mode a float", TypeError, "mode is 1.0", "an integer", mode=1.0),
    case("mode text", TypeError, "mode is '0'", "an integer", mode="0"),
    case("mode None", TypeError, "mode is None", "an integer", mode=None),
    case(
        "too few factors", ValueError, "factors has 2 matrices", "expected 3",
        factors=PROBLEM.factors[:2],
    ),
    case("no factors", ValueError, "factors has 0 matrices", "expected 3", factors=[]),
    case(
        "factor with too many rows", ValueError, "factors[2] has shape (11, 4)", "(10, ",
        factors=replaced(2, np.ones((11, 4))),
    ),
    case(
        "factor of the mode with too few rows", ValueError, "factors[0] has shape (29, 4)",
        "(30, ", factors=replaced(0, np.ones((29, 4))),
    ),
    case(
        "factor transposed", ValueError, "factors[1] has shape (4, 20)", "(20, ",
        factors=replaced(1, np.ones((4, 20))),
    ),
    case(
        "factor a vector", ValueError, "factors[1] has shape (20,)", "(20, ",
        factors=replaced(1, np.ones(20)),
    ),
    case(
        "factor of another rank", ValueError, "factors[1] has shape (20, 5)",
        "expected (20, 4)", factors=replaced(1, np.ones((20, 5))),
    ),
    case(
        "rank 0", ValueError, "factors[0] has shape", ", 0), expected (",
        factors=[np.ones((size, 0)) for size in PROBLEM.shape],
    ),
    case(
        "factor in float32", TypeError, "factors[1] has dtype float32", "expected float64",
        factors=replaced(1, np.ones((20, 4), np.float32)),
    ),
    case(
        "factor of integers", TypeError, "factors[2] has dtype int64", "expected float64",
        factors=replaced(2, np.ones((10, 4), np.int64)),
    ),
    case(
        "factor of the mode complex", TypeError, "factors[0] has dtype complex128",
        "expected float64", factors=replaced(0, np.ones((30, 4), complex)),
    ),
    case(
        "factor a list", TypeError, "factors[1] is a builtins.list", "numpy.ndarray",
        "device of x", factors=replaced(1, [[1.0] * 4] * 20),
    ),
    case(
        "factor sparse", TypeError, "factors[1] is a", "numpy.ndarray", "device of x",
        factors=replaced(1, sparse.COO.from_numpy(np.ones((20, 4)))),
    ),
    case("weights a list", (TypeError, ValueError), "weights is a list", weights=[1.0] * 4),
    case(
        "weights too many", ValueError, "weights", "(5,)", "expected", "(4,)",
        weights=np.ones(5),
    ),
    case("weights a matrix", ValueError, "weights", "(1, 4)", weights=np.ones((1, 4))),
    case(
        "weights in float32", TypeError, "weights", "float32", "expected", "float64",
        weights=np.ones(4, np.float32),
    ),
    case("out a list", TypeError, "out is a list", "ndarray", out=[[0.0] * 4] * 30),
    case("out too small", ValueError, "out has shape (29, 4)", "(30, 4)", out=BUFFER[:29]),
    case(
        "out in float32", ValueError, "out has", "float32", "expected", "float64",
        out=np.full((30, 4), 7, np.float32),
    ),
    case(
        "out in F order", ValueError, "out", "C-contiguous",
        out=np.asfortranarray(BUFFER[:30]),
    ),
    case("out with gaps", ValueError, "out", "C-contiguous", out=np.full((60, 4), 7.0)[::2]),
    case(
        "out is a factor", ValueError, "out overlaps factors[1]", out=BUFFER[:30],
        factors=replaced(1, BUFFER[:20]),
    ),
    case(
        "out overlaps a factor in part", ValueError, "out overlaps factors[2]",
        out=BUFFER[:30], factors=replaced(2, BUFFER[29:39]),
    ),
    case(
        "out overlaps the weights", ValueError, "out overlaps weights", out=BUFFER[:30],
        weights=BUFFER[29],
    ),
]  # fmt: skip


@pytest.mark.usual_limits("slabs")
@pytest.mark.parametrize(("arguments", "error", "parts"), BAD_ARGUMENTS)
def test_bad_arguments_of_mttkrp(x, arguments, error, parts):
    """`out` keeps its contents, and the tensor still gives correct results."""
    resident = x._layout.mode
    out = arguments.setdefault("out", np.full((30, 4), 7.0))
    with raises(error, *parts):
        mttkrp(x, **{"factors": PROBLEM.factors, "mode": 0, **arguments})
    assert (np.asarray(out) == (0 if isinstance(out, list) else 7)).all()
    assert (BUFFER == 7).all()
    assert x._layout.mode == resident
    PROBLEM.check_tensor(x)


def test_read_only_out(x):
    out = np.full((30, 4), 7.0)
    out.flags.writeable = False
    with raises(ValueError, "out", "read-only"):
        mttkrp(x, PROBLEM.factors, 0, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("rank", "error", "parts"),
    [
        (0, ValueError, ["rank is 0", "expected at least 1"]),
        (-2, ValueError, ["rank is -2", "expected at least 1"]),
        (1.5, TypeError, ["rank is 1.5", "expected an integer"]),
        ("2", TypeError, ["rank is '2'", "expected an integer"]),
    ],
)
def test_bad_rank(rank, error, parts):
    with raises(error, *parts):
        planted_tensor((3, 4), rank, 2)


# DensifyError


def test_densify_error_has_its_public_name():
    error = densify_error("np.asarray", (3, 4), "use x.to_coo()")
    assert f"{DensifyError.__module__}.{DensifyError.__name__}" == "tensorly_flycoo.DensifyError"
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is DensifyError
    assert restored.args == error.args


def test_densify_error_names_a_forgotten_backend():
    with tl.backend_context("numpy"):
        message = str(densify_error("np.asarray", (3, 4), "use x.to_coo()"))
    assert message == (
        "np.asarray would make a dense array of shape (3, 4); use x.to_coo(); "
        "TensorLy's backend is 'numpy': call tl.set_backend(\"flycoo\")"
    )


def test_densify_error_under_flycoo_has_no_hint():
    with tl.backend_context("flycoo"):
        message = str(densify_error("np.asarray", (3, 4), "use x.to_coo()"))
    assert message == "np.asarray would make a dense array of shape (3, 4); use x.to_coo()"


@pytest.mark.parametrize(
    "loaded",
    [{}, {"tensorly": None}, {"tensorly": types.ModuleType("tensorly")}],
    ids=["not imported", "cannot be imported", "half imported"],
)
def test_densify_error_without_tensorly(monkeypatch, loaded):
    monkeypatch.delitem(sys.modules, "tensorly")
    for name, module in loaded.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert str(densify_error("np.asarray", (3, 4), "use x.to_coo()")).endswith("use x.to_coo()")


# Devices


@pytest.fixture
def no_choice_yet(monkeypatch):
    monkeypatch.setattr(engines, "_chosen_device", None)
    monkeypatch.delenv("TENSORLY_FLYCOO_DEVICE", raising=False)
    engines._has_gpu.cache_clear()
    yield
    engines._has_gpu.cache_clear()


@pytest.fixture
def without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


class CudaError(RuntimeError):
    """A stand-in for CuPy's CUDARuntimeError, which has a status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


NO_DEVICE = CudaError(100, "cudaErrorNoDevice: no CUDA-capable device is detected")
INSUFFICIENT_DRIVER = CudaError(
    35,
    "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
)


class LibraryNotFoundError(RuntimeError):
    """A stand-in for CuPy's error when cuda.pathfinder does not find a library."""


@pytest.fixture
def with_cupy(monkeypatch):
    """Return a function that installs a fake CuPy with some GPUs, or with an error."""

    def answer(result):
        def function():
            if isinstance(result, Exception):
                raise result
            return result

        return function

    def install(num_gpus, driver_version=13000, nvrtc_version=(13, 0)):
        runtime = types.SimpleNamespace(
            getDeviceCount=answer(NO_DEVICE if num_gpus is None else num_gpus),
            driverGetVersion=answer(driver_version),
            runtimeGetVersion=answer(13020),
            CUDARuntimeError=CudaError,
        )
        nvrtc = types.SimpleNamespace(getVersion=answer(nvrtc_version))
        cupy = types.ModuleType("cupy")
        cupy.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
        cupy.cuda = types.SimpleNamespace(runtime=runtime, nvrtc=nvrtc)
        monkeypatch.setitem(sys.modules, "cupy", cupy)

    return install


def make_on(device):
    return FlycooTensor(COORDS, VALUES, SHAPE, device=device)


CHOOSERS = pytest.mark.parametrize(
    "choose", [tensorly_flycoo.set_device, make_on], ids=["set_device", "FlycooTensor"]
)


@CHOOSERS
def test_cuda_without_cupy(choose, no_choice_yet, without_cupy):
    with raises(ImportError, "cuda", "CuPy", "not installed", 'pip install "tensorly-flycoo[cuda'):
        choose("cuda")


@CHOOSERS
def test_cuda_without_a_gpu(choose, no_choice_yet, with_cupy):
    with_cupy(None)
    with raises(RuntimeError, "cuda", "GPU", "no CUDA-capable device is detected"):
        choose("cuda")


@CHOOSERS
def test_cuda_if_cupy_finds_no_gpu(choose, no_choice_yet, with_cupy):
    with_cupy(0)
    with raises(RuntimeError, "cuda", "GPU", "finds none"):
        choose("cuda")


@CHOOSERS
def test_cuda_with_an_old_driver(choose, no_choice_yet, with_cupy):
    with_cupy(INSUFFICIENT_DRIVER, driver_version=12040)
    parts = ["supports CUDA 12.4", "CuPy uses CUDA 13.2", "driver 580", "525", "[cuda12x]"]
    with raises(RuntimeError, "cuda", "newer NVIDIA driver", *parts):
        choose("cuda")


@CHOOSERS
def test_cuda_without_a_driver(choose, no_choice_yet, with_cupy):
    """CUDA then reports an old driver, with version 0."""
    with_cupy(INSUFFICIENT_DRIVER, driver_version=0)
    with raises(RuntimeError, "cuda", "NVIDIA driver, but none is installed", "driver 580", "525"):
        choose("cuda")


@CHOOSERS
def test_cuda_without_nvrtc(choose, no_choice_yet, with_cupy):
    with_cupy(1, nvrtc_version=LibraryNotFoundError("No such file: libnvrtc.so.13\n"))
    parts = ['pip install "tensorly-flycoo[cuda13x]" (or [cuda12x])', "libnvrtc.so.13"]
    with raises(RuntimeError, "cuda", "NVRTC", *parts):
        choose("cuda")


def test_auto_without_nvrtc_uses_the_cpu_and_says_why(no_choice_yet, with_cupy, caplog):
    with_cupy(1, nvrtc_version=LibraryNotFoundError("No such file: libnvrtc.so.13\n"))
    assert make_on("auto").device == "cpu"
    (record,) = caplog.records
    assert "so the CPU is used" in record.message
    assert "pip install" in record.message


@pytest.mark.parametrize("num_gpus", [0, None])
def test_auto_without_a_gpu_uses_the_cpu(no_choice_yet, with_cupy, num_gpus):
    with_cupy(num_gpus)
    assert make_on("auto").device == make_on(None).device == "cpu"


def test_auto_says_why_cupy_finds_no_gpu(no_choice_yet, with_cupy, caplog, monkeypatch):
    with_cupy(None)
    make_on("auto"), make_on("auto")
    (record,) = caplog.records
    assert "CPU" in record.message
    assert "no CUDA-capable device is detected" in record.message


@CHOOSERS
def test_unknown_device(choose, no_choice_yet):
    with raises(ValueError, "device is 'gpu'", "'auto'", "'cpu'", "'cuda'"):
        choose("gpu")


@pytest.mark.parametrize(("device", "error"), [("cuda", ImportError), ("tpu", ValueError)])
def test_a_refused_device_keeps_the_previous_choice(
    no_choice_yet, without_cupy, monkeypatch, device, error
):
    """The environment names another device, so a lost choice would show."""
    tensorly_flycoo.set_device("cpu")
    monkeypatch.setenv("TENSORLY_FLYCOO_DEVICE", "cuda")
    with pytest.raises(error, match=device):
        tensorly_flycoo.set_device(device)
    assert make_on(None).device == "cpu"


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_valid_devices(no_choice_yet, without_cupy, monkeypatch, device):
    assert make_on(device).device == "cpu"
    monkeypatch.setenv("TENSORLY_FLYCOO_DEVICE", device)
    assert make_on(None).device == "cpu"
    tensorly_flycoo.set_device(device)
    assert make_on(None).device == "cpu"


def test_environment_names_an_unknown_device(no_choice_yet, monkeypatch):
    monkeypatch.setenv("TENSORLY_FLYCOO_DEVICE", "gpu")
    with raises(ValueError, "TENSORLY_FLYCOO_DEVICE is 'gpu'", "'cpu'"):
        make_on(None)
    assert make_on("cpu").device == "cpu"


def test_environment_names_cuda_without_cupy(no_choice_yet, without_cupy, monkeypatch):
    """The device never changes silently."""
    monkeypatch.setenv("TENSORLY_FLYCOO_DEVICE", "cuda")
    with raises(ImportError, "CuPy", "pip install"):
        make_on(None)


# Unusual but valid input


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "nnz", "rank"),
    [
        pytest.param((3, 4, 5), 0, 3, id="no nonzeros"),
        pytest.param((3, 4, 5), 1, 3, id="one nonzero"),
        pytest.param((1, 4, 1), 3, 3, id="modes of size 1"),
        pytest.param((1, 1, 1), 1, 3, id="one cell"),
        pytest.param((1000, 900, 800), 5, 3, id="empty rows"),
        pytest.param((6,), 4, 3, id="one mode"),
        pytest.param((1,), 1, 3, id="one mode of size 1"),
        pytest.param((3, 4, 5), 20, 8, id="rank above every size"),
    ],
)
def test_valid_edge_cases(shape, nnz, rank, dtype):
    problem = make_problem(shape, nnz, rank, dtype)
    x = problem.tensor()
    assert (x.shape, x.ndim, x.dtype) == (shape, len(shape), dtype)
    problem.check_tensor(x)


@pytest.mark.parametrize("coords", [[[], []], np.zeros((2, 0), np.int32)], ids=["lists", "array"])
def test_no_nonzeros_in_any_form(coords):
    x = FlycooTensor(coords, [], SHAPE)
    assert (x.nnz, x.dtype, x.shape) == (0, np.float64, SHAPE)
    assert mttkrp(x, [np.ones((3, 2)), np.ones((4, 2))], 1).tolist() == [[0, 0]] * 4


@pytest.mark.parametrize(
    "index_type", [int, np.int8, np.uint64, np.array], ids=lambda t: t.__name__
)
def test_integers_of_any_kind(index_type):
    x = FlycooTensor(COORDS, VALUES, tuple(index_type(size) for size in SHAPE))
    assert x.shape == SHAPE
    assert all(type(size) is int for size in x.shape)
    factors = [np.ones((3, 2)), np.ones((4, 2))]
    assert mttkrp(x, factors, index_type(0)).tolist() == [[1, 1], [2, 2], [0, 0]]
