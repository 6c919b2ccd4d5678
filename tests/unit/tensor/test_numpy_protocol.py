"""NumPy's functions of a sparse tensor that keep zero, against those of dense arrays."""

import operator

import numpy as np
import pytest
import scipy.special
from problems import Problem
from small_tensors import make_dense, make_tensor, to_dense

from tensorly_flycoo import DensifyError, FlycooTensor, mttkrp

LAYOUTS = pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])


def find_ufuncs():
    """List NumPy's ufuncs of one argument that keep zero, and those that do not."""
    kept, others = [], []
    for name in sorted(set(dir(np))):
        ufunc = getattr(np, name)
        if (
            isinstance(ufunc, np.ufunc)
            and (ufunc.nin, ufunc.nout) == (1, 1)
            and "d->" in str(ufunc.types)
        ):
            with np.errstate(all="ignore"):
                (kept if ufunc(0.0) == 0 else others).append(ufunc)
    return dict.fromkeys(kept), dict.fromkeys(others)


KEPT, OTHERS = find_ufuncs()


def test_all_ufuncs_are_found():
    assert {np.sqrt, np.log1p, np.expm1, np.sin, np.tanh, np.floor, np.sign, np.fabs} <= set(KEPT)
    assert {np.exp, np.log, np.cos, np.reciprocal} <= set(OTHERS)


@pytest.mark.parametrize("ufunc", KEPT, ids=lambda ufunc: ufunc.__name__)
def test_ufuncs_that_keep_zero(ufunc):
    dense = np.abs(make_dense()) / 5  # in the domain of all of them
    y = ufunc(make_tensor(dense))
    assert y.dtype == np.float64
    np.testing.assert_array_equal(to_dense(y), ufunc(dense))


@pytest.mark.parametrize("ufunc", OTHERS, ids=lambda ufunc: ufunc.__name__)
def test_ufuncs_that_do_not(ufunc):
    with pytest.raises(DensifyError, match=rf"numpy.{ufunc.__name__}\(0\) is .*, not 0; for the"):
        ufunc(make_tensor(make_dense()))


FUNCTIONS = {
    "log1p": np.log1p,
    "floor": np.floor,
    "minimum": lambda x: np.minimum(x, 2),
    "greater": lambda x: np.greater(x, np.float64(1)),
    "erf": scipy.special.erf,
}


@LAYOUTS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_modes_computed", [0, 2])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_layouts(function, num_modes_computed, dtype, layout):
    """The result has the layout, device and dtype, a norm, and works in MTTKRP."""
    dense = np.abs(make_dense(dtype)) / np.array(3, dtype)
    x = make_tensor(dense, layout=layout)
    factors = [np.ones((size, 3), dtype) for size in x.shape]
    for mode in range(num_modes_computed):
        mttkrp(x, factors, mode)
    y, expected = function(x), function(dense).astype(dtype)
    np.testing.assert_array_equal(to_dense(y), expected)
    np.testing.assert_array_equal(to_dense(x), dense)
    assert (y.layout, y.device, y.dtype, y.shape) == (layout, "cpu", dtype, x.shape)
    assert abs(y.norm() - np.linalg.norm(expected)) <= 4 * np.finfo(dtype).eps * y.norm()
    coords = np.array(np.nonzero(expected))
    Problem(coords, expected[tuple(coords)], expected.shape, factors).check_tensor(y)


@LAYOUTS
def test_the_norm_has_the_same_bits_in_any_resident_mode(layout):
    dense = np.abs(np.random.default_rng(0).random((9, 8, 7)))
    x = make_tensor(dense, layout=layout)
    norm = np.sqrt(x).norm()
    mttkrp(x, [np.ones((size, 2)) for size in x.shape], 0)
    assert np.sqrt(x).norm() == norm == make_tensor(np.sqrt(dense)).norm()


def test_functions_of_ones_own():
    x = make_tensor(make_dense())
    y = x.map(lambda values: values**3 - values)
    np.testing.assert_array_equal(to_dense(y), make_dense() ** 3 - make_dense())


