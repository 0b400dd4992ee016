"""Reads the run folders that the program `annulus` writes. It needs only the standard library; with pandas
`Run.metrics` is a DataFrame."""

from annulus.program import program
from annulus.run import Run, RunError, runs

__all__ = ["Run", "RunError", "program", "runs"]
