"""Plant thirty deliberate faults, one by one, and say which test kills each: ``python mutants.py``.

A fault replaces a text that occurs once in its file. It is planted in a copy of the package and the
tests, never in the checkout. The tests that it names run there, then all of its room, until one
fails, which must pass in a copy without the fault. The program ends with 1 if a fault survives: a
test that fails is missing then. ``mutants.py NAME ...`` plants some faults only.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = "tensorly_flycoo"

#: What tests read.
COPIED = (PACKAGE, "tests", "examples", "pyproject.toml")


class Mutant(NamedTuple):
    """A fault."""

    name: str
    file: str  # in the package
    old: str
    new: str
    tests: str  # arguments of pytest: the tests that should kill it


MUTANTS = [
    # Engines: MTTKRP, TTMc and building on a CPU.
    Mutant(
        name="the last nonzero is lost",
        file="engines/cpu/records.py",
        old="np.uint64(smaller(first + tiles.size, nnz))",
        new="np.uint64(smaller(first + tiles.size, nnz - 1))",
        tests="tests/unit/engines/cpu/test_engine.py::test_every_edge_of_tiles_and_buckets",
    ),
    Mutant(
        name="the last of several tiles is lost",
        file="engines/cpu/engine.py",
        old="threads.launch(mttkrp.mttkrp_tiles, num_tiles, *arguments,",
        new="threads.launch(mttkrp.mttkrp_tiles, max(1, num_tiles - 1), *arguments,",
        tests="tests/unit/engines/cpu/test_engine.py::test_every_edge_of_tiles_and_buckets",
    ),
    Mutant(
        name="the last carry is lost",
        file="engines/cpu/mttkrp.py",
        old="    for tile in range(carry_rows.shape[0]):\n",
        new="    for tile in range(carry_rows.shape[0] - 1):\n",
        tests="tests/unit/engines/cpu/test_engine.py::test_one_row_holds_everything",
    ),
    Mutant(
        name="a carry goes to the slot before its own",
        file="engines/cpu/engine.py",
        old="np.where(carry_rows >= 0, slots_of_rows, carry_rows)",
        new="np.where(carry_rows >= 0, np.maximum(slots_of_rows - 1, 0), carry_rows)",
        tests="tests/unit/engines/cpu/test_cpu_ttmc.py::test_slots_keep_only_nonempty_rows",
    ),
    Mutant(
        name="a sum of a row begins anew in a later block",
        file="engines/cpu/segments.py",
        old="goes_on = first % tile_size > 0 and read_row",
        new="goes_on = first % tile_size > 1 and read_row",
        tests="tests/unit/engines/cpu/test_segments.py",
    ),
    Mutant(
        name="a duplicate of the first nonzero is not seen",
        file="engines/cpu/sorting.py",
        old="is_less = i == 0  #",
        new="is_less = i <= 1  #",
        tests="tests/unit/format/test_ordering.py tests/unit/tensor/test_constructors.py",
    ),
    Mutant(
        name="remap ids are out by one",
        file="engines/cpu/primitives.py",
        old="        stored[...] = places\n",
        new="        stored[...] = np.roll(places, 1)\n",
        tests="tests/unit/format/test_layouts.py "
        "tests/unit/engines/cpu/test_engine.py::test_remapping_keeps_every_bit",
    ),
    Mutant(
        name="a step of ADMM begins from a stale dual variable",
        file="engines/cpu/row_updates.py",
        old="        store(d, dual, line, e)\n",
        new="        store(d - difference, dual, line, e)\n",
        tests="tests/unit/engines/cpu/test_cpu_row_updates.py",
    ),
    Mutant(
        name="the last row of a block has no part in a narrow column's scale",
        file="engines/cpu/narrow_rows.py",
        old="        for i in range(first, end):\n            largest = larger_magnitude",
        new="        for i in range(first, end - np.uint64(1)):\n"
        "            largest = larger_magnitude",
        tests="tests/unit/engines/cpu/test_cpu_narrow_rows.py",
    ),
    # Engines: what runs without a GPU of its kernels and exchanges.
    Mutant(
        name="the last block of Gram matrices is lost",
        file="engines/cuda/kernels/tall/products.cu",
        old="min(static_cast<long long>(SEGMENT), num_blocks - first);",
        new="min(static_cast<long long>(SEGMENT), num_blocks - 1 - first);",
        tests="tests/unit/engines/cuda/test_cuda_products.py",
    ),
    Mutant(
        name="a dual variable has the wrong sign",
        file="engines/cuda/kernels/tall/row_rules.cuh",
        old="    d = updated - point;\n",
        new="    d = point - updated;\n",
        tests="tests/unit/engines/cuda/test_cuda_row_updates.py",
    ),
    Mutant(
        name="a part of the measures is lost",
        file="engines/cuda/kernels/tall/add_measures.cu",
        old="for (int other = 1; other < NUM_PARTS; ++other)",
        new="for (int other = 2; other < NUM_PARTS; ++other)",
        tests="tests/unit/engines/cuda/test_cuda_row_updates.py",
    ),
    Mutant(
        name="memory of another GPU is used again before it was read",
        file="engines/cuda/gpus.py",
        old="            self._wait(owners, users)\n",
        new="",
        tests="tests/unit/engines/cuda/test_exchange.py",
    ),
    # Formats and layouts.
    Mutant(
        name="a remap is skipped",
        file="format/remap.py",
        old="                primitives.remap(self._find_step(), self.cut)\n",
        new="",
        tests="tests/unit/format/test_layouts.py "
        "tests/unit/engines/cpu/test_engine.py::test_remapping_keeps_every_bit",
    ),
    Mutant(
        name="a bit of a coordinate across two words is lost",
        file="format/packing.py",
        old="self.word_dtype.type(32 - self.shifts[mode])",
        new="self.word_dtype.type(33 - self.shifts[mode])",
        tests="tests/unit/format/test_packing.py",
    ),
    # Slabs, devices and row shards.
    Mutant(
        name="the sum of a slab is lost",
        file="spread/slab_layout.py",
        old="            left += right\n",
        new="",
        tests="tests/conformance/test_slabs.py::test_every_mode_in_memory_full_of_nan",
    ),
    Mutant(
        name="the sum of a device's second slab is lost",
        file="spread/spread_layout.py",
        old="                results[a] += results.pop(b)\n",
        new="                results.pop(b)\n",
        tests="tests/conformance/test_several_devices.py::test_mttkrp",
    ),
    Mutant(
        name="all blocks are rounded by the scales of the first",
        file="spread/row_shards.py",
        old="    scales = reduce(np.maximum, scales_of_blocks)\n",
        new="    scales = scales_of_blocks[0]\n",
        tests="tests/unit/spread/test_row_shards.py",
    ),
    # Loops.
    Mutant(
        name="the Gram matrix of a factor is stale",
        file="loop/factor_grams.py",
        old="if known is None or known.factor() is not factor:",
        new="if known is None:",
        tests="tests/unit/loop/test_factor_grams.py",
    ),
    Mutant(
        name="a Gram matrix that is kept is given away",
        file="loop/cp_model.py",
        old="product = grams[0].copy()",
        new="product = grams[0]",
        tests="tests/unit/loop/test_factor_grams.py",
    ),
    Mutant(
        name="the state of an earlier model changes with later ones",
        file="loop/poisson.py",
        old="self._sums.copy()  # the next sweep writes to them",
        new="self._sums",
        tests="tests/unit/decomposition/test_generalized_parafac.py"
        "::test_a_model_of_a_callback_is_saved_as_it_was",
    ),
    Mutant(
        name="the pass of a group serves another factor",
        file="ops/mttkrp.py",
        old="            and all(map(operator.is_, outer_factors, last_factors))\n",
        new="",
        tests="tests/conformance/test_group_passes.py::test_what_the_last_pass_serves",
    ),
    Mutant(
        name="a factor stays extrapolated although the loss rose",
        file="loop/acceleration.py",
        old="            sweep.take_back(kept)\n",
        new="",
        tests="tests/unit/loop/test_momentum.py",
    ),
    Mutant(
        name="the mean of ratings keeps its scale",
        file="loop/scaling.py",
        old="    shares[-1, -1] = exponent\n",
        new="",
        tests="tests/conformance/test_scale.py::test_a_power_of_two_changes_no_bit -k observed",
    ),
    # Tensors and masks.
    Mutant(
        name="entries in the first row of a slab are lost",
        file="tensor/pieces.py",
        old="is_inside = (rows >= 0)",
        new="is_inside = (rows > 0)",
        tests="tests/unit/tensor/test_pieces.py",
    ),
    Mutant(
        name="rows that a list selects are swapped",
        file="tensor/indexing.py",
        old="            coords[mode] = order[places]\n",
        new="            coords[mode] = places\n",
        tests="tests/unit/tensor/test_indexing.py",
    ),
    Mutant(
        name="the plan of a COO is stale",
        file="tensor/coo_cache.py",
        old="            if check_coords or facts != self._facts:\n",
        new="            if facts != self._facts:\n",
        tests="tests/unit/tensor/test_coo_cache.py",
    ),
    Mutant(
        name="a mask forgets the first of the selected rows",
        file="tensor/unknown.py",
        old="    is_taken = cells[mode] >= 0\n",
        new="    is_taken = cells[mode] > 0\n",
        tests="tests/unit/tensor/test_unknown.py tests/unit/tensor/test_labelled.py",
    ),
    # Models and files.
    Mutant(
        name="a mask does not keep cells from being held out",
        file="models/heldout_loss.py",
        old="            coords = coords[:, ~is_unknown]\n",
        new="",
        tests="tests/unit/models/test_select_rank.py"
        "::test_cells_that_a_mask_marks_are_not_held_out",
    ),
    Mutant(
        name="labels are given by the inverse order",
        file="io/entries.py",
        old="    label_of_distinct = np.argsort(order)\n",
        new="    label_of_distinct = order\n",
        tests="tests/unit/io/test_entries.py tests/unit/io/test_dataframe.py",
    ),
]


def plant(mutant: Mutant, root: Path) -> None:
    """Write a fault to a copy of the package; refuse a text that does not occur just once."""
    path = root / PACKAGE / mutant.file
    text = path.read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.name}: {mutant.old!r} occurs {count} times in {mutant.file}")
    path.write_text(text.replace(mutant.old, mutant.new))


def list_tests(mutant: Mutant) -> list[list[str]]:
    """List the arguments of runs of pytest: the named tests, then those of the fault's room."""
    room = Path("tests/unit") / mutant.file
    while not (ROOT / room).is_dir():
        room = room.parent
    return [mutant.tests.split(), [str(room)]]


