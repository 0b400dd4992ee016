"""Fails where the logits of two files differ by more than a limit, relative to the largest of the second."""

import sys

from safetensors import safe_open

ours, theirs, limit = sys.argv[1:]
with safe_open(ours, "pt") as a, safe_open(theirs, "pt") as b:
    x, y = a.get_tensor("logits"), b.get_tensor("logits")
    error = ((x - y).abs().max() / y.abs().max()).item()
    print(f"{theirs}: error {error:.1e}, largest logit {y.abs().max().item():.1f}, {b.metadata()}")
sys.exit(not error <= float(limit))
