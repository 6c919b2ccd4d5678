"""Known answers for the executable specification, the oracle of other tests."""

import inspect
from itertools import product

import numpy as np
import pytest
import reference

# The paper's example: 4 nonzeros, 3 indices a mode, index 2 of mode 0 occurs twice, kappa = 2.
# The paper gives mode 0 only; the other modes are ours.
PAPER_COORDS = np.array([[0, 1, 2, 2], [1, 1, 0, 2], [2, 0, 1, 1]])
PAPER_VALUES = np.array([1.0, 2.0, 3.0, 4.0])
PAPER_SHAPE = (3, 3, 3)


def make_integer_tensor(shape, nnz, seed, rank=3):
    """Make a tensor and factors of small integers, on which float64 sums are exact."""
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, size, nnz) for size in shape])
    values = rng.integers(-4, 5, nnz).astype(np.float64)
    factors = [rng.integers(-3, 4, (size, rank)).astype(np.float64) for size in shape]
    return coords, values, factors


def compute_dense_mttkrp(coords, values, shape, factors, mode):
    """Compute the MTTKRP by einsum on the dense tensor."""
    dense = np.zeros(shape)
    for where, value in zip(coords.T, values, strict=True):
        dense[tuple(where)] += value
    letters = "abcdef"[: len(shape)]
    inputs = [w for w in range(len(shape)) if w != mode]
    terms = ",".join([letters] + [f"{letters[w]}r" for w in inputs])
    if not inputs:  # the product over no modes is 1 in each of the R columns
        return np.outer(dense, np.ones(factors[0].shape[1]))
    return np.einsum(f"{terms}->{letters[mode]}r", dense, *[factors[w] for w in inputs])


def compute_optimum(row_nnz, num_partitions):
    """Return the smallest possible size of the fullest partition, by trying every assignment."""
    return min(
        max(np.bincount(choice, weights=row_nnz, minlength=num_partitions))
        for choice in product(range(num_partitions), repeat=len(row_nnz))
    )


class TestPartitions:
    def test_paper_example(self):
        partition = reference.partition_mode(PAPER_COORDS[0], 3, 2)
        assert partition.tolist() == [1, 1, 0]
        assert reference.partition_sizes(PAPER_COORDS[0], partition, 2).tolist() == [2, 2]

    def test_ties_go_to_the_lowest_index_and_partition(self):
        rows = np.array([3, 0, 2, 1])
        assert reference.partition_mode(rows, 4, 3).tolist() == [0, 1, 2, 0]

    def test_fills_by_nonzeros_not_by_indices(self):
        rows = np.repeat(np.arange(4), [1, 4, 1, 1])
        assert reference.partition_mode(rows, 4, 2).tolist() == [1, 0, 1, 1]

    def test_takes_heavy_indices_first(self):
        rows = np.repeat(np.arange(4), [1, 1, 1, 3])  # in index order the loads would be 2 and 4
        partition = reference.partition_mode(rows, 4, 2)
        assert reference.partition_sizes(rows, partition, 2).tolist() == [3, 3]

    @pytest.mark.parametrize("num_partitions", [1, 2, 5])
    def test_no_nonzeros(self, num_partitions):
        rows = np.empty(0, dtype=np.int64)
        partition = reference.partition_mode(rows, 3, num_partitions)
        assert partition.tolist() == [0, 0, 0]
        sizes = reference.partition_sizes(rows, partition, num_partitions)
        assert sizes.tolist() == [0] * num_partitions

    @pytest.mark.parametrize("num_partitions", [2, 3])
    def test_graham_bound_is_attained_and_not_exceeded(self, num_partitions):
        # Graham's worst case: two rows of each size from 2k-1 down to k+1, and three of k.
        k = num_partitions
        row_nnz = np.array([*np.repeat(np.arange(2 * k - 1, k, -1), 2), k, k, k])
        rows = np.repeat(np.arange(len(row_nnz)), row_nnz)
        partition = reference.partition_mode(rows, len(row_nnz), k)
        optimum = compute_optimum(row_nnz, k)
        assert optimum == 3 * k
        largest = reference.partition_sizes(rows, partition, k).max()
        assert largest == round((4 / 3 - 1 / (3 * k)) * optimum)

    @pytest.mark.parametrize("seed", range(20))
    def test_graham_bound_against_brute_force(self, seed):
        rng = np.random.default_rng(seed)
        num_partitions = int(rng.integers(1, 4))
        row_nnz = rng.integers(0, 12, 6)
        rows = np.repeat(np.arange(6), row_nnz)
        partition = reference.partition_mode(rows, 6, num_partitions)
        largest = reference.partition_sizes(rows, partition, num_partitions).max()
        optimum = compute_optimum(row_nnz, num_partitions)
        assert optimum <= largest
        # In integers: largest <= (4/3 - 1/(3 kappa)) optimum.
        assert 3 * num_partitions * largest <= (4 * num_partitions - 1) * optimum


