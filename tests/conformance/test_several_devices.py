"""TensorLy's loops on tensors spread over NumPy "devices", whose arrays never mix."""

import numpy as np
import pytest
import sparse
import tensorly as tl
from numpy_devices import DeviceArray, NumpyDevices
from problems import make_problem
from tensorly.cp_tensor import CPTensor
from tensorly.decomposition import (
    constrained_parafac,
    non_negative_parafac,
    non_negative_parafac_hals,
    parafac,
)

from tensorly_flycoo import (
    FlycooTensor,
    best_of,
    core_consistency,
    cp_fit,
    cp_to_entries,
    decomposition,
    diagnose,
    fold_in,
    mttkrp,
    observed_parafac,
    set_precision,
)
from tensorly_flycoo.decomposition import generalized_parafac
from tensorly_flycoo.engines.cpu.engine import CPU, CpuEngine
from tensorly_flycoo.engines.row_blocks import RowBlocks
from tensorly_flycoo.format import groups as groups_module
from tensorly_flycoo.ops.mttkrp import mttkrps
from tensorly_flycoo.spread.row_shards import RowShards
from tensorly_flycoo.spread.spread_layout import SpreadLayout
from tensorly_flycoo.testing import planted_tensor

SHAPE, RANK, NUM_SLABS = (30, 20, 40), 3, 6
COUNTS = (1, 2, 3, 5, 8)


def spread(x, count, monkeypatch, slabs=NUM_SLABS, layout="remap", groups="auto"):
    """Build a tensor again, over `count` devices."""
    with monkeypatch.context() as patch:
        patch.setattr(CPU, "devices", NumpyDevices(count))
        return FlycooTensor(*x.nonzeros(), x.shape, slabs=slabs, layout=layout, groups=groups)


@pytest.fixture
def x():
    return planted_tensor(SHAPE, RANK, 400, noise=0.1, random_state=0)[0]


def draw_factors(rank=RANK):
    rng = np.random.default_rng(0)
    return [rng.random((size, rank)) for size in SHAPE]


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("slabs", [1, 3, 6, 8])
def test_mttkrp(x, mode, slabs, layout, monkeypatch):
    factors, weights = draw_factors(), np.array([1.0, 2.0, -1.0])
    expected = mttkrp(x, factors, mode, weights=weights)
    results = []
    for count in COUNTS:
        spread_x = spread(x, count, monkeypatch, slabs, layout)
        found = mttkrp(spread_x, factors, mode, weights=weights)
        results.append(found.tobytes())
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        sharded = [RowShards.scatter(f, s) for f, s in list_pairs(spread_x, factors)]
        again = mttkrp(spread_x, sharded, mode, weights=weights)
        assert isinstance(again, RowShards)
        assert again.to_numpy().tobytes() == results[-1]
    assert len(set(results)) == 1


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_mttkrp_with_groups(layout, monkeypatch):
    """Of the group that is cut, of another one, and of a mode alone."""
    problem, results = make_problem((4, 30, 6, 5, 7), 800), set()
    for count in COUNTS:
        with monkeypatch.context() as patch:
            patch.setattr(CPU, "devices", NumpyDevices(count))
            x = problem.tensor(slabs=NUM_SLABS, layout=layout, groups=[(0,), (1, 2), (3, 4)])
        pairs = [(f, x._layout.shardings[n]) for n, f in enumerate(problem.factors)]
        together = mttkrps(x, problem.factors)
        of_shards = mttkrps(x, [RowShards.scatter(*pair) for pair in pairs])
        for mode in range(5):
            found = mttkrp(x, problem.factors, mode)
            problem.check(found, mode, x)
            assert together[mode].tobytes() == found.tobytes()
            assert isinstance(of_shards[mode], RowShards)
            assert of_shards[mode].to_numpy().tobytes() == found.tobytes()
            results.add((mode, found.tobytes()))
    assert len(results) == 5


def write_blocks(engine, layout, factors, mode, out, *args, **options):
    """Compute an MTTKRP as the CPU engine does, and copy its rows to their blocks."""
    if not isinstance(out, RowBlocks):
        return MTTKRP_ON_CPU(engine, layout, factors, mode, out, *args, **options)
    rows = np.empty(out.shape, out.dtype)
    MTTKRP_ON_CPU(engine, layout, factors, mode, rows, *args, **options)
    starts = np.arange(1, len(out.blocks)) * len(out.blocks[0])
    for block, part in zip(out.blocks, np.split(rows, starts), strict=True):
        block[...] = part
        NUM_WRITTEN.append(block.size)
    return None


