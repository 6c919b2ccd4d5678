"""Another library's ADMM: what it is called with, that a wrong result is found, the table."""

import json
import shutil
import subprocess

import benchmark_admm
import pytest
from benchmark_gpu.structured import STRUCTURES, Structure

#: AO-ADMM of three modes as simple as can be; BROKEN leaves out the last step.
SOURCE = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static int rank; static int64_t nnz, shape[3]; static int32_t *coords; static double *values;
void *rival_open(int ndim, int64_t n, const int64_t *s, const int32_t *c, const double *v, int r) {
  nnz = n; rank = r;
  memcpy(shape, s, sizeof shape);
  coords = memcpy(malloc(3 * n * sizeof *c), c, 3 * n * sizeof *c);
  values = memcpy(malloc(n * sizeof *v), v, n * sizeof *v);
  return values;
}
static void solve(const double *matrix, double *x) {  /* Gauss */
  double a[8][8];
  memset(a, 0, sizeof a);
  for (int i = 0; i < rank; ++i) for (int j = 0; j < rank; ++j) a[i][j] = matrix[i * rank + j];
  for (int i = 0; i < rank; ++i)
    for (int j = i + 1; j < rank; ++j) {
      double ratio = a[j][i] / a[i][i];
      for (int k = i; k < rank; ++k) a[j][k] -= ratio * a[i][k];
      x[j] -= ratio * x[i];
    }
  for (int i = rank - 1; i >= 0; --i) {
    for (int k = i + 1; k < rank; ++k) x[i] -= a[i][k] * x[k];
    x[i] /= a[i][i];
  }
}
static void update(int mode, int num_steps, double *const *factors, double *dual) {
  const double *b = factors[(mode + 1) % 3], *c = factors[(mode + 2) % 3];
  const int32_t *rows = coords + mode * nnz;
  const int32_t *p = coords + (mode + 1) % 3 * nnz, *q = coords + (mode + 2) % 3 * nnz;
  double *product = calloc(shape[mode] * rank, sizeof *product), gram[64], penalty = 0, x[8];
  for (int64_t i = 0; i < nnz; ++i)
    for (int r = 0; r < rank; ++r)
      product[rows[i] * rank + r] += values[i] * b[p[i] * rank + r] * c[q[i] * rank + r];
  for (int r = 0; r < rank; ++r)
    for (int s = 0; s < rank; ++s) {
      double left = 0, right = 0;
      for (int i = 0; i < shape[(mode + 1) % 3]; ++i) left += b[i * rank + r] * b[i * rank + s];
      for (int i = 0; i < shape[(mode + 2) % 3]; ++i) right += c[i * rank + r] * c[i * rank + s];
      gram[r * rank + s] = left * right;
    }
  for (int r = 0; r < rank; ++r) penalty += gram[r * rank + r] / rank;
  for (int r = 0; r < rank; ++r) gram[r * rank + r] += penalty;
  for (int64_t i = 0; i < shape[mode]; ++i) {
    double *row = factors[mode] + i * rank, *u = dual + i * rank;
    for (int step = BROKEN; step < num_steps; ++step) {
      for (int r = 0; r < rank; ++r) x[r] = product[i * rank + r] + penalty * (row[r] + u[r]);
      solve(gram, x);
      for (int r = 0; r < rank; ++r) row[r] = x[r] > u[r] ? x[r] - u[r] : 0;
      for (int r = 0; r < rank; ++r) u[r] += row[r] - x[r];
    }
  }
  free(product);
}
int rival_iterate(void *rival, const char *setting, int threads, int num_iterations, int num_steps,
                  double *const *factors, double *seconds) {
  if (threads > 1) return 1;
  double *duals[3];
  for (int m = 0; m < 3; ++m) duals[m] = calloc(shape[m] * rank, sizeof(double));
  for (int i = 0; i < num_iterations; ++i)
    for (int m = 0; m < 3; ++m) update(m, num_steps, factors, duals[m]);
  for (int i = 0; i + 1 < num_iterations; ++i) seconds[i] = i + 1;
  return 0;
}
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Return a function that builds the library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    structure = Structure((6, 5, 40), (6, 12, 300), (0, 0, 0))
    monkeypatch.setitem(STRUCTURES, "uber", structure)

    def build(is_broken):
        source, library = tmp_path / "plain.c", tmp_path / "plain-float64.so"
        source.write_text(SOURCE)
        flags = [f"-DBROKEN={int(is_broken)}", "-O1", "-shared", "-fPIC", "-w"]
        subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
        return [str(library), "--tensors", "uber, real pairs", "--rank", "4", "--settings", "any"]

    return build


@pytest.mark.slow
def test_the_program_measures_ours_and_a_library(build, tmp_path, capsys):
    path = tmp_path / "rows.json"
    rows = benchmark_admm.main([*build(is_broken=False), "--json", str(path)])
    ours, other = rows
    assert (ours["tool"], ours["s"].keys()) == ("flycoo", {1, 2})
    assert min(ours["s"].values()) > 0
    assert (other["tool"], other["setting"], other["s"]) == ("plain", "any", {1: 2.0})
    assert "   2000.00       nan" in capsys.readouterr().out
    assert json.loads(path.read_text())[-1]["tool"] == "plain"


def test_another_number_of_steps_is_found(build):
    with pytest.raises(RuntimeError, match="shares from"):
        benchmark_admm.main([*build(is_broken=True), "--rounds", "1"])
