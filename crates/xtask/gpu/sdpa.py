"""Measures PyTorch's attention on a GPU by backend; prints a line of JSON per point, as `annulus-bench gpu` does. `matmul`: only a
product of matrices."""

import json
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
TOKENS, COLUMNS, SECONDS, SAMPLES = 16384, 2048, 0.02, 9


def seconds(run, repeats):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def median(run):
    run()
    once = seconds(run, 1)
    repeats = max(1, round(SECONDS / once))
    return sorted(seconds(run, repeats) for _ in range(SAMPLES))[SAMPLES // 2]


def point(tokens, dim, causal, name):
    shape = (max(1, TOKENS // tokens), COLUMNS // dim, tokens, dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    gradient = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    forward = 4 * tokens * tokens * shape[0] * COLUMNS * (0.5 if causal else 1.0)
    with sdpa_kernel(BACKENDS[name]):
        attend = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        with torch.no_grad():
            time_of = {"forward": median(attend)}
        out = attend()
        time_of["backward"] = median(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
    for which, factor in (("forward", 1.0), ("backward", 2.5)):
        line = {"tokens": tokens, "head_dim": dim, "mask": "causal" if causal else "full", "pass": which}
        line |= {"peer": name, "tflops": forward * factor / time_of[which] / 1e12}
        print(json.dumps(line), flush=True)


def main():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    roof = 2 * 8192**3 / median(lambda: a @ a) / 1e12
    print(json.dumps({"peer": "matmul", "tflops": roof, "torch": torch.__version__}), flush=True)
    if sys.argv[1:] == ["matmul"]:
        return
    for dim in (64, 128):
        for causal in (False, True):
            for tokens in (1024, 2048, 4096, 8192, 16384, 32768):
                for name in BACKENDS:
                    try:
                        point(tokens, dim, causal, name)
                    except RuntimeError as error:
                        print(f"{name} {tokens} {dim} causal={causal}: {error}", file=sys.stderr)


main()