class TestRemapIds:
    def test_paper_example(self):
        ids = reference.remap_ids(PAPER_COORDS, PAPER_SHAPE, 2)
        # Mode 0: index 2 alone in partition 0; then 0 and 1. Modes 1 and 2: index 1 in partition 0.
        assert ids.tolist() == [[2, 3, 0, 1], [0, 1, 2, 3], [3, 2, 0, 1]]

    def test_equal_index_keeps_the_original_order(self):
        ids = reference.remap_ids(np.array([[1, 0, 1, 1]]), (2,), 2)
        assert ids.tolist() == [[0, 3, 1, 2]]


class TestElementwiseComputation:
    def test_one_nonzero(self):
        factors = [np.array([[1.0, 2.0]]), np.array([[3.0, 5.0]]), np.array([[7.0, 11.0]])]
        ell = reference.elementwise_computation([0, 0, 0], 2.0, factors, mode=1)
        assert ell.tolist() == [14.0, 44.0]

    def test_many_nonzeros_equal_one_by_one(self):
        coords, values, factors = make_integer_tensor((3, 4, 2), 7, seed=0)
        together = reference.elementwise_computation(coords, values, factors, 2)
        for column in range(7):
            alone = reference.elementwise_computation(coords[:, column], values[column], factors, 2)
            assert np.array_equal(together[column], alone)

    @pytest.mark.parametrize("mode", [-1, 2])
    def test_refuses_a_mode_out_of_range(self, mode):
        factors = [np.ones((1, 1)), np.ones((1, 1))]
        with pytest.raises(ValueError, match=f"mode is {mode}, expected 0 to 1"):
            reference.elementwise_computation([0, 0], 1.0, factors, mode)


class TestThreadBlock:
    def test_blocks_in_any_order_write_the_same(self):
        shape, num_partitions = (5, 4, 3), 3
        coords, values, factors = make_integer_tensor(shape, 20, seed=1)
        t_in = reference.make_elements(coords, values, shape, num_partitions)
        partition = reference.partition_mode(coords[0], shape[0], num_partitions)
        sizes = reference.partition_sizes(coords[0], partition, num_partitions)
        blocks = np.split(t_in, np.cumsum(sizes)[:-1])
        results = []
        for order in ([0, 1, 2], [2, 0, 1]):
            output, t_out = np.full((5, 3), np.nan), np.zeros_like(t_in)
            for z in order:
                reference.thread_block(blocks[z], factors, 0, output, t_out)
            results.append((output, t_out))
        assert np.array_equal(results[0][0], results[1][0], equal_nan=True)
        assert np.array_equal(results[0][1], results[1][1])
        assert np.array_equal(results[0][1]["alpha"][:, 1], np.arange(20))

    def test_writes_its_own_rows_and_places_only(self):
        t_in = reference.make_elements(PAPER_COORDS, PAPER_VALUES, PAPER_SHAPE, 2)
        output, t_out = np.full((3, 1), np.nan), np.zeros_like(t_in)
        t_out["value"] = np.nan
        reference.thread_block(t_in[:2], [np.ones((3, 1))] * 3, 0, output, t_out)
        assert np.array_equal(output.ravel(), [np.nan, np.nan, 7.0], equal_nan=True)
        assert np.array_equal(t_out["value"], [np.nan, np.nan, 3.0, 4.0], equal_nan=True)


