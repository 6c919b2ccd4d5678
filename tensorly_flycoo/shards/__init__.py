"""Factors whose rows are on several devices."""
