"""Feed a million damaged files to the readers.

A program, not a test. It runs from any folder where tensorly_flycoo is installed:

    pip install atheris
    python tests/support/fuzz_readers.py
    python tests/support/fuzz_readers.py -atheris_runs=1000 -seed=1
    python tests/support/fuzz_readers.py crash-FILE

Options are libFuzzer's; a file argument repeats an input of an earlier run. Atheris measures which
Python code of the readers each input reaches, and mutates inputs that reach new code; it cannot
see inside compiled loops. When a reader crashes, hangs, takes too much memory or breaks the rules
of damaged_files.py, the run saves the input to a file and ends. The first byte of an input selects
the reader.
"""

import atexit
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import atheris

# Not instrumented: numba could not compile the added code.
_COMPILED = [
    f"tensorly_flycoo.{name}"
    for name in (
        "engines.cpu.sorting", "engines.cpu.mttkrp", "engines.cpu.updates", "engines.cpu.ttmc",
    )
]  # fmt: skip
with atheris.instrument_imports(["tensorly_flycoo"], _COMPILED):
    from damaged_files import NAMES, damage, edit, make_corpus, read

LIMIT_S, LIMIT_NBYTES, MAX_INPUT_NBYTES = 10, 2**31, 2**14
_OPTIONS = [
    "-atheris_runs=1000000", f"-timeout={LIMIT_S}", f"-rss_limit_mb={LIMIT_NBYTES >> 20}",
    f"-max_len={MAX_INPUT_NBYTES}", "-mutate_depth=1",
]  # fmt: skip


class Fuzzer:
    """A maker and reader of inputs, in one folder."""

    def __init__(self, folder):
        self.folder, self.counts = folder, Counter()
        self.corpus = make_corpus(folder)

    def mutate(self, data, max_nbytes, seed):
        """Make an input for libFuzzer from a good file or from `data`."""
        random = Random(seed)
        name = random.choice(NAMES)
        file = random.choice(self.corpus[name])
        if data and random.random() < 0.5:
            name, file = NAMES[data[0] % len(NAMES)], data[1:]
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            file = damage(name, file, random, lambda part: self.change(part, random))
        return (bytes([NAMES.index(name)]) + file)[:max_nbytes]

    @staticmethod
    def change(part, random):
        """Change bytes with our edits or with libFuzzer's."""
        if random.random() < 0.5:
            return edit(part, random)
        return atheris.Mutate(part, len(part) + 64)

    def read(self, data):
        """Read one input."""
        if data:
            path = self.folder / NAMES[data[0] % len(NAMES)]
            path.write_bytes(data[1:])
            self.counts[path.name, read(path)] += 1

    def report(self, start_s):
        """Print the number of inputs of each reader."""
        for name in NAMES:
            num_good, num_bad = self.counts[name, True], self.counts[name, False]
            print(f"{name}: {num_good + num_bad} inputs, of which {num_good} could be read")
        print(f"{self.counts.total()} inputs in {time.perf_counter() - start_s:.0f} s")


def main():
    folder = tempfile.TemporaryDirectory()
    fuzzer = Fuzzer(Path(folder.name))
    # Excessive memory use then raises a MemoryError, which libFuzzer reports.
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_NBYTES, LIMIT_NBYTES))
    atexit.register(fuzzer.report, time.perf_counter())
    options = [sys.argv[0], *_OPTIONS, *sys.argv[1:]]
    atheris.Setup(options, fuzzer.read, custom_mutator=fuzzer.mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
