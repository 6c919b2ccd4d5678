"""Groups of modes: which are chosen, which are refused, and that they change no result."""

import itertools
import pickle

import numpy as np
import pytest
import reference
import tensorly as tl
from error_bounds import bound_mttkrp
from numpy_primitives import pack
from problems import make_problem
from slow_cases import thin_out

from tensorly_flycoo import FlycooTensor, load, mttkrp, save
from tensorly_flycoo.base.checks import LAYOUTS
from tensorly_flycoo.format import groups as groups_module
from tensorly_flycoo.format.groups import choose_groups, find_groups
from tensorly_flycoo.format.packing import RecordFormat
from tensorly_flycoo.format.primitives import TTMC
from tensorly_flycoo.loop.whole_tensor import WholeTensor
from tensorly_flycoo.ops.ttmc import separate_modes

SHAPE = (4, 3, 11, 30, 7)
DIVISIONS = [
    [(0, 1, 2), (3, 4)],
    [(0,), (1, 2), (3, 4)],
    [(0, 1), (2,), (3,), (4,)],
    [(0, 1, 2), (3,), (4,)],
]


@pytest.mark.usual_limits("groups", "prefixes")
@pytest.mark.parametrize(
    ("shape", "nnz", "expected"),
    [
        ((16, 3, 105, 365, 20), 330_813, [(0, 1, 2), (3, 4)]),  # flights
        ((138, 2, 97_310), 1_924_665, [(0, 1), (2,)]),  # baby names
        ((183, 24, 1140, 1717), 3_309_490, [(0, 1), (2,), (3,)]),  # uber: 1140 x 1717 is too long
        ((165_427, 11_374, 2, 100, 89), 26_021_945, [(0,), (1,), (2, 3, 4)]),  # vast
        ((12_092, 9184, 28_818), 76_879_419, [(0,), (1,), (2,)]),  # nell-2
        ((4, 50, 6), 10**6, [(0, 1), (2,)]),  # the fewest rows, wherever the longest mode is
        ((16, 3, 105, 365, 20), 30_000, [(0,), (1,), (2,), (3,), (4,)]),
        ((2,) * 13, 10**6, [(n,) for n in range(13)]),
        ((5, 5), 10**6, [(0,), (1,)]),
        ((5,), 10**6, [(0,)]),
    ],
)
def test_choice(shape, nnz, expected):
    assert choose_groups(shape, nnz) == tuple(expected)


@pytest.mark.usual_limits("groups", "prefixes")
def test_what_users_give():
    assert find_groups(None, (2, 3), 10**6) == (((0,), (1,)), 0)
    assert find_groups([[0], range(1, 3)], (9, 5, 4), 1) == (((0,), (1, 2)), 0)
    assert find_groups("auto", (9, 5, 4), 1) == (((0,), (1,), (2,)), 0)
    # Too long to have a row for each combination: those that occur are numbered.
    assert find_groups([(0, 1), (2,)], (900, 50, 40), 10**4) == (((0,), (1,), (2,)), 2)
    assert FlycooTensor([[0], [1], [2]], [1.0], (9, 5, 4), groups=[(0, 1, 2)]).groups == (
        (0, 1, 2),
    )


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        (3, TypeError, r"groups is 3, expected all modes from 0 to 2 in order, such as \[\(0, 1\)"),
        ([0, 1, 2], TypeError, "expected all modes"),
        ([(0.0,), (1, 2)], TypeError, "expected all modes"),
        ("all", ValueError, "groups is 'all', expected \"auto\", None or groups of modes"),
        ([(0, 2), (1,)], ValueError, "in order"),
        ([(0,), (1,)], ValueError, "from 0 to 2"),
        ([(0,), (), (1, 2)], ValueError, "expected all modes"),
        ([(0, 1), (2,), (3,)], ValueError, "expected all modes"),
    ],
)
def test_groups_that_are_refused(groups, error, message):
    with pytest.raises(error, match=message):
        FlycooTensor([[0], [1], [2]], [1.0], (5, 4, 9), groups=groups)


def test_too_many_combinations():
    with pytest.raises(ValueError, match=r"has \(1, 2\) with 8,388,608,000,000 combinations"):
        FlycooTensor([[0], [1], [1]], [1.0], (3, 4_000_000, 2_000_000), groups=[(0,), (1, 2)])


