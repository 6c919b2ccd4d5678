"""Operations that would densify fail fast; errors name bad input; edge cases work."""

import importlib.util
import operator
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sparse
import supported_table
import tensorly as tl
from sparse_problems import (
    AS_COO,
    AS_FLYCOO,
    BOTH_KINDS,
    dense_of,
    densification_alarm,
    random_coo,
    reconstruct,
)
from tensorly.decomposition import CP, parafac
from tensorly.preprocessing import svd_compress_tensor_slices

import tensorly_flycoo
from tensorly_flycoo import DensifyError, FlycooTensor
from tensorly_flycoo.engines.cpu.engine import CpuEngine


@pytest.fixture(autouse=True)
def backend(flycoo_backend):
    """Run all of these tests under "flycoo"."""


def _huge_coo():
    """Make a COO of 2**70 cells, which pydata/sparse takes only sorted and without duplicates."""
    coords = np.sort(np.random.RandomState(0).randint(0, 2**14, (5, 50)), axis=1)
    return sparse.COO(coords, np.ones(50), shape=(2**14,) * 5, sorted=True, has_duplicates=False)


def _small_coo():
    return random_coo((6, 7, 8), 50)  # fewer nonzeros than modes 1 and 2 have cells


_BY_SIZE = pytest.mark.parametrize("make_coo", [_small_coo, _huge_coo], ids=["small", "2**70"])


def _singular_part(x, part):
    return list(tl.svd(tl.unfold(x, 0), full_matrices=False))[part]


#: Refused operations, and what the message names.
_ON_ANY = {
    "tl.to_numpy": (tl.to_numpy, "to_numpy"),
    "tl.reshape": (lambda x: tl.reshape(x, (2, -1)), "reshape"),
    "tl.tensor_to_vec": (lambda x: np.asarray(tl.tensor_to_vec(x)), "ModeView"),
    "tl.transpose": (lambda x: np.asarray(tl.transpose(x)), "ModeView"),
    "tl.moveaxis": (lambda x: tl.exp(tl.moveaxis(x, 0, 1)), "exp"),
    "tl.prod": (tl.prod, "prod"),
    "tl.where": (lambda x: tl.where(x, 1, 0), "where"),
    "tl.stack": (lambda x: tl.stack([x, x]), "stack"),
    "tl.index_update": (lambda x: tl.index_update(x, tl.index[0], 1), "index_update"),
    "tl.svd of a tensor": (lambda x: tl.svd(x, full_matrices=False), "svd"),
    "tl.dot": (lambda x: tl.dot(x, np.ones(x.shape[-1])), "dot"),
    "tl.dot of vectors": (
        lambda x: tl.dot(tl.tensor_to_vec(x), tl.tensor_to_vec(x)),
        r"tl\.tenalg\.inner",
    ),
    "dense @ unfolded": (lambda x: np.ones((2, x.shape[0])) @ tl.unfold(x, 0), "Unfolding"),
    "transposed @ dense": (lambda x: tl.transpose(tl.unfold(x, 0)) @ np.ones(x.shape[0]), "View"),
    "unfolded @ unfolded": (
        lambda x: tl.dot(tl.unfold(x, 0), tl.transpose(tl.unfold(x, 0))),
        "Unfolding",
    ),
    "tl.zeros_like": (tl.zeros_like, "zeros_like"),
    "unfolded": (lambda x: np.asarray(tl.unfold(x, 0)), "Unfolding"),
    "unfolded + 1": (lambda x: tl.unfold(x, 0) + np.ones(1), "Unfolding"),
    "left vectors": (lambda x: np.asarray(_singular_part(x, 0)), "LeftVectors"),
    "right vectors": (lambda x: np.asarray(_singular_part(x, 2)[:2, :]), "RightVectors"),
    "symeig_svd": (lambda x: parafac(x, 2, svd="symeig_svd"), "a product with"),
    "sparsity": (lambda x: parafac(x, 2, init="random", sparsity=0.5), "sparsity"),
    "CP sparsity": (lambda x: CP(2, init="random", sparsity=5).fit(x), "sparsity"),
    "tl.tenalg.mode_dot": (
        lambda x: tl.tenalg.mode_dot(x, np.ones((2, x.shape[0])), 0),
        "all modes but 1 and 2",
    ),
    "tl.tenalg.inner": (lambda x: tl.tenalg.inner(x, x, n_modes=1), "inner"),
    "tl.tenalg.outer": (lambda x: tl.tenalg.outer([x, x]), "ModeView"),
    "tl.tenalg.batched_outer": (lambda x: tl.tenalg.batched_outer([x, x]), "ModeView"),
    "tl.tenalg.kronecker": (lambda x: tl.tenalg.kronecker([x, x]), "kron"),
    "tl.tenalg.khatri_rao": (lambda x: tl.tenalg.khatri_rao([x, x]), "khatri_rao"),
    "tl.tenalg.tensordot": (lambda x: tl.tenalg.tensordot(x, x, ([0], [0])), "View|Unfolding"),
    "tucker mask": (lambda x: tl.decomposition.tucker(x, [2] * x.ndim, mask=x), "mask"),
    "a core with two modes left out": (
        lambda x: tl.decomposition.partial_tucker(x, [2], modes=[0]),
        "all modes but 1 and 2",
    ),
    "tensor_train": (
        lambda x: tl.decomposition.tensor_train(x, 2),
        "use tl.decomposition.tucker",
    ),
}
_ON_FLYCOO_TENSORS = {
    "np.asarray": (np.asarray, "asarray"),
    "np.array": (lambda x: np.array(x, dtype=np.float32), "array"),
    "x - dense": (lambda x: x - np.ones(x.shape[-1]), "FlycooTensor - array"),
    "dense - x": (lambda x: np.ones(x.shape[-1]) - x, "subtract"),
    "x * dense": (lambda x: x * np.ones(x.shape[-1]), "multiply"),
    "x + 1": (lambda x: x + 1, r"FlycooTensor \+ 1 .*log1p"),
    "1 - x": (lambda x: 1 - x, "array - FlycooTensor"),
    "x += 1": (lambda x: operator.iadd(x, 1), r"FlycooTensor \+ 1"),
    "np.exp": (np.exp, "exp"),
    "np.add.reduce": (np.add.reduce, "add"),
    "np.prod": (np.prod, "prod"),
    "np.where": (lambda x: np.where(x, 1, 0), "where"),
    "np.einsum": (lambda x: np.einsum("...->", x), "einsum"),
}