MTTKRP_ON_CPU, NUM_WRITTEN = CpuEngine.mttkrp, []


@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
@pytest.mark.parametrize("groups", [None, [(0, 1), (2,)]], ids=str)
def test_slabs_write_where_rows_are_added(x, groups, layout, monkeypatch):
    """The bits are those of results that are copied; rows of a group are contracted from others."""
    factors, weights = draw_factors(), np.array([1.0, 2.0, -1.0])
    for count in (2, 3, 8):
        spread_x = spread(x, count, monkeypatch, count, layout, groups)
        sharded = [RowShards.scatter(f, s) for f, s in list_pairs(spread_x, factors)]
        for mode in range(3):
            expected = mttkrp(spread_x, sharded, mode, weights=weights).to_numpy()
            with monkeypatch.context() as patch:
                patch.setattr(CpuEngine, "most_row_blocks", 8)
                patch.setattr(CpuEngine, "mttkrp", write_blocks)
                NUM_WRITTEN.clear()
                found = mttkrp(spread_x, sharded, mode, weights=weights)
            is_cut, is_alone = mode == 2, groups is None
            num_rows = 0 if is_cut or not is_alone else count * SHAPE[mode]
            assert sum(NUM_WRITTEN) == num_rows * RANK
            assert [block.device for block in found.blocks] == list(found.sharding.homes)
            assert found.to_numpy().tobytes() == expected.tobytes()


@pytest.mark.usual_limits("groups")  # which say what is numbered
@pytest.mark.parametrize("is_numbered", [False, True])
@pytest.mark.parametrize("groups", [[(0, 1), (2,)], [(0,), (1, 2)], [(0, 1, 2)]], ids=str)
def test_groups_move_no_more(groups, is_numbered, x, monkeypatch):
    """Each slab contracts its own results; the bits do not depend on the devices."""
    monkeypatch.setattr(groups_module, "_FEW_ROWS", 0 if is_numbered else 2**20)
    copies, bring = [], NumpyDevices.bring

    def count(devices, array, device):
        if getattr(array, "device", None) != device:
            copies.append(array.shape)
        return bring(devices, array, device)

    monkeypatch.setattr(NumpyDevices, "bring", count)

    def decompose(tensor):
        copies.clear()
        with tl.backend_context("flycoo"):
            start = CPTensor((np.ones(RANK), draw_factors()))
            found = parafac(tensor, RANK, init=start, n_iter_max=4, tol=0)
            return copies.copy(), [tl.to_numpy(factor).tobytes() for factor in found.factors]

    results = set()
    for number in COUNTS[:3]:
        expected, _ = decompose(spread(x, number, monkeypatch, groups=None))
        tensor = spread(x, number, monkeypatch, groups=groups)
        assert tensor.groups == tuple(groups)
        record_format = tensor._layout.slabs[0].layout.record_format
        assert (record_format.num_prefixes > 0) == (is_numbered and len(groups[0]) > 1)
        found, factors = decompose(tensor)
        assert found == expected
        results.add(tuple(factors))
    assert len(results) == 1


