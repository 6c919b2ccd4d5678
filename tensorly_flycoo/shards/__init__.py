"""Factors whose rows are on several devices."""

from . import functions as functions