#: It draws a matrix as long as an unfolding before it looks at the tensor.
_NOT_AT_ONCE = {"tensor_train_cross"}

#: The functions and classes with "no" in the table of docs/supported.md.
_DENSE_BY_NATURE = [
    (row, name)
    for row in supported_table.ROWS
    for name in row.uses
    if row.why_not and name.rpartition(".")[2] not in _NOT_AT_ONCE
]


def _vast_coo():
    """Make a COO of three equal modes, whose cells would take 16 PiB."""
    coords = np.sort(np.random.RandomState(0).randint(0, 2**17, (3, 50)), axis=1)
    return sparse.COO(coords, np.ones(50), (2**17,) * 3, sorted=True, has_duplicates=False)


@BOTH_KINDS
@pytest.mark.parametrize(("row", "name"), _DENSE_BY_NATURE, ids=[n for _, n in _DENSE_BY_NATURE])
def test_inherently_dense_functions_are_refused_at_any_size(row, name, kind):
    function, x = supported_table.find_function(name), kind(_vast_coo())
    with densification_alarm(allow_refusals=True):
        _check_refused(lambda x: row.uses[name](function, x), x, "would make a dense array")


def test_dense_tensors_are_not_refused():
    dense = dense_of(_small_coo())
    assert tl.decomposition.robust_pca(dense, n_iter_max=2, verbose=False)[0].shape == dense.shape
    assert tl.metrics.MSE(dense, dense) == 0


def test_a_huge_khatri_rao_product_is_refused():
    with pytest.raises(MemoryError, match=r"khatri_rao of shape .*cp_to_entries"):
        tl.tenalg.khatri_rao([np.ones((2**14, 2))] * 5)


def test_products_under_another_backend_are_left_alone(monkeypatch):
    matrices = [np.ones((9, 2))] * 3
    monkeypatch.setattr("tensorly_flycoo.tensor.dense_memory.SURELY_FREE_NBYTES", 0)
    monkeypatch.setattr(CpuEngine, "count_free_nbytes", lambda engine: 1)
    with pytest.raises(MemoryError, match="khatri_rao of shape"):
        tl.tenalg.khatri_rao(matrices)
    with tl.backend_context("numpy"):
        assert tl.tenalg.khatri_rao(matrices).shape == (729, 2)


