"""Tests are of the CPU engine, also where there is a GPU; those in gpu/ choose their device."""

import os

os.environ.setdefault("TENSORLY_FLYCOO_DEVICE", "cpu")
