"""Experiments from a file: tune, run, resume, compare, draw and report."""