@pytest.mark.parametrize("word_dtype", ["uint32", "uint64"])
@pytest.mark.parametrize("groups", DIVISIONS)
def test_records_of_merged_modes(groups, word_dtype):
    """The index of a group is that of a tensor with sizes rounded up to powers of two."""
    rng, shape = np.random.default_rng(0), (300, 3, 2**19, 2**20, 2**11)
    record_format = RecordFormat.of(shape, "float32", word_dtype, tuple(map(tuple, groups)))
    coords = np.stack([rng.integers(0, size, 50) for size in shape])
    records = pack(record_format, coords, np.ones(50, np.float32))
    np.testing.assert_array_equal(record_format.coords(records), coords)
    merged = record_format.merged
    for number, group in enumerate(groups):
        padded = [2 ** int(size - 1).bit_length() for size in shape]
        expected = np.ravel_multi_index(
            [coords[n] for n in group], [shape[group[0]], *(padded[n] for n in group[1:])]
        )
        if merged.shape[number] <= 2**32:  # as `rows` returns 32 bits
            np.testing.assert_array_equal(merged.rows(records, number), expected)


@pytest.mark.parametrize(
    ("groups", "layout", "slabs"), thin_out(itertools.product(DIVISIONS, LAYOUTS, [1, 3]), 5)
)
def test_the_same_tensor_and_mttkrp(groups, layout, slabs):
    """Sums of a row are those of another order, within its bound."""
    problem = make_problem(SHAPE, 3000, rank=3, seed=1)
    plain = problem.tensor(layout=layout, slabs=slabs, groups=None)
    x = problem.tensor(layout=layout, slabs=slabs, groups=groups)
    assert x.groups == tuple(groups)
    for array, expected in zip(x.nonzeros(), plain.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, expected)
    weights = np.array([0.5, 2.0, -1.0])  # exact
    for mode in [*range(5), 2, 0, 4, 4]:
        out = np.full((SHAPE[mode], 3), np.nan)
        assert mttkrp(x, problem.factors, mode, weights=weights, out=out) is out
        problem.check(out / weights, mode, x)
        empty_rows = x._layout.find_empty_rows(mode)
        np.testing.assert_array_equal(empty_rows, plain._layout.find_empty_rows(mode))


@pytest.mark.parametrize("groups", DIVISIONS)
def test_the_same_bits_in_all_layouts(groups):
    problem = make_problem(SHAPE, 3000, rank=3, seed=2)
    tensors = [problem.tensor(layout=layout, groups=groups) for layout in LAYOUTS]
    for mode in range(5):
        first, *others = (mttkrp(x, problem.factors, mode) for x in tensors)
        assert all(other.tobytes() == first.tobytes() for other in others)


@pytest.mark.usual_limits("prefixes")
def test_they_are_shown_and_kept():
    x = make_problem(SHAPE, 300).tensor(groups=DIVISIONS[0])
    assert repr(x).endswith("groups=((0, 1, 2), (3, 4))>")
    for other in (2 * x, x.astype("float32"), abs(x)):
        assert other.groups == x.groups
    assert x.T.groups == choose_groups(x.T.shape, x.nnz)


@pytest.mark.usual_limits("groups", "prefixes", "slabs")
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_infinite_elements_that_no_nonzero_uses(value):
    """They give nan where zeros of a group are multiplied by them, as in dense TensorLy."""
    problem = make_problem(SHAPE, 300, rank=3, seed=1)
    problem.coords[1] = problem.coords[1] % 2  # index 2 is not used
    problem.factors[1][2, 1] = value
    plain = problem.tensor(groups=None)
    dense = plain.to_coo().todense()
    numbered = [problem.tensor(groups=[(0, 1, 2, 3), (4,)])]
    assert numbered[0]._layout.record_format.num_prefixes > 0
    for mode in (0, 2, 3, 4):
        for x in [plain, *numbered]:
            problem.check(mttkrp(x, problem.factors, mode), mode, x)
        product = mttkrp(problem.tensor(groups=DIVISIONS[0]), problem.factors, mode)
        is_nan = np.zeros(product.shape, bool)
        is_nan[:, 1] = mode in (0, 2)  # of the same group
        np.testing.assert_array_equal(np.isnan(product), is_nan)
        with np.errstate(invalid="ignore"):
            of_tensorly = tl.tenalg.unfolding_dot_khatri_rao(dense, (None, problem.factors), mode)
        assert np.isnan(of_tensorly[:, 1]).all()


# Groups whose combinations that occur are numbered