@pytest.mark.parametrize("tenalg", ["core", "einsum"])
@pytest.mark.parametrize("sizes", [(2**14,) * 5, (2**18, 2**18, 3), (2**20, 2**20)], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        tl.cp_to_tensor,
        tl.cp_tensor.cp_to_vec,
        lambda cp: tl.cp_tensor.cp_to_unfolded(cp, 1),
        lambda cp: tl.cp_tensor.CPTensor(cp).to_tensor(),
    ],
    ids=["cp_to_tensor", "cp_to_vec", "cp_to_unfolded", "to_tensor"],
)
def test_a_huge_tensor_of_a_cp_is_refused(make, sizes, tenalg):
    before = tl.tenalg.get_backend()
    tl.tenalg.set_backend(tenalg)
    message = r"of shape .* needs more memory .* GB; .* is free\. tensorly_flycoo\.cp_to_entries"
    try:
        with pytest.raises(MemoryError, match=message):
            make((None, [np.ones((size, 2)) for size in sizes]))
    finally:
        tl.tenalg.set_backend(before)


def test_a_callback_that_makes_a_huge_tensor_is_told_so():
    """The error is not taken for parafac's own."""
    options = {"init": "random", "callback": lambda cp, error: tl.cp_to_tensor(cp)}
    with pytest.raises(MemoryError, match=r"^tl\..* of shape .*cp_to_entries"):
        parafac(_huge_coo(), 2, **options)


def test_a_lazy_view_names_its_remedy():
    with pytest.raises(TypeError, match=r"x is a ModeView, .*; tl\.tensor makes it"):
        parafac(tl.transpose(_small_coo()), 2, init="random")
    parafac(tl.tensor(tl.transpose(_small_coo())), 2, n_iter_max=1)


def test_tensors_of_a_cp_that_fit_have_the_same_bits():
    factors = [np.random.RandomState(0).random_sample((size, 3)) for size in (5, 6, 7)]
    found = tl.cp_to_tensor((None, factors))
    with tl.backend_context("numpy"):
        np.testing.assert_array_equal(found, tl.cp_to_tensor((None, factors)))


@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac", "tucker"])
def test_scipy_sparse_is_refused_at_once(name):
    matrix = scipy.sparse.coo_array(np.eye(5))
    with pytest.raises(TypeError, match=r"FlycooTensor\.from_scipy\(x\)"):
        getattr(tl.decomposition, name)(matrix, 2)
    with pytest.raises(TypeError, match=r"FlycooTensor\.from_scipy\(x\)"):
        tl.exp(matrix)
    assert isinstance(tl.tensor(matrix), FlycooTensor)


@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac", "tucker"])
def test_a_table_is_refused_at_once(name):
    table = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    for call in (getattr(tl.decomposition, name), tensorly_flycoo.select_rank):
        with pytest.raises(TypeError, match=r"x is a DataFrame, .*from_dataframe\(x, columns\)"):
            call(table, [2])


def test_an_array_of_finch_is_refused():
    array = type("Tensor", (), {"__module__": "finch.tensor"})()  # Finch needs Julia
    with tl.backend_context("flycoo"), pytest.raises(TypeError, match=r"without .*SPARSE_BACKEND"):
        tl.decomposition.parafac(array, 2)


class DataArray:
    """Stands for that of xarray, which is not installed."""


DataArray.__module__ = "xarray.core.dataarray"


@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac", "tucker"])
@pytest.mark.parametrize(
    ("x", "instead"),
    [
        (DataArray(), r"pass .*from_xarray\(x\)"),
        (pd.Series([1.0], [("a", "b")]), r"from_dataframe\(x\.reset_index\(\), columns, values\)"),
    ],
)
def test_labelled_arrays_are_refused_at_once(name, x, instead):
    with pytest.raises(TypeError, match=instead):
        getattr(tl.decomposition, name)(x, [2])


def test_a_callback_that_only_our_function_takes():
    name, x = "non_negative_parafac_hals", _small_coo()
    with pytest.raises(TypeError, match=rf"'callback': tensorly_flycoo.decomposition.{name} takes"):
        tl.decomposition.non_negative_parafac_hals(x, 2, callback=print)
    with pytest.raises(TypeError, match=rf"{name} got an unexpected .* 'calback'$"):
        tl.decomposition.non_negative_parafac_hals(x, 2, calback=print)


def test_an_initial_guess_of_another_rank():
    x = _small_coo()
    guess = (None, [np.ones((size, 3)) for size in x.shape])
    with pytest.raises(ValueError, match=r"init has shape .*, 3.*: init must have the rank 4"):
        parafac(x, 4, init=guess)


