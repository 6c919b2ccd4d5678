"""Hand damaged files to the readers: ``python tests/fuzz_readers.py --examples 100000``.

Each input is one of a corpus of good files after some edits. A reader may
read it, or raise a ValueError that begins with the path; it must not do anything else, nor take
longer than `LIMIT_S`, nor (as a script, where it can be limited) memory beyond `LIMIT_NBYTES`.
"""

import argparse
import gzip
import io
import resource
import tempfile
import time
import zipfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorly_flycoo import FlycooTensor, load, save
from tensorly_flycoo.checks import LAYOUTS
from tensorly_flycoo.io.tns import read_nonzeros

LIMIT_S, LIMIT_NBYTES = 10, 2**31

TEXTS = [
    b"1 1 2 3.5\n4 5 6 -1e-2\n",
    b"# shape: 4 5 6\n1 1 2 3.5\n\n% more\n4 5 6 -1e-2",
    b"3\n4 5 6\n2\n1 1 2 +.5E-7\r\n4\t5 6 123456789012345678901234567890\n",
    b"sptensor\n2\n4294967296 5\n1 1 inf\n",
    b"4 5\n1 5 1\n4 1 2\n",
]
#: What an edit puts in: what is special to one of the formats, or to many programs.
TOKENS = [
    b"", b"0", b"-1", b" ", b"\n", b"\r", b"\t", b"\x00", b"#", b"# shape: ", b"nan", b"1e999",
    b"_", b".", b"e", b"4294967297", b"18446744073709551616", b"9" * 400, b"1 " * 70, b"\xff\xff",
    b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"(1099511627776,)", b"|O", b"<U9", b"True",
]  # fmt: skip


def make_corpus(folder):
    """Return good files by what reads them: .tns, .tns.gz and saved; each as a dict of parts."""
    saved = []
    for layout in LAYOUTS:
        x = FlycooTensor([[0, 2, 1], [1, 0, 1]], [0.5, 3.0, 2.0], (3, 2), layout=layout)
        save(folder / "good.npz", x)
        with zipfile.ZipFile(folder / "good.npz") as archive:
            saved.append({name: archive.read(name) for name in archive.namelist()})
    texts = [{"text": text} for text in TEXTS]
    return {"x.tns": texts, "x.tns.gz": texts, "x.npz": saved}


def pack(name, parts):
    """Make the file of some parts; its checksums are right."""
    if name.endswith(".npz"):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for part, data in parts.items():
                archive.writestr(part, data)
        return file.getvalue()
    return gzip.compress(parts["text"], 1) if name.endswith(".gz") else parts["text"]


edits = st.tuples(
    st.integers(0, 2**16),
    st.sampled_from(["put", "replace", "flip", "cut", "repeat"]),
    st.one_of(st.sampled_from(TOKENS), st.binary(max_size=8)),
)


def edit(data, place, kind, token):
    """Change bytes at a place, which is taken modulo the length."""
    place %= len(data) + 1
    head, tail = data[:place], data[place:]
    if kind == "put":
        return head + token + tail
    if kind == "replace":
        return head + token + tail[len(token) :]
    if kind == "flip":
        return head + bytes(byte ^ 1 << (len(token) % 8) for byte in tail[:1]) + tail[1:]
    return head if kind == "cut" else head + tail[: len(token)] * 5 + tail


def read(path):
    """Read a file; return whether it was good."""
    start_s, is_good = time.perf_counter(), True
    try:
        if path.suffix == ".npz":
            load(path, device="cpu")
        else:
            read_nonzeros(path, None, 1, None)
    except ValueError as error:
        is_good = False
        if not str(error).startswith(str(path)):
            raise AssertionError("an error without the path") from error
    assert time.perf_counter() - start_s < LIMIT_S
    return is_good


def fuzz(folder, num_examples, derandomize=False):
    """Read so many inputs; return how many were good, by reader."""
    corpus, counts = make_corpus(folder), {}

    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def read_one(data):
        name = data.draw(st.sampled_from(sorted(corpus)))
        parts = dict(data.draw(st.sampled_from(corpus[name])))
        changes = data.draw(st.lists(edits, min_size=1, max_size=4))
        # Inside of what is packed checksums would hide most edits, so half are made before it.
        is_inside = data.draw(st.booleans())
        part = data.draw(st.sampled_from(sorted(parts)))
        content = parts[part] if is_inside else pack(name, parts)
        for change in changes:
            content = edit(content, *change)
        path = folder / name
        path.write_bytes(pack(name, parts | {part: content}) if is_inside else content)
        num_read, num_good = counts.get(name, (0, 0))
        counts[name] = num_read + 1, num_good + read(path)

    read_one()
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=10_000)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_NBYTES, LIMIT_NBYTES))
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        counts = fuzz(Path(folder), options.examples)
    for name, (num_read, num_good) in sorted(counts.items()):
        print(f"{name}: {num_read} inputs, of which {num_good} could be read")
    num_read = sum(count for count, _ in counts.values())
    print(f"{num_read} inputs in {time.perf_counter() - start_s:.0f} s")