def make_repeating(nnz=3000, num_pairs=200):
    """Draw a problem whose pairs of first indices are few."""
    problem = make_problem((60, 50, 300), nnz, rank=5, seed=3)
    pairs = np.random.default_rng(4).integers(0, num_pairs, nnz)
    problem.coords[:2] = problem.coords[:2, pairs]
    return problem


@pytest.mark.usual_limits("groups", "slabs")
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbered_prefixes(layout, dtype):
    problem = make_repeating()
    x, plain = (
        problem.tensor(layout=layout, dtype=dtype, groups=groups)
        for groups in ([(0, 1), (2,)], None)
    )
    num_pairs = len(set(map(tuple, x.nonzeros()[0][:2].T.tolist())))
    assert (x.groups, x._layout.record_format.num_prefixes) == (((0, 1), (2,)), num_pairs)
    for array, expected in zip(x.nonzeros(), plain.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, expected)
    factors = [factor.astype(dtype) for factor in problem.factors]
    weights = np.array([0.5, 2.0, -1.0, 4.0, 1.0], dtype)  # exact
    for y in (x, pickle.loads(pickle.dumps(x)), 2 * (x / 2)):
        for mode in (0, 1, 2, 1, 0):
            product = mttkrp(y, factors, mode, weights=weights)
            arguments = (*x.nonzeros(), x.shape, factors, mode)
            bound = bound_mttkrp(y, *x.nonzeros(), factors, mode)
            expected = reference.mttkrp(*arguments) * weights
            assert (np.abs(product - expected) <= bound * np.abs(weights)).all()
            empty_rows = y._layout.find_empty_rows(mode)
            np.testing.assert_array_equal(empty_rows, plain._layout.find_empty_rows(mode))
    assert x.nbytes > x._layout.prefixes.nbytes > 0


@pytest.mark.usual_limits("slabs")  # which `save` refuses
def test_numbered_prefixes_are_saved(tmp_path):
    problem = make_repeating()
    for layout in LAYOUTS:
        x = problem.tensor(layout=layout, groups=[(0, 1), (2,)], device="cpu")
        save(tmp_path / "x.npz", x)
        y = load(tmp_path / "x.npz", device="cpu")
        assert (y.groups, y.nbytes) == (x.groups, x.nbytes)
        for mode in range(3):
            expected = mttkrp(x, problem.factors, mode)
            assert mttkrp(y, problem.factors, mode).tobytes() == expected.tobytes()


@pytest.mark.usual_limits("groups")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_slab_numbers_its_own(layout):
    problem = make_repeating(num_pairs=500)
    x = problem.tensor(groups=[(0, 1), (2,)], slabs=3, layout=layout)
    assert x.groups == ((0, 1), (2,))
    for slab in x._layout.slabs:
        with slab.layout.hold_records() as records:
            pairs = set(map(tuple, slab.layout.record_format.coords(records)[:2].T.tolist()))
        assert slab.layout.record_format.num_prefixes == len(pairs) < 500
    for y in (x, pickle.loads(pickle.dumps(x)), 2 * (x / 2)):
        assert y.groups == x.groups
        problem.check_tensor(y)


@pytest.mark.usual_limits("groups", "prefixes", "slabs")
def test_some_slabs_number_theirs(monkeypatch):
    """Results are right, and Tucker's products, which know no groups, too."""
    monkeypatch.setattr(groups_module, "_LEAST_NNZ", 0)
    monkeypatch.setattr(groups_module, "_MOST_ROWS", 100)
    problem = make_repeating(4000, 4000)
    is_low = problem.coords[2] < 150  # in the first slab
    problem.coords[:2, is_low] %= 10
    x = problem.tensor(slabs=2)
    assert [slab.layout.groups for slab in x._layout.slabs] == [((0, 1), (2,)), ((0,), (1,), (2,))]
    assert x.groups == ((0, 1), (2,))
    problem.check_tensor(x)
    whole = WholeTensor(x)
    for mode in (0, 1, 2, 2, 1):
        found = whole.mttkrp(None, problem.factors, mode)
        assert found.tobytes() == mttkrp(x, problem.factors, mode).tobytes()
    assert len(separate_modes(x).groups) == 3


@pytest.mark.usual_limits("prefixes", "slabs")
@pytest.mark.parametrize(("num_pairs", "is_worth_it"), [(300, True), (4000, False)])
def test_prefixes_are_counted(monkeypatch, num_pairs, is_worth_it):
    monkeypatch.setattr(groups_module, "_LEAST_NNZ", 0)
    monkeypatch.setattr(groups_module, "_MOST_ROWS", 100)
    x = make_repeating(4000, num_pairs).tensor()
    assert x.groups == (((0, 1), (2,)) if is_worth_it else ((0,), (1,), (2,)))