def _check_refused(function, x, named):
    computes = AssertionError("computes before it refuses")
    with (
        mock.patch.object(CpuEngine, "mttkrp", side_effect=computes),
        pytest.raises(DensifyError, match=named) as caught,
    ):
        function(x)
    assert ";" in str(caught.value)  # what to use instead follows


@_BY_SIZE
@BOTH_KINDS
@pytest.mark.parametrize(("function", "named"), _ON_ANY.values(), ids=_ON_ANY)
def test_densifying_operations_are_refused(function, named, kind, make_coo):
    x = kind(make_coo())
    with densification_alarm(allow_refusals=True):
        _check_refused(function, x, named)


@_BY_SIZE
@pytest.mark.parametrize(("function", "named"), _ON_FLYCOO_TENSORS.values(), ids=_ON_FLYCOO_TENSORS)
def test_densifying_operations_of_a_flycoo_tensor_are_refused(function, named, make_coo):
    _check_refused(function, FlycooTensor.from_coo(make_coo()), named)


_WITH_MASK = {
    "random": {"init": "random"},
    "svd": {},
    "tol=0": {"init": "random", "tol": 0},
    "callback": {"init": "random", "callback": lambda cp, error: None},
    "linesearch": {"init": "random", "linesearch": True},
}


@_BY_SIZE
@BOTH_KINDS
@pytest.mark.parametrize("kind_of_mask", [AS_COO, AS_FLYCOO])
@pytest.mark.parametrize("options", _WITH_MASK.values(), ids=_WITH_MASK)
def test_a_mask_of_the_observed_entries_is_refused(options, kind_of_mask, kind, make_coo):
    mask = kind_of_mask(make_coo())
    _check_refused(
        lambda x: parafac(x, 2, mask=mask, **options), kind(make_coo()), "observed_parafac"
    )


@_BY_SIZE
@BOTH_KINDS
def test_a_mask_and_a_sparse_component_are_refused_together(kind, make_coo):
    coo = make_coo()
    options = {"sorted": True, "has_duplicates": False, "fill_value": 1.0}
    mask = sparse.COO(coo.coords[:, :1], np.zeros(1), shape=coo.shape, **options)
    parafac(kind(coo), 2, init="random", n_iter_max=1, mask=mask)  # compiles, untimed
    _check_refused(
        lambda x: parafac(x, 2, init="random", mask=mask, sparsity=5), kind(coo), "sparsity"
    )


# Bad input


def _with_value(value, dtype=np.float64):
    coo = _small_coo()
    values = coo.data.astype(dtype)
    values[7] = value
    return sparse.COO(coo.coords, values, coo.shape, sorted=True, fill_value=np.zeros(1, dtype)[0])


_BAD_TENSORS = {
    "nan": (lambda: _with_value(np.nan), ValueError, r"\[7\] is nan"),
    "inf": (lambda: _with_value(np.inf), ValueError, r"\[7\] is inf"),
    "-inf float32": (lambda: _with_value(-np.inf, np.float32), ValueError, r"\[7\] is -inf"),
    "huge integer": (lambda: _with_value(2**60, np.int64), ValueError, r"2\*\*53"),
    "complex": (lambda: _small_coo().astype(np.complex128), TypeError, "complex128"),
    "object": (lambda: _with_value(1, object), TypeError, "object"),
    "float16": (lambda: _small_coo().astype(np.float16), TypeError, "float16"),
    "fill_value": (
        lambda: sparse.COO(np.zeros((3, 1), int), [2.0], shape=(6, 7, 8), fill_value=1.0),
        ValueError,
        "fill_value is 1.0, expected 0",
    ),
    "nan fill_value": (
        lambda: sparse.COO(np.zeros((3, 1), int), [2.0], shape=(6, 7, 8), fill_value=np.nan),
        ValueError,
        "fill_value is nan, expected 0",
    ),
}
_USES = {
    "tl.tensor": tl.tensor,
    "random": lambda coo: parafac(coo, 2, init="random", n_iter_max=2),
    "svd": lambda coo: parafac(coo, 2, n_iter_max=2),
}


@pytest.mark.parametrize("use", _USES.values(), ids=_USES)
@pytest.mark.parametrize(("make", "error", "named"), _BAD_TENSORS.values(), ids=_BAD_TENSORS)
def test_bad_tensors_are_named(make, error, named, use):
    with pytest.raises(error, match=named):
        use(make())


