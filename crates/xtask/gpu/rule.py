"""Compares the error of `annulus attend` on a GPU with that of PyTorch, both relative to the same attention in f64.

The rule is that of FlashAttention's tests: the largest error is at most twice that of a plain computation in the inputs' type for the
output, and three times for gradients. A line of JSON per case; exit 1 if one breaks the rule.

    rule.py PATH/TO/annulus [cuda:0 | cpu]
"""

import itertools
import json
import math
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
HEADS = ((4, 4), (4, 2))
MASKS = ("full", "causal", "causal+window:200")
LIMITS = {"out": 2.0, "dq": 3.0, "dk": 3.0, "dv": 3.0}
# Errors below this fraction of the largest element are of the last bit, and are not compared.
SMALL = {"bf16": 2.0**-9, "f16": 2.0**-12, "f32": 2.0**-22}


def visible(mask, tokens, device):
    row, column = (torch.arange(tokens, device=device).view(shape) for shape in ((-1, 1), (1, -1)))
    seen = torch.ones(tokens, tokens, dtype=torch.bool, device=device)
    if "causal" in mask:
        seen &= column <= row
    if "window" in mask:
        seen &= column > row - int(mask.split(":")[1])
    return seen


def plain(q, k, v, gradient, seen, scale, dtype):
    """Plain attention and its gradients, all in `dtype`."""
    q, k, v = (x.to(dtype).detach().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    wide = lambda x: x.repeat_interleave(group, dim=1)
    scores = (q @ wide(k).transpose(2, 3) * scale).masked_fill(~seen, -math.inf)
    out = torch.softmax(scores, dim=-1) @ wide(v)
    gradients = torch.autograd.grad(out, (q, k, v), gradient.to(dtype))
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *gradients)))


def ours(program, device, tensors, mask, words):
    with tempfile.TemporaryDirectory() as folder:
        case, out = f"{folder}/case.safetensors", f"{folder}/out.safetensors"
        save_file({name: tensor.cpu().clone() for name, tensor in tensors.items()}, case, metadata={"mask": mask})
        command = [program, "attend", "--case", case, "--out", out, "--device", device, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return load_file(out)


def measure(program, device, name, dim, heads, mask, tokens, words):
    torch.manual_seed(dim + tokens)
    random = lambda count: torch.randn(2, count, tokens, dim, device=device).to(DTYPES[name])
    q, k, v, gradient = random(heads[0]), random(heads[1]), random(heads[1]), random(heads[0])
    scale, seen = 1 / math.sqrt(dim), visible(mask, tokens, device)
    exact = plain(q, k, v, gradient, seen, scale, torch.float64)
    theirs = plain(q, k, v, gradient, seen, scale, DTYPES[name])
    positions = torch.arange(tokens)
    case = {"q": q, "k": k, "v": v, "dout": gradient, "scale": torch.tensor([scale]), "q_pos": positions, "k_pos": positions}
    found = ours(program, device, case, mask, words)
    line = {"dtype": name, "head_dim": dim, "heads": heads, "mask": mask, "tokens": tokens, "how": " ".join(words)}
    worst = lambda values, wanted: (values.to(wanted) - wanted).abs().max().item()
    fine = True
    for tensor, limit in LIMITS.items():
        wanted = exact[tensor]
        error, peer = worst(found[tensor], wanted), worst(theirs[tensor], wanted)
        floor = SMALL[name] * wanted.abs().max().item()
        fine &= math.isfinite(error) and error <= limit * max(peer, floor)
        line[tensor] = [error, peer]
    print(json.dumps(line | {"fine": fine}), flush=True)
    return fine


def main(program, device="cuda:0"):
    torch.backends.cuda.matmul.allow_tf32 = False
    ways = ([], ["--deterministic", "false"], ["--ranks", "3", "--strategy", "striped"])
    names = ("bf16", "f32") if device == "cpu" else DTYPES
    fine = [
        measure(program, device, name, dim, heads, mask, 999 if dim < 128 else 777, list(way))
        for name, dim, way in itertools.product(names, (64, 80, 96, 128, 256), ways)
        for heads, mask in itertools.product(HEADS, MASKS)
        if (way == [] or (heads, mask) == (HEADS[1], MASKS[1]))
    ]
    print(f"{sum(fine)} of {len(fine)} cases are within the rule")
    sys.exit(0 if all(fine) else 1)


main(*sys.argv[1:])