class TestMttkrp:
    def test_known_small_answer(self):
        factors = [np.array([[1.0, -1.0], [2.0, 5.0], [3.0, 1.0]])] * 3
        out = reference.mttkrp(PAPER_COORDS, PAPER_VALUES, PAPER_SHAPE, factors, 0)
        # Row 2: 3 * Y[0] * Y[1] + 4 * Y[2] * Y[1] = 3 * [2, -5] + 4 * [6, 5].
        assert out.tolist() == [[6.0, 5.0], [4.0, -10.0], [30.0, 5.0]]

    @pytest.mark.parametrize(
        "shape", [(5,), (4, 3), (3, 4, 5), (3, 1, 4), (2, 3, 2, 3), (2, 3, 1, 2, 3), (2,) * 6]
    )
    @pytest.mark.parametrize("nnz", [0, 1, 25])
    @pytest.mark.parametrize("num_partitions", [1, 2, 7])
    def test_equals_dense_einsum(self, shape, nnz, num_partitions):
        coords, values, factors = make_integer_tensor(shape, nnz, seed=nnz)
        all_modes = reference.mttkrp_all_modes(coords, values, shape, factors, num_partitions)
        assert len(all_modes) == len(shape)
        for mode, swept in enumerate(all_modes):
            expected = compute_dense_mttkrp(coords, values, shape, factors, mode)
            plain = reference.mttkrp(coords, values, shape, factors, mode)
            assert plain.dtype == swept.dtype == np.float64
            np.testing.assert_array_equal(plain, expected)
            np.testing.assert_array_equal(swept, expected)

    def test_one_mode_gives_the_vector_in_each_column(self):
        out = reference.mttkrp(np.array([[2, 0, 2]]), [1.0, 2.0, 3.0], (4,), [np.ones((4, 2))], 0)
        assert out.tolist() == [[2.0, 2.0], [0.0, 0.0], [4.0, 4.0], [0.0, 0.0]]

    def test_output_factor_is_not_read(self):
        coords, values, factors = make_integer_tensor((3, 4, 2), 10, seed=2)
        for mode in range(3):
            expected = reference.mttkrp(coords, values, (3, 4, 2), factors, mode)
            poisoned = [np.full_like(f, np.nan) if w == mode else f for w, f in enumerate(factors)]
            out = reference.mttkrp(coords, values, (3, 4, 2), poisoned, mode)
            np.testing.assert_array_equal(out, expected)

    def test_float32_input_is_computed_in_float64(self):
        one = np.ones((1, 1), dtype=np.float32)
        values = np.array([2.0**24, 1.0], dtype=np.float32)
        out = reference.mttkrp(np.zeros((2, 2), dtype=np.int64), values, (1, 1), [one, one], 0)
        assert out.item() == 2.0**24 + 1