@BOTH_KINDS
@pytest.mark.parametrize("init", ["random", "svd"])
def test_rank_zero_is_an_error(init, kind):
    with pytest.raises(ValueError, match="rank is 0, expected at least 1"):
        parafac(kind(_small_coo()), 0, init=init)


@BOTH_KINDS
@pytest.mark.parametrize("init", ["random", "svd"])
def test_a_negative_rank_is_an_error(init, kind):
    with pytest.raises(ValueError, match="rank is -1, expected at least 1"):
        parafac(kind(_small_coo()), -1, init=init)


@pytest.mark.parametrize("sizes", [(6, 7, 9), (6, 7)], ids=["wrong size", "too few"])
@BOTH_KINDS
def test_init_of_the_wrong_shape_is_an_error(sizes, kind):
    start = tl.cp_tensor.CPTensor((None, [np.ones((size, 2)) for size in sizes]))
    with pytest.raises(ValueError, match="factors"):
        parafac(kind(_small_coo()), 2, init=start)


def test_init_of_another_precision_is_an_error():
    start = tl.cp_tensor.CPTensor((None, [np.ones((size, 2)) for size in (6, 7, 8)]))
    with pytest.raises(TypeError, match=r"factors\[.\] has dtype float64, expected float32"):
        parafac(_small_coo().astype(np.float32), 2, init=start)


def test_order_of_norm_is_named():
    for kwargs in ({"order": 0}, {"order": -np.inf}, {"order": "fro"}, {"axis": 0}):
        with pytest.raises(ValueError, match=r"tl\.norm .* expected a number above 0"):
            tl.norm(_small_coo(), **kwargs)


def test_tensorlys_own_refusal_of_partial_svd():
    with pytest.raises(NotImplementedError, match=r"use tensorly\.tenalg\.svd_interface instead"):
        tl.partial_svd(_small_coo(), 2)


def test_to_numpy_names_the_way_to_a_small_dense_array():
    small = tl.sum(_small_coo(), axis=0)
    with pytest.raises(DensifyError, match=r"tl\.tensor\(x\)\.to_coo\(\)\.todense\(\)"):
        tl.to_numpy(small)
    assert tl.tensor(small).to_coo().todense().shape == small.shape


def test_an_unknown_device_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("TENSORLY_FLYCOO_DEVICE", "tpu")
    with pytest.raises(ValueError, match="TENSORLY_FLYCOO_DEVICE is 'tpu', expected one of"):
        parafac(_small_coo(), 2, init="random")


@pytest.fixture
def no_cupy(monkeypatch):
    """Hide CuPy if it is installed."""

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "cupy" else find_spec(name, *a),
    )


@pytest.mark.usefixtures("no_cupy")
def test_cuda_without_cupy_says_what_to_install(monkeypatch):
    match = r"pip install .*tensorly-flycoo\[cuda1[23]x\]"
    with pytest.raises(ImportError, match=match):
        tensorly_flycoo.set_device("cuda")
    with pytest.raises(ImportError, match=match):
        FlycooTensor.from_coo(_small_coo(), device="cuda")
    monkeypatch.setenv("TENSORLY_FLYCOO_DEVICE", "cuda")
    with pytest.raises(ImportError, match=match):
        parafac(_small_coo(), 2, init="random")
    monkeypatch.undo()
    parafac(_small_coo(), 2, init="random", n_iter_max=1)  # the failed choice was not kept


# Valid edge cases