@pytest.mark.usual_limits("groups", "prefixes", "record", "slabs")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "num_pairs", "num_groups"),
    [((2, 40, 50), 80, 2), ((50, 8, 60), 300, 3), ((20, 30, 50), 180, 2)],
    ids=["product", "a product of more nonzeros", "numbered"],
)
def test_duplicates_and_zeros_do_not_count(monkeypatch, layout, shape, num_pairs, num_groups):
    """For the choice of groups: the same tensor without them has the same."""
    monkeypatch.setattr(groups_module, "_LEAST_NNZ", 1000)
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, size, num_pairs) for size in shape[:2]])
    coords = np.vstack([pairs[:, rng.integers(0, num_pairs, 1800)], rng.integers(0, 50, 1800)])
    once = FlycooTensor(coords, np.ones(1800), shape, layout=layout)
    values = np.repeat([1.0, 0.0, 2.0, -2.0], [1800, 1800, 1800, 1800])
    x = FlycooTensor(np.tile(coords, 4), values, shape, layout=layout)
    assert len(x.groups) == num_groups
    assert x._layout.record_format == once._layout.record_format
    for array, expected in zip(x.nonzeros(), once.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, expected)
    few = FlycooTensor(np.tile(coords[:, :500], 3), np.ones(1500), shape, layout=layout)
    assert few.groups == ((0,), (1,), (2,))


def test_duplicates_do_not_count_in_slabs(monkeypatch):
    monkeypatch.setattr(groups_module, "_LEAST_NNZ", 0)
    problem = make_problem((30, 2, 40), 700)
    coords, values = problem.tensor().nonzeros()
    once = FlycooTensor(coords, values, problem.shape, slabs=3)
    split = np.concatenate([values, -values, values])
    x = FlycooTensor(np.tile(coords, 3), split, problem.shape, slabs=3)
    assert x.groups == once.groups
    assert x._layout.record_format == once._layout.record_format
    for mode in range(3):
        expected = mttkrp(once, problem.factors, mode)
        assert mttkrp(x, problem.factors, mode).tobytes() == expected.tobytes()


@pytest.mark.usual_limits("groups")  # where the last two modes are one
def test_all_but_the_last_mode_are_numbered(monkeypatch):
    monkeypatch.setattr(groups_module, "_LEAST_NNZ", 0)
    rng = np.random.default_rng(0)
    prefixes = np.stack([rng.integers(0, size, 50) for size in (30, 40, 70, 20)])
    coords = np.vstack([prefixes[:, rng.integers(0, 50, 3000)], rng.integers(0, 900, 3000)])
    x = FlycooTensor(coords, rng.random(3000), (30, 40, 70, 20, 900))
    assert x.groups == ((0, 1, 2, 3), (4,))
    plain = FlycooTensor(coords, np.ones(3000), x.shape, groups=None)
    ones = FlycooTensor(coords, np.ones(3000), x.shape)
    factors = [np.ones((size, 3)) for size in x.shape]  # all sums are exact
    for mode in range(5):
        expected = mttkrp(plain, factors, mode)
        np.testing.assert_array_equal(mttkrp(ones, factors, mode), expected)


@pytest.mark.parametrize("slabs", [1, 2, 7])
@pytest.mark.parametrize("groups", [[(0, 1), (2,)], [(0,), (1, 2)], [(0, 1, 2)]])
def test_slabs_cut_any_mode_of_a_group(groups, slabs):
    problem = make_problem((3, 9, 40), 2000)
    x = problem.tensor(groups=groups, slabs=slabs)
    for other in (x + x, 2 * x, pickle.loads(pickle.dumps(x))):
        assert other.groups == x.groups == tuple(groups)
    problem.check_tensor(x)


def test_an_operation_that_does_not_merge_gets_no_groups():
    """TTMc refuses a grouped layout, lest it be run on groups as an MTTKRP is."""
    problem = make_problem((6, 5, 4), 60)
    x = problem.tensor(groups=[(0,), (1, 2)])
    inputs, out = dict(enumerate(problem.factors[1:], start=1)), np.empty((6, 9))
    with pytest.raises(AssertionError, match="knows no groups"):
        x._layout.apply(TTMC, x._engine, inputs, 0, out)