def test_a_function_cannot_change_the_tensor():
    x = make_tensor(make_dense())
    y = x.map(lambda values: np.multiply(values, 2, out=values))
    np.testing.assert_array_equal(to_dense(y), 2 * make_dense())
    np.testing.assert_array_equal(to_dense(x), make_dense())


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        pytest.param(lambda v: v + 1, DensifyError, r"\(0\) is 1.0, not 0", id="one"),
        pytest.param(lambda v: v / v, DensifyError, r"\(0\) is nan, not 0", id="nan"),
        pytest.param(np.sum, TypeError, "sum returned a float64 array of .*elementwise", id="sum"),
        pytest.param(lambda v: 0, TypeError, "returned a int, expected an array", id="number"),
        pytest.param(lambda v: v + 0j, TypeError, "returned a complex128", id="complex"),
        pytest.param(lambda v: [*v], TypeError, "returned a list", id="list"),
        pytest.param(np.sqrt, ValueError, "nan, expected finite numbers", id="not finite"),
    ],
)
def test_wrong_functions(function, error, message):
    with pytest.raises(error, match=message):
        make_tensor(make_dense()).map(function)


def test_results_beyond_float32():
    x = FlycooTensor([[0]], [1e30], (2,), dtype="float32")
    with pytest.raises(ValueError, match="expected finite numbers"):
        x.map(lambda values: values.astype(float) ** 2)


def test_no_nonzeros():
    x = FlycooTensor([[], []], [], (2, 3))
    assert np.sqrt(x).nnz == 0
    assert np.sqrt(x).norm() == 0


def test_other_options_are_refused():
    x = make_tensor(make_dense())
    with pytest.raises(DensifyError, match=r"numpy.std .* x.map\(function\) does if it"):
        np.std(x)
    with pytest.raises(DensifyError, match=r"numpy.clip\(0\) is 1.0, not 0"):
        np.clip(x, 1, 2)
    with pytest.raises(TypeError, match=r"numpy.norm of a FlycooTensor has no option 'axis'"):
        np.linalg.norm(x, axis=0)
    with pytest.raises(TypeError, match=r"numpy.sum of a FlycooTensor has no option 'keepdims'"):
        np.sum(x, axis=0, keepdims=True)
    for use in (lambda: np.sqrt(x, dtype="float32"), lambda: np.modf(x), lambda: np.fmax(x, x)):
        with pytest.raises(DensifyError):
            use()


COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@pytest.mark.parametrize("operate", [*COMPARISONS, operator.floordiv, operator.mod])
@pytest.mark.parametrize("number", [2, 2.0, np.float64(2), np.int8(2), np.float32(2), 0, -1.0])
def test_operators_with_numbers_are_elementwise(operate, number):
    """They are those of NumPy for numbers of Python and NumPy alike, or are refused."""
    dense = np.abs(make_dense())
    with np.errstate(all="ignore"):
        at_zero = operate(np.float64(0), number)
    if at_zero == 0:
        np.testing.assert_array_equal(
            to_dense(operate(make_tensor(dense), number)), operate(dense, number)
        )
    else:
        with pytest.raises(DensifyError):
            operate(make_tensor(dense), number)


def test_tensors_are_compared_by_identity():
    x, y = make_tensor(make_dense()), make_tensor(make_dense())
    assert x == x
    assert x != y
    assert x != None  # noqa: E711
    assert {x: 1}[x] == 1
    assert y not in [x]


@pytest.mark.parametrize(
    "operate",
    [operator.mul, operator.truediv, operator.pow, operator.gt, lambda x, number: number * x],
)
def test_longdouble(operate):
    x, number = make_tensor(np.abs(make_dense())), np.longdouble(2)
    np.testing.assert_array_equal(to_dense(operate(x, number)), to_dense(operate(x, 2.0)))
    with pytest.raises(DensifyError):
        number + x


@pytest.mark.parametrize(
    "use",
    [
        lambda x: np.transpose(x, axes=(1, 0, 2)),
        lambda x: np.transpose(a=x),
        lambda x: np.sum(a=x, axis=(0, 2)),
        lambda x: np.clip(x, -1, 1),
        lambda x: np.clip(x, -1, None),
        lambda x: np.round(x / 7, 1),
        lambda x: np.linalg.norm(x),
        lambda x: x - x.to_coo() if isinstance(x, FlycooTensor) else x - x,
    ],
)
def test_other_functions_of_numpy(use):
    found, expected = use(make_tensor(make_dense())), use(make_dense())
    found = to_dense(found) if isinstance(found, FlycooTensor) else found
    np.testing.assert_allclose(found, expected, rtol=1e-15)
