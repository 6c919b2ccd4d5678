"""Other libraries' finished programs, on the same nonzeros and factors as ours.

`--library NAME=PATH` names a program, which is called as ``PATH INPUT OUTPUT`` for each tensor.
INPUT has no gaps; all numbers are little-endian::

    int64   ndim, nnz, rank
    int64   shape[ndim]
    int32   coords[ndim][nnz]           from 0, in no order; values of repeated ones add up
    float32 values[nnz]
    float32 factors[ndim][shape[m]][rank]

The program computes the MTTKRP of each mode from these factors, writes all of them to OUTPUT as
``float32 outputs[ndim][shape[m]][rank]``, and prints one line of JSON at the end::

    {"build_s": 0.81, "mttkrp_s": [0.0021, 0.0018, 0.0035]}

that is, the seconds of building its format, and of the MTTKRP of each mode, clearing included.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

#: No entry may differ from ours by more of the largest one: sums of millions of float32 by atomics.
_MOST_DIFFERENCE = 0.05


def parse_library(text):
    """Return name and path of an option NAME=PATH."""
    name, separator, path = text.partition("=")
    if not (name and separator and Path(path).is_file()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=PATH of a program")
    return name, str(Path(path).resolve())


def write_problem(path, coords, values, factors):
    """Write the file that a program reads."""
    ndim, nnz = coords.shape
    rank, shape = factors[0].shape[1], [factor.shape[0] for factor in factors]
    with path.open("wb") as file:
        np.array([ndim, nnz, rank, *shape], "<i8").tofile(file)
        coords.astype("<i4", copy=False).tofile(file)
        for array in (values, *factors):
            array.astype("<f4", copy=False).tofile(file)


def measure_libraries(libraries, coords, values, factors, expected, limit_s):
    """Run each program on one tensor, for so many seconds at most.

    Returns
    -------
    list of dict
        For each program its name, what it printed, and the largest difference of an MTTKRP from
        the expected one, relative to that one's largest entry; or, instead, why it "failed".
    """
    with tempfile.TemporaryDirectory() as folder:
        problem, output = Path(folder, "input"), Path(folder, "output")
        write_problem(problem, coords, values, factors)
        rows = []
        for name, path in libraries:
            try:
                row = _run(path, problem, output, expected, limit_s)
            except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
                row = {"failed": f"{type(error).__name__}: {error}"}
                print(f"{name} FAILED: {row['failed']}", flush=True)
            rows.append({"name": name, **row})
            output.unlink(missing_ok=True)
        return rows


def _run(path, problem, output, expected, limit_s):
    process = subprocess.run(
        [path, str(problem), str(output)], stdout=subprocess.PIPE, timeout=limit_s, check=True
    )
    printed = json.loads(process.stdout.splitlines()[-1])
    row = {"build_s": float(printed["build_s"]), "mttkrp_s": list(map(float, printed["mttkrp_s"]))}
    if len(row["mttkrp_s"]) != len(expected):
        raise ValueError(f"{len(row['mttkrp_s'])} times, expected one for each mode")
    sizes = [array.size for array in expected]
    found = np.fromfile(output, "<f4")
    if found.size != sum(sizes):
        raise ValueError(f"{found.size} numbers in its output, expected {sum(sizes)}")
    row["difference"] = max(
        float(abs(own.reshape(array.shape) - array).max() / abs(array).max())
        for own, array in zip(np.split(found, np.cumsum(sizes)[:-1]), expected, strict=True)
    )
    if not row["difference"] <= _MOST_DIFFERENCE:
        raise ValueError(f"a difference of {row['difference']:.1e} of the largest entry from ours")
    return row
