"""Other libraries' MTTKRPs: what they are called with, that wrong outputs are found, the table."""

import json
import shutil
import subprocess

import benchmark_rivals
import pytest
from benchmark_gpu.structured import STRUCTURES, Structure

#: A library as simple as can be; BROKEN leaves out one nonzero.
SOURCE = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static int ndim, rank; static int64_t nnz, shape[8]; static int32_t *coords;
static double *values, *outputs[8]; static const double *factors[8];
void *rival_open(int n, int64_t count, const int64_t *s, const int32_t *c, const double *v, int r) {
  ndim = n; nnz = count; rank = r;
  memcpy(shape, s, n * sizeof *s);
  coords = memcpy(malloc(n * count * sizeof *c), c, n * count * sizeof *c);
  values = memcpy(malloc(count * sizeof *v), v, count * sizeof *v);
  for (int m = 0; m < n; ++m) outputs[m] = malloc(s[m] * r * sizeof *v);
  return outputs;
}
int rival_prepare(void *rival, const char *setting, int threads, const double *const *f) {
  memcpy(factors, f, ndim * sizeof *f);
  return threads > 1 || *setting;
}
void rival_mttkrp(void *rival, int mode) {
  memset(outputs[mode], 0, shape[mode] * rank * sizeof(double));
  for (int64_t i = BROKEN; i < nnz; ++i)
    for (int r = 0; r < rank; ++r) {
      double term = values[i];
      for (int m = 0; m < ndim; ++m)
        if (m != mode) term *= factors[m][coords[m * nnz + i] * rank + r];
      outputs[mode][coords[mode * nnz + i] * rank + r] += term;
    }
}
const double *rival_output(void *rival, int mode) { return outputs[mode]; }
"""


@pytest.fixture
def options(tmp_path, monkeypatch):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    structure = Structure((6, 5, 40), (6, 12, 300), (0, 0, 0))
    monkeypatch.setitem(STRUCTURES, "uber", structure)
    source = tmp_path / "plain.c"
    source.write_text(SOURCE)
    for name, broken in {"plain": 0, "broken": 1}.items():
        flags = [f"-DBROKEN={broken}", "-shared", "-fPIC", "-w"]
        library = tmp_path / f"{name}-float64.so"
        subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    return [str(tmp_path / "plain-float64.so"), "--tensors", "uber, real pairs", "--rank", "4"]


@pytest.mark.slow
def test_the_program_measures_ours_and_a_library(options, tmp_path, capsys):
    path = tmp_path / "rows.json"
    rows = benchmark_rivals.main([*options, "--json", str(path)])
    *ours, other = rows
    assert [row["setting"] for row in ours] == [
        "auto", "remap", "replicated", "indexed", "parafac",
    ]  # fmt: skip
    assert all(row["s"].keys() == {1, 2} and min(row["s"].values()) > 0 for row in ours)
    assert (other["tool"], other["s"].keys()) == ("plain", {1})  # it refuses two threads
    assert f"{1e3 * other['s'][1]:10.2f}       nan" in capsys.readouterr().out
    assert json.loads(path.read_text())[-1]["tool"] == "plain"


@pytest.fixture
def ours_left_out(monkeypatch):
    """Measure another library alone."""
    measure = benchmark_rivals.measure

    def measure_other(tool, *arguments):
        return {} if tool == "flycoo" else measure(tool, *arguments)

    monkeypatch.setattr(benchmark_rivals, "measure", measure_other)


def test_a_wrong_output_is_found(options, ours_left_out, capsys):
    rows = benchmark_rivals.main([options[0].replace("plain", "broken"), *options[1:]])
    assert "broken" not in {row["tool"] for row in rows}
    assert "mode 0: an error of" in capsys.readouterr().out


def test_the_program_measures_iterations_of_another_program(options, ours_left_out, tmp_path):
    program = tmp_path / "cpd64"
    lines = [f"it: {n} fit: 0.1 fit-delta: 0.1 time(for MTTKRP): {s} s (0.1 s)"
             for n, s in enumerate(("0.0001", "0.3", "0.25"))]  # fmt: skip
    program.write_text(
        "#!/bin/sh\ntest -s $2 && printf '%s\\n' " + " ".join(f"'{x}'" for x in lines)
    )
    program.chmod(0o755)
    *_, other = benchmark_rivals.main([str(program), *options[1:]])
    assert (other["tool"], other["setting"], other["s"]) == ("cpd64", "als", {1: 0.25, 2: 0.25})
