"""Files damaged in many ways, and the rules for readers.

A reader either reads the file or raises a ValueError that names the file and the place of the
damage. No other error may occur, while reading or while computing with the loaded tensor.
"""

import gzip
import io
import re
import zipfile

import numpy as np

from tensorly_flycoo import FlycooTensor, load, mttkrp, save
from tensorly_flycoo.base.checks import LAYOUTS
from tensorly_flycoo.io.parts import Reading

#: One for each reader.
NAMES = ("x.tns", "x.tns.gz", "x.npz")

_TEXTS = [
    b"1 1 2 3.5\n4 5 6 -1e-2\n",
    b"# shape: 4 5 6\n1 1 2 3.5\n\n% more\n4 5 6 -1e-2",
    b"3\n4 5 6\n2\n1 1 2 +.5E-7\r\n4\t5 6 123456789012345678901234567890\n",
    b"sptensor\n2\n4294967296 5\n1 1 inf\n",
    b"4 5\n1 5 1\n4 1 2\n",
    b"%%MatrixMarket tensor coordinate real general\n% a\n4 5 6 2\n1 1 2 3.5\n4 5 6 -1e-2\n",
]
#: Bytes to insert: special in one of the formats or in many programs.
_TOKENS = [
    b"", b"0", b"-1", b" ", b"\n", b"\r", b"\t", b"\x00", b"#", b"# shape: ", b"nan", b"1e999",
    b"_", b".", b"e", b"4294967297", b"18446744073709551616", b"9" * 400, b"1 " * 70, b"\xff\xff",
    b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"(1099511627776,)", b"|O", b"<U9", b"True",
    b"[" * 2000, b"null", b'"',
]  # fmt: skip

#: How a message continues after the path: the place of the damage.
_TEXT_PLACE = re.compile(
    r"(, line \d+| is truncated|, header| is damaged, or not \.gz): .| expands to more than "
    r"| has no nonzeros and no header with a shape: "
)
_SAVED_PLACE = re.compile(
    r" is damaged, or not a saved tensor: .| has format version .*, expected "
)
#: The array that holds the JSON header.
_HEADER = "header.npy"

#: Limits for computing with a loaded tensor: kernels are compiled for each number of modes.
_MAX_NDIM, _MAX_SIZE = 3, 1000


def make_corpus(folder):
    """Return lists of good files by name."""
    saved = []
    for layout in LAYOUTS:
        x = FlycooTensor([[0, 2, 1], [1, 0, 1]], [0.5, 3.0, 2.0], (3, 2), layout=layout)
        save(folder / "good.npz", x)
        saved.append((folder / "good.npz").read_bytes())
    packed = [pack("x.tns.gz", {"": text}) for text in _TEXTS]
    return dict(zip(NAMES, (_TEXTS, packed, saved), strict=True))


def pack(name, parts):
    """Make a file from its parts, with correct checksums."""
    if not name.endswith(".npz"):
        return gzip.compress(parts[""], 1) if name.endswith(".gz") else parts[""]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for part, data in parts.items():
            if part == _HEADER:
                text = np.array(data.decode(errors="replace"))
                with archive.open(part, "w") as member:
                    np.lib.format.write_array(member, text)
            else:
                archive.writestr(part, data)
    return file.getvalue()


def unpack(name, data):
    """Return the parts of a file by name; none if it cannot be unpacked.

    The header of a saved tensor is unpacked to its text.
    """
    try:
        if name.endswith(".npz"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                names = filter(str.isprintable, filter(None, archive.namelist()))
                parts = {part: archive.read(part) for part in names}
            text = np.lib.format.read_array(io.BytesIO(parts[_HEADER]))
            return parts | {_HEADER: str(text).encode()}
        return {"": gzip.decompress(data) if name.endswith(".gz") else data}
    except Exception:
        return {}


def damage(name, data, random, change):
    """Change a file, or its unpacked parts: checksums would reject most changes of packed bytes."""
    parts = unpack(name, data)
    if random.random() < 0.5 or not parts:
        return change(data)
    part = random.choice(sorted(parts))
    return pack(name, parts | {part: change(parts[part])})


def edit(data, random):
    """Change some bytes."""
    place = random.randint(0, len(data))
    head, tail = data[:place], data[place:]
    token = random.choice([*_TOKENS, bytes(random.choices(range(256), k=random.randint(0, 8)))])
    return random.choice([
        lambda: head + token + tail,
        lambda: head + token + tail[len(token) :],
        lambda: head + bytes(byte ^ 1 << len(token) % 8 for byte in tail[:1]) + tail[1:],
        lambda: head,
        lambda: head + tail[: len(token)] * 5 + tail,
    ])()  # fmt: skip


def read(path):
    """Read a file and compute with a loaded tensor; return whether the file was good."""
    is_saved, wrong = path.suffix == ".npz", None
    try:
        x = load(path, device="cpu") if is_saved else Reading().read_tns([path])
    except ValueError as error:
        wrong = error
    if wrong is not None:
        place, text = _SAVED_PLACE if is_saved else _TEXT_PLACE, str(wrong).removeprefix(str(path))
        if type(wrong) is not ValueError or not place.match(text) or not text.isprintable():
            raise AssertionError("not a ValueError that names the place") from wrong
    elif is_saved and x.ndim <= _MAX_NDIM and max(x.shape) <= _MAX_SIZE:
        factors = [np.ones((size, 2), x.dtype) for size in x.shape]
        for mode in range(x.ndim):
            mttkrp(x, factors, mode)
    return wrong is None
