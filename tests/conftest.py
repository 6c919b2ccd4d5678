"""Tests are of the CPU engine, also where there is a GPU; those in gpu/ choose their device."""

import os

os.environ.setdefault("TENSORLY_FLYCOO_DEVICE", "cpu")

# Matrices are small here, and two processes run tests: a second thread of the BLAS would only wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

#: Doctests are not looked for in the files of this name, which are of one name.
collect_ignore_glob = ["conftest.py", "*/conftest.py"]