#: No unfolding has fewer columns than rows: if the rank is above both, TensorLy's own SVD start
#: makes too few columns, and factors that do not fit each other.
_EDGE_CASES = {
    "one nonzero": lambda: sparse.COO([[1], [2], [3]], [2.5], shape=(4, 5, 6)),
    "explicit zeros": lambda: sparse.COO([[1, 2], [2, 2], [3, 2]], [0.0, 1.0], shape=(4, 5, 6)),
    "sizes 1": lambda: random_coo((1, 7, 1, 7), 30),
    "all sizes 1": lambda: sparse.COO([[0], [0], [0]], [2.0], shape=(1, 1, 1)),
    "empty rows": lambda: sparse.COO(
        random_coo((4, 5, 6), 40).coords * 3, np.ones(40), (12, 15, 18)
    ),
    "full": lambda: random_coo((3, 4, 5), 60),
    "two modes": lambda: random_coo((8, 8), 30),
    "seven modes": lambda: random_coo((3, 2, 4, 2, 3, 2, 2), 100),
    "rank 1 data": lambda: sparse.COO(np.indices((3, 4, 5)).reshape(3, -1), np.ones(60), (3, 4, 5)),
    "cancels": lambda: sparse.COO([[0, 1], [0, 0], [0, 0]], [1.0, -1.0], shape=(2, 2, 2)),
    "tiny values": lambda: random_coo((4, 5, 6), 40) * 1e-150,
    "big values": lambda: random_coo((4, 5, 6), 40) * 1e70,
    "bools": lambda: random_coo((4, 5, 6), 40, np.bool_),
    "uint8": lambda: random_coo((4, 5, 6), 40, np.uint8),
    "float32": lambda: random_coo((4, 5, 6), 40, np.float32),
}
_EDGE_OPTIONS = {
    "svd": {},
    "randomized_svd": {"svd": "randomized_svd"},
    "random": {"init": "random"},
    "normalize": {"init": "random", "normalize_factors": True},
    "orthogonalise": {"init": "random", "orthogonalise": True},
    "callback": {"init": "random", "callback": lambda cp, error: None},
    "linesearch": {"init": "random", "linesearch": True},
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning:tensorly")  # error / norm where nnz is 0
@pytest.mark.filterwarnings("ignore:Trying to compute SVD")  # rank above the number of rows
@pytest.mark.parametrize("rank", [1, 8])
@pytest.mark.parametrize("options", _EDGE_OPTIONS.values(), ids=_EDGE_OPTIONS)
@pytest.mark.parametrize("make", _EDGE_CASES.values(), ids=_EDGE_CASES)
def test_edge_cases_run_to_finite_factors(make, options, rank):
    coo = make()
    with densification_alarm():
        cp_tensor, errors = parafac(
            coo, rank, random_state=0, n_iter_max=9, return_errors=True, **options
        )
    for factor, size in zip(cp_tensor.factors, coo.shape, strict=True):
        assert factor.shape == (size, rank)
        assert np.isfinite(factor).all()
    assert np.isfinite(cp_tensor.weights).all()
    if coo.nnz:
        # Zero factors have error 1, and least squares ends with nothing worse. On the way, systems
        # that are singular up to rounding may leave more, depending on the BLAS.
        assert errors[-1] <= 1 + 1e-6


@BOTH_KINDS
def test_an_empty_tensor_has_norm_zero_and_no_model(kind):
    x = kind(sparse.COO(np.zeros((3, 0), int), np.zeros(0), shape=(4, 5, 6)))
    assert tl.norm(x) == 0
    for options in _EDGE_OPTIONS.values():
        with pytest.raises(ValueError, match=r"tensor of shape \(4, 5, 6\) has no nonzeros"):
            parafac(x, 2, **options)


@BOTH_KINDS
@pytest.mark.parametrize("init", ["random", "svd"])
def test_one_nonzero_is_found_exactly(init, kind):
    x = kind(_EDGE_CASES["one nonzero"]())
    cp_tensor = parafac(x, 1, init=init, random_state=0, n_iter_max=3, tol=0)
    # Three least-squares steps with one unknown, each with three roundings.
    np.testing.assert_allclose(
        reconstruct(cp_tensor.factors), dense_of(x), rtol=9 * np.finfo(float).eps
    )
    assert [np.count_nonzero(factor) for factor in cp_tensor.factors] == [1, 1, 1]


@pytest.mark.parametrize("init", ["random", "svd"])
def test_rows_without_a_nonzero_are_zero(init):
    coo = _EDGE_CASES["empty rows"]()
    cp_tensor = parafac(coo, 3, init=init, random_state=0, n_iter_max=5)
    for factor, rows in zip(cp_tensor.factors, coo.coords, strict=True):
        empty = np.setdiff1d(np.arange(len(factor)), rows)
        assert empty.size
        assert (factor[empty] == 0).all()


def test_slices_are_not_compressed():
    with pytest.raises(DensifyError, match="parafac2 takes sparse slices as they are"):
        svd_compress_tensor_slices([random_coo((9, 5), 20)])


@pytest.mark.usefixtures("flycoo_backend")
def test_a_list_of_scipys_matrices_is_told_to_stack_them():
    slices = [scipy.sparse.random(5, 6, 0.3, format="csr", random_state=n) for n in range(3)]
    with pytest.raises(TypeError, match=r"x is a list, .*: pass sparse\.stack\(\[sparse\.COO\(a\)"):
        tl.decomposition.parafac(slices, 2)