class TestSweep:
    def test_ends_in_the_order_of_mode_0(self):
        shape = (5, 4, 3)
        coords, values, factors = make_integer_tensor(shape, 20, seed=3)
        t_in = reference.make_elements(coords, values, shape, 3)
        assert np.array_equal(t_in["alpha"][:, 0], np.arange(20))
        before = t_in.copy()
        _, after = reference.sweep_modes(t_in, shape, factors, 3)
        assert np.array_equal(after, before)

    def test_second_sweep_repeats_the_first_bit_for_bit(self):
        rng = np.random.default_rng(4)
        shape = (5, 4, 3)
        coords, values, _ = make_integer_tensor(shape, 20, seed=4)
        factors = [rng.standard_normal((size, 3)) for size in shape]
        kept = [factor.copy() for factor in factors]
        t_in = reference.make_elements(coords, values, shape, 3)
        first, t_in = reference.sweep_modes(t_in, shape, factors, 3)
        second, _ = reference.sweep_modes(t_in, shape, factors, 3)
        for one, two, factor, copy in zip(first, second, factors, kept, strict=True):
            assert np.array_equal(one, two)
            assert np.array_equal(factor, copy)

    def test_each_mode_reads_the_tensor_in_its_own_order(self, monkeypatch):
        coords, values, factors = make_integer_tensor((5, 4, 3), 20, seed=5)
        seen = {0: [], 1: [], 2: []}
        run_block = reference.thread_block

        def watch(elements, factors, mode, output, t_out):
            seen[mode].extend(elements["alpha"][:, mode])
            run_block(elements, factors, mode, output, t_out)

        monkeypatch.setattr(reference, "thread_block", watch)
        reference.mttkrp_all_modes(coords, values, (5, 4, 3), factors, 3)
        assert seen == {mode: list(range(20)) for mode in range(3)}


class TestErrorBound:
    def test_known_answer(self):
        factors = [np.ones((2, 1)), np.array([[-4.0]])]
        bound = reference.mttkrp_error_bound(
            np.array([[0, 0], [0, 0]]), np.array([2.0, -3.0]), (2, 1), factors, 0, np.float64
        )
        eps = np.finfo(np.float64).eps / 2
        of_oracle = 3 * eps + 2 * np.finfo(np.longdouble).eps / 2
        expected = (4 * eps + float(of_oracle)) * 20
        assert bound[0, 0] == pytest.approx(expected, rel=1e-12, abs=0)
        assert bound[1, 0] == 0

    def test_flushing_adds_the_smallest_normal_for_each_operation(self):
        factors = [np.ones((2, 1)), np.zeros((1, 1))]
        arguments = (np.array([[0, 0, 1], [0, 0, 0]]), np.ones(3), (2, 1), factors, 0, np.float32)
        added = reference.mttkrp_error_bound(*arguments, flush_to_zero=True)
        added -= reference.mttkrp_error_bound(*arguments)
        tiny = float(np.finfo(np.float32).tiny)
        np.testing.assert_allclose(added.ravel(), [4 * tiny, 2 * tiny], rtol=1e-15)

    def test_float32_arithmetic_keeps_within_it(self):
        rng = np.random.default_rng(6)
        shape = (3, 4, 5)
        coords = np.stack([rng.integers(0, size, 200) for size in shape])
        values = rng.standard_normal(200).astype(np.float32)
        factors = [rng.standard_normal((size, 4)).astype(np.float32) for size in shape]
        out = np.zeros((3, 4), dtype=np.float32)
        np.add.at(out, coords[0], values[:, None] * factors[1][coords[1]] * factors[2][coords[2]])
        exact = reference.mttkrp(coords, values, shape, factors, 0)
        error = np.abs(out - exact)
        assert (error <= self.bound(coords, values, shape, factors, np.float32)).all()
        assert (error > self.bound(coords, values, shape, factors, np.float64)).any()

    def test_is_tight_enough_to_detect_one_lost_nonzero(self):
        shape = (3, 4, 5)
        coords, values, factors = make_integer_tensor(shape, 30, seed=7)
        factors = [np.abs(factor) + 1 for factor in factors]
        values = np.abs(values) + 1
        full = reference.mttkrp(coords, values, shape, factors, 0)
        lost = reference.mttkrp(coords[:, 1:], values[1:], shape, factors, 0)
        bound = self.bound(coords, values, shape, factors, np.float32)
        row = coords[0, 0]
        assert (full[row] - lost[row] > bound[row]).all()

    @staticmethod
    def bound(coords, values, shape, factors, dtype):
        return reference.mttkrp_error_bound(coords, values, shape, factors, 0, dtype)


def test_imports_nothing_but_numpy():
    source = inspect.getsource(reference).splitlines()
    imports = [line for line in source if line.startswith(("import ", "from "))]
    assert imports == ["import numpy as np"]
