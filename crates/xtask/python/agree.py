"""Fails where the logits of two files differ by more than a limit, relative to the largest of the second.

    python agree.py LIMIT OURS THEIRS [OURS THEIRS ...]
"""

import sys

from safetensors import safe_open

limit, wrong = float(sys.argv[1]), False
for ours, theirs in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
    with safe_open(ours, "pt") as a, safe_open(theirs, "pt") as b:
        x, y = a.get_tensor("logits"), b.get_tensor("logits")
        error = ((x - y).abs().max() / y.abs().max()).item()
        print(f"{theirs}: error {error:.1e}, largest logit {y.abs().max().item():.1f}, {b.metadata()}")
        wrong |= not error <= limit
sys.exit(wrong)
