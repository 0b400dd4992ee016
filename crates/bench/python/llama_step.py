"""The training step of `annulus-bench step` with transformers, from what `--export` wrote.

    python llama_step.py FOLDER [--threads 4] [--recompute layer] [--dtype float64] [--steps 3] [--serve]

Prints a line of JSON per step; with --serve one for every line `go` on standard input, until `quit`.
"""

import argparse
import json
import os
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder")
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--recompute", choices=["none", "layer"], default="none")
parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--serve", action="store_true")
arguments = parser.parse_args()
# The pools are made when the libraries are loaded.
os.environ["OMP_NUM_THREADS"] = str(arguments.threads)

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

torch.set_num_threads(arguments.threads)
logging.disable_progress_bar()
dtype = getattr(torch, arguments.dtype)
model = AutoModelForCausalLM.from_pretrained(arguments.folder, attn_implementation="sdpa", use_cache=False).to(dtype).train()
if arguments.recompute == "layer":
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
tensors = load_file(os.path.join(arguments.folder, "tokens.safetensors"))
# Shifted already: the last token may have a successor that is no input.
batch = {"input_ids": tensors["input_ids"], "labels": tensors["targets"], "shift_labels": tensors["targets"]}
matrices = [weight for weight in model.parameters() if weight.ndim > 1]
vectors = [weight for weight in model.parameters() if weight.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}], lr=1e-4)


def status(key):
    """A line of this process's status in MiB; nothing where the system has no such file."""
    try:
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))
    except OSError:
        return float("nan")


def step():
    """Takes a step; its time, and the loss before it."""
    start = time.perf_counter()
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    found = loss.item()
    return {"time_s": time.perf_counter() - start, "loss": found}


def norm():
    """The norm of the gradient, which a step leaves no trace of."""
    model(**batch).loss.backward()
    squares = sum(weight.grad.double().square().sum().item() for weight in model.parameters())
    optimizer.zero_grad(set_to_none=True)
    return squares**0.5


def say(fields):
    memory = {"rss_base_mib": base, "rss_peak_mib": status("VmHWM:")}
    memory["rss_above_mib"] = memory["rss_peak_mib"] - base
    print(json.dumps({**fields, **memory}), flush=True)


try:
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
except OSError:
    pass
base = status("VmRSS:")
if arguments.serve:
    say({"ready": True, **step()})
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        say(step())
else:
    say({"norm": norm()})
    for _ in range(arguments.steps):
        say(step())
