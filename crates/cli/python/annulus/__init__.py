"""Reads the run folders that the program `annulus` writes. Nothing but the standard library is needed; with pandas
`Run.metrics` is a DataFrame."""

from annulus.program import program
from annulus.run import Run, RunError, runs

__all__ = ["Run", "RunError", "program", "runs"]