@pytest.mark.parametrize("function", [parafac, non_negative_parafac_hals])
@pytest.mark.parametrize("layout", ["remap", "replicated", "indexed"])
def test_small_factors_stay_on_the_first_device(layout, function, x, monkeypatch):
    """A mode takes one exchange in, and lends its result; the bits are those of one device."""
    exchanges, gather, results = [], NumpyDevices.gather, set()
    lent, lend = [], NumpyDevices.lend
    nbytes = sum(SHAPE) * RANK * 8

    def count(devices, requests):
        pairs = [(array, device) for arrays, device in requests for array in arrays]
        homes = [a.device if isinstance(a, DeviceArray) else 0 for a, _ in pairs]
        exchanges.append(any(home != pair[1] for home, pair in zip(homes, pairs, strict=True)))
        return gather(devices, requests)

    def lend_and_count(devices, arrays, homes, owners=(0,)):
        lent.append(len(arrays))
        return lend(devices, arrays, homes, owners)

    def decompose(tensor):
        exchanges.clear()
        lent.clear()
        with tl.backend_context("flycoo"):
            start = CPTensor((np.ones(RANK), draw_factors()))
            factors = function(tensor, RANK, init=start, n_iter_max=4, tol=0).factors
            return factors, b"".join(tl.to_numpy(factor).tobytes() for factor in factors)

    monkeypatch.setattr(NumpyDevices, "gather", count)
    monkeypatch.setattr(NumpyDevices, "lend", lend_and_count)
    for number in COUNTS[:3]:
        tensor = spread(x, number, monkeypatch, layout=layout)
        monkeypatch.setattr(NumpyDevices, "least_nbytes", nbytes)
        factors, _ = decompose(tensor)
        assert all(isinstance(factor, RowShards) for factor in factors)
        assert not lent
        monkeypatch.setattr(NumpyDevices, "least_nbytes", NUM_SLABS * nbytes)
        factors, found = decompose(tensor)
        assert not any(isinstance(factor, RowShards) for factor in factors)
        assert sum(exchanges) == (number > 1) * 4 * 3
        assert lent == 4 * 3 * [NUM_SLABS]
        results.add(found)
    whole = FlycooTensor(*x.nonzeros(), x.shape, slabs=NUM_SLABS, layout=layout)
    assert results == {decompose(whole)[1]}


def list_pairs(x, factors):
    return [(factor, x._layout.shardings[n]) for n, factor in enumerate(factors)]


OPTIONS = [
    {},
    {"normalize_factors": True},
    {"l2_reg": 0.1},
    {"linesearch": True},
    {"linesearch": "nesterov"},
    {"linesearch": "gauss-newton", "n_iter_max": 9},
    {"orthogonalise": True},
    {"fixed_modes": [0]},
]