def copy_checkout(copy: Path) -> None:
    """Copy the package and the tests, without bytecode, to a folder; remove what was there."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)


def run_tests(copy: Path, arguments: list[str]) -> str:
    """Run tests in a copy; return the first that fails, or "" if all pass."""
    # A cache of this copy alone, which is never stale: its stamp is a hash of the sources.
    cache = copy.with_name(f"numba-{copy.name}")
    environment = {**os.environ, "PYTHONPATH": str(copy), "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-rfE", "--timeout", "120"]
    command += ["-p", "no:cacheprovider", *arguments]
    process = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if process.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", process.stdout, re.MULTILINE)
    if process.returncode != 1 or failed is None:
        raise RuntimeError(f"{command} ended with {process.returncode}:\n{process.stdout[-2000:]}")
    return failed[1]


def find_killer(mutant: Mutant, folder: Path) -> str:
    """Plant a fault in a new copy; return the test that fails for it, or "" if none does."""
    copy = folder / "mutant"
    copy_checkout(copy)
    plant(mutant, copy)
    for arguments in list_tests(mutant):
        killer = run_tests(copy, arguments)
        if not killer:
            continue
        if run_tests(folder / "original", [killer]):
            raise RuntimeError(f"{killer} fails without a fault, too")
        return killer
    return ""


def main() -> int:
    """Plant the faults, and print the test that kills each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="faults to plant; by default all")
    names = parser.parse_args().names
    unknown = {*names} - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"{sorted(unknown)} are no faults")
    mutants = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    num_survivors = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_checkout(folder / "original")
        for mutant in mutants:
            start = time.monotonic()
            killer = find_killer(mutant, folder)
            num_survivors += not killer
            seconds = time.monotonic() - start
            print(f"| {mutant.name} | {mutant.file} | {killer or 'SURVIVED'} | {seconds:.0f} s |")
            sys.stdout.flush()
    print(f"{len(mutants) - num_survivors} of {len(mutants)} killed")
    return int(num_survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
