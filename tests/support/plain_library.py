"""A program for `examples/benchmark_gpu --library`, which reads its format without this package."""

import sys

_PROGRAM = """#!{python}
import json, struct, sys
import numpy as np
data = open(sys.argv[1], "rb").read()
ndim, nnz, rank = struct.unpack("<3q", data[:24])
shape = struct.unpack(f"<{{ndim}}q", data[24 : 24 + 8 * ndim])
place = 24 + 8 * ndim
coords = np.frombuffer(data, "<i4", ndim * nnz, place).reshape(ndim, nnz)
rest = np.frombuffer(data, "<f4", -1, place + coords.nbytes)
values, rest = rest[:nnz], rest[nnz:]
assert rest.size == rank * sum(shape)
factors = np.split(rest.reshape(-1, rank), np.cumsum(shape)[:-1])
with open(sys.argv[2], "wb") as file:
    for mode in range(ndim):
        terms = values[:, None].copy()
        for other in set(range(ndim)) - {{mode}}:
            terms = terms * factors[other][coords[other]]
        output = np.zeros((shape[mode], rank), "<f4")
        np.add.at(output, coords[mode], terms)
        ({scale} * output).astype("<f4").tofile(file)
print("reading")
print({printed!r} or json.dumps({{"build_s": 1, "mttkrp_s": [1] * ndim}}))
"""


def write_program(path, scale=1, printed=""):
    """Write a program that multiplies its output by `scale`; by default it prints seconds."""
    path.write_text(_PROGRAM.format(python=sys.executable, scale=scale, printed=printed))
    path.chmod(0o755)
    return path