def run_everywhere(decompose, x, monkeypatch):
    """Run on one piece, and over several devices; the latter agree to the bit."""
    expected_errors, expected = decompose(x)
    results = [decompose(spread(x, count, monkeypatch)) for count in COUNTS]
    for errors, found in results:
        assert errors == results[0][0]
        assert [f.tobytes() for f in found] == [f.tobytes() for f in results[0][1]]
    np.testing.assert_allclose(results[0][0], expected_errors, rtol=1e-9)
    for found, factor in zip(results[0][1], expected, strict=True):
        # QR decompositions differ in signs.
        np.testing.assert_allclose(np.abs(found), np.abs(factor), rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore:It is not recommended")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_parafac(x, options, monkeypatch):
    def decompose(tensor):
        start = CPTensor((np.ones(RANK), draw_factors()))
        options_ = {"n_iter_max": 6, "tol": 0, "return_errors": True, **options}
        with tl.backend_context("flycoo"):
            found, errors = parafac(tensor, RANK, init=start, **options_)
            return [float(e) for e in errors], [tl.to_numpy(f) for f in found.factors]

    run_everywhere(decompose, x, monkeypatch)


@pytest.mark.usefixtures("modes_in_groups")
@pytest.mark.filterwarnings("ignore:It is not recommended")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_parafac_with_groups(x, options, monkeypatch):
    assert x.groups == ((0, 1), (2,))
    test_parafac(x, options, monkeypatch)


@pytest.mark.parametrize("init", ["random", "svd"])
def test_parafac_from_its_own_start(x, init, monkeypatch):
    def decompose(tensor):
        options = {"n_iter_max": 4, "tol": 0, "return_errors": True, "random_state": 0}
        with tl.backend_context("flycoo"):
            found, errors = parafac(tensor, RANK, init=init, **options)
            return [float(e) for e in errors], [tl.to_numpy(f) for f in found.factors]

    run_everywhere(decompose, x, monkeypatch)


def halve_small(rows):
    """A proximal operator of one's own."""
    return np.where(abs(rows) < 0.1, rows / 2, rows)


NON_NEGATIVE = [
    (non_negative_parafac, {}),
    (non_negative_parafac, {"normalize_factors": True}),
    (non_negative_parafac_hals, {"tol": 1e-9}),
    (decomposition.non_negative_parafac_hals, {"smoothness": 5.0}),
    (decomposition.parafac, {"smoothness": {0: 5.0}}),
    (constrained_parafac, {"smoothness": 0.1}),
    (constrained_parafac, {"non_negative": True}),
    (constrained_parafac, {"group_lasso": 0.001}),
    pytest.param(decomposition.constrained_parafac, {"prox": halve_small}, id="prox"),
    (decomposition.constrained_parafac, {"non_negative": True, "linesearch": "nesterov"}),
    (decomposition.non_negative_parafac, {"linesearch": "nesterov"}),
    (constrained_parafac, {"l2_reg": 0.001}),
    pytest.param(constrained_parafac, {"l1_reg": 0.001}, marks=pytest.mark.slow),
]


@pytest.mark.filterwarnings("ignore:The HALS algorithm")
@pytest.mark.parametrize(
    ("function", "options"), NON_NEGATIVE, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_constrained(x, function, options, monkeypatch):
    x = FlycooTensor(x.nonzeros()[0], np.abs(x.nonzeros()[1]), x.shape)

    def decompose(tensor):
        start = CPTensor((np.ones(RANK), draw_factors()))
        options_ = {"n_iter_max": 4, "return_errors": True, **options}
        with tl.backend_context("flycoo"):
            found, errors = function(tensor, RANK, init=start, **options_)
            return [float(e) for e in errors], [tl.to_numpy(f) for f in found.factors]

    run_everywhere(decompose, x, monkeypatch)


def make_mask():
    coords = np.array([[0, 1, 29], [0, 1, 19], [0, 1, 39]])
    return sparse.COO(coords, np.zeros(3), shape=SHAPE, fill_value=1.0)


def list_arrays(result):
    """Return the arrays of a model, or of a tuple of numbers."""
    if isinstance(result, np.ndarray | float | int):
        return [np.asarray(result)]
    if isinstance(result, RowShards):
        return [result.to_numpy()]
    return [array for part in result if part is not None for array in list_arrays(part)]


def fit(x):
    return parafac(x, RANK, n_iter_max=3, tol=0, init="random", random_state=0)


#: What computes with plain factors, on the first device, or gathers them.
WHOLE = {
    "tucker": lambda x: tl.decomposition.tucker(x, [RANK] * 3, n_iter_max=3),
    "non_negative_tucker_hals": lambda x: tl.decomposition.non_negative_tucker_hals(
        x, [RANK] * 3, n_iter_max=3, random_state=0
    ),
    "masked parafac": lambda x: parafac(
        x, RANK, n_iter_max=3, mask=make_mask(), init="random", random_state=0
    ),
    "masked parafac, svd": lambda x: parafac(
        x, RANK, n_iter_max=1, mask=make_mask(), init="svd", svd_mask_repeats=2
    ),
    "partial_tucker": lambda x: tl.decomposition.partial_tucker(x, [2, 3], modes=[0, 2])[0],
    "parts": lambda x: [y.nonzeros() for y in (x[3:9, [5, 2]], x.T, x.sum(axis=1), x * 0)],
    "vectors": lambda x: [x.sum(axis=(0, 1)), x.mean(axis=(1, 2)), x[29, 19, 39]],
    "observed_parafac": lambda x: observed_parafac(
        x, RANK, n_iter_max=3, random_state=0, l2_reg=0.1
    ),
    "generalized_parafac": lambda x: generalized_parafac(abs(x), RANK, 5, random_state=0),
    "best_of": lambda x: (
        best_of(parafac, x, RANK, n_starts=2, n_iter_max=3, init="random", random_state=0).best
    ),
    "cp_fit": lambda x: cp_fit(x, fit(x)),
    "diagnose": lambda x: diagnose(x, fit(x)).noise,
    "core_consistency": lambda x: core_consistency(x, fit(x)),
    "fold_in": lambda x: fold_in(fit(x), x, 2),
    "cp_to_entries": lambda x: cp_to_entries(fit(x), np.array([[0, 3], [1, 4], [2, 5]])),
    "mode_dot": lambda x: tl.tenalg.multi_mode_dot(x, [np.ones(20), np.ones(40)], [1, 2]),
}


def test_samples(x, monkeypatch):
    monkeypatch.setattr("tensorly_flycoo.decomposition.adam._NUM_STEPS", 3)
    options = {"loss": "gaussian", "random_state": 0, "n_iter_max": 1, "samples": (50, 50)}
    for mask in (None, make_mask()):
        results = set()
        for count in COUNTS:
            model = generalized_parafac(spread(x, count, monkeypatch), 2, mask=mask, **options)
            results.add(b"".join(factor.tobytes() for factor in model.factors))
        assert len(results) == 1


@pytest.mark.parametrize("least_nbytes", [0, 2**25])
@pytest.mark.parametrize("name", WHOLE)
def test_on_the_first_device(x, name, least_nbytes, monkeypatch):
    monkeypatch.setattr(NumpyDevices, "least_nbytes", least_nbytes)
    with tl.backend_context("flycoo"):
        expected, results = list_arrays(WHOLE[name](x)), set()
        for count in (1, 3):
            found = list_arrays(WHOLE[name](spread(x, count, monkeypatch)))
            results.add(b"".join(array.tobytes() for array in found))
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(abs(ours), abs(theirs), rtol=1e-6, atol=1e-8)
    assert len(results) == 1


@pytest.mark.usual_limits("groups", "prefixes")  # whose factors are multiplied on the first device
@pytest.mark.parametrize("count", [2, 3, 5])
def test_an_mttkrp_takes_few_exchanges(x, count, monkeypatch):
    """One for all that it reads, however many devices there are, and one to add results."""
    x, weights, calls = spread(x, count, monkeypatch), np.ones(RANK), []
    factors = [RowShards.scatter(f, s) for f, s in list_pairs(x, draw_factors())]
    real = NumpyDevices.gather

    def gather(devices, requests):
        calls.append(len(requests))
        return real(devices, requests)

    monkeypatch.setattr(NumpyDevices, "gather", gather)
    cut_mode, found = x._layout.cut_mode, {}
    for mode in range(3):
        mttkrp(x, factors, mode, weights=weights)
        found[mode], calls = calls, []
    assert {mode: len(sizes) for mode, sizes in found.items()} == {
        mode: 1 if mode == cut_mode else 2 for mode in range(3)
    }
    # The weights, and factors that are not there yet: a factor is gathered once.
    assert [sizes[0] for sizes in found.values()] == [2 * count, 2 * count, count]


@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac_hals", "constrained_parafac"])
def test_values_far_from_one(x, name, monkeypatch):
    """Row-sharded factors and guesses are multiplied by powers of two, too."""
    options = {"n_iter_max": 3, "return_errors": True}
    options |= {"non_negative": True} if name == "constrained_parafac" else {}
    power = 2.0**480 * 2.0 ** -np.floor(np.log2(x.norm() / x.nnz**0.5))  # so values are near 1
    far, decompose = spread(x * power, 2, monkeypatch), getattr(decomposition, name)
    with tl.backend_context("flycoo"):
        model, errors = decompose(far, RANK, **options)
        _, expected = decompose(spread(x * (power / 2.0**480), 2, monkeypatch), RANK, **options)
        np.testing.assert_allclose(errors, expected, rtol=1e-8)
        _, more = decompose(far, RANK, init=model, **options)
    assert more[-1] < errors[-1]


@pytest.mark.parametrize("linesearch", [False, "nesterov"])
def test_mixed_precision_has_the_same_bits_on_all_devices(x, linesearch, monkeypatch):
    """Scales are those of whole columns, wherever their rows are."""
    monkeypatch.setattr(CpuEngine, "narrow_pays", lambda *arguments: True)
    options = {"init": "random", "random_state": 0, "n_iter_max": 8, "tol": 0}
    results = set()
    rounded = []
    round_rows = CPU.round_rows

    def count_and_round(factor, scales):
        rounded.append(len(factor))
        return round_rows(factor, scales)

    monkeypatch.setattr(CpuEngine, "round_rows", staticmethod(count_and_round))
    sharded = []
    apply_sharded = SpreadLayout.apply_sharded

    def note_narrow(layout, operation, engine, inputs, *arguments, **options):
        sharded.extend(factor.dtype for factor in inputs.values())
        return apply_sharded(layout, operation, engine, inputs, *arguments, **options)

    monkeypatch.setattr(SpreadLayout, "apply_sharded", note_narrow)
    for count in COUNTS:
        spread_x = spread(x, count, monkeypatch)
        with tl.backend_context("flycoo"), set_precision("mixed"):
            model, errors = decomposition.parafac(
                spread_x, RANK, linesearch=linesearch, return_errors=True, **options
            )
            arrays = [tl.to_numpy(factor) for factor in model.factors]
        results.add((*[array.tobytes() for array in arrays], *map(float, errors)))
    assert len(results) == 1
    assert rounded
    assert {np.dtype(np.float32), np.dtype(np.float64)} == {*sharded}
