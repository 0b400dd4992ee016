"""Measures a training step of a Llama in transformers; prints a line of JSON with the fields of `annulus-bench step`.

    python llama.py [--model 1b] [--dtype bf16] [--tokens 65536] [--loss chunks] [--recompute layer] [--longest 8192] [--device cpu]

The same settings as ours: one sequence of random tokens, random weights; weights and activations of `--dtype`, f32 masters and
moments, PyTorch's fused AdamW on them; attention is PyTorch's (`sdpa`). What differs: `--recompute layer` is gradient checkpointing,
which recomputes a whole layer with its attention, while ours keeps attention's output; gradients have `--dtype` until AdamW uses
them. `--loss whole` is transformers' own, all logits at once; `chunks` takes 2048 tokens at a time and recomputes their logits in
backward, as one would to save memory.

`--longest N` finds the longest sequence that fits instead, to a multiple of N, with a process for every trial.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import time

SIZES = {
    "small": dict(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
                  head_dim=32, vocab_size=258, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=False),
    "1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
               head_dim=64, vocab_size=128256, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True),
}
CHUNK = 2048
MISSING = 3


def read():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIZES, default="1b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--recompute", choices=["none", "layer"], default="layer")
    parser.add_argument("--loss", choices=["whole", "chunks"], default="whole")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, default=3, help="0: one step, not timed")
    parser.add_argument("--peak", default="", help="TFLOP/s of which shares are given, with commas")
    parser.add_argument("--longest", type=int)
    return parser.parse_args()


def build(arguments):
    """A new model with random weights on the device."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = SIZES[arguments.model] | ({"num_hidden_layers": arguments.layers} if arguments.layers else {})
    rope = {"rope_type": "default", "rope_theta": sizes["rope_theta"]}
    config = LlamaConfig(**sizes, rope_parameters=rope, max_position_embeddings=arguments.tokens, use_cache=False,
                         attn_implementation="sdpa")
    torch.set_default_dtype({"bf16": torch.bfloat16, "f32": torch.float32}[arguments.dtype])
    with torch.device(arguments.device):
        model = LlamaForCausalLM(config).train()
    torch.set_default_dtype(torch.float32)
    if arguments.recompute == "layer":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def loss_in_chunks(model, tokens):
    """The mean cross-entropy of the next token over all tokens but the last."""
    from torch.nn.functional import cross_entropy
    from torch.utils.checkpoint import checkpoint

    def part(hidden, targets):
        return cross_entropy(model.lm_head(hidden).float(), targets, reduction="sum")

    hidden, targets = model.model(input_ids=tokens).last_hidden_state[0, :-1], tokens[0, 1:]
    parts = zip(hidden.split(CHUNK), targets.split(CHUNK))
    return sum(checkpoint(part, *pair, use_reentrant=False) for pair in parts) / len(targets)


class Step:
    """A training step that can be repeated."""

    def __init__(self, arguments):
        import torch

        self.torch, self.chunks, self.device = torch, arguments.loss == "chunks", torch.device(arguments.device)
        self.model = build(arguments)
        self.weights = list(self.model.parameters())
        self.masters = [weight.detach() if weight.dtype == torch.float32 else weight.detach().float() for weight in self.weights]
        groups = [{"params": [master for master in self.masters if (master.ndim > 1) == matrix], "weight_decay": decay}
                  for matrix, decay in ((True, 0.01), (False, 0.0))]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.999), fused=True)
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.model.config.vocab_size, (1, arguments.tokens), generator=generator)
        self.tokens = tokens.to(self.device)

    def take(self):
        """Runs a step; returns its seconds, and the loss before it."""
        start = time.perf_counter()
        if self.chunks:
            loss = loss_in_chunks(self.model, self.tokens)
        else:
            loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        for weight, master in zip(self.weights, self.masters):
            master.grad, weight.grad = weight.grad.float(), None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with self.torch.no_grad():
            for weight, master in zip(self.weights, self.masters):
                if weight.dtype != master.dtype:
                    weight.copy_(master)
        found = loss.item()
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter() - start, found

    def memory(self):
        """MiB of the device in use by all processes; PyTorch does not release memory that it once had."""
        if self.device.type != "cuda":
            return {}
        free, whole = self.torch.cuda.mem_get_info(self.device)
        return {"gpu": self.torch.cuda.get_device_name(self.device), "gpu_mib": (whole - free) >> 20}


def operations(model, tokens):
    """The number of parameters, and the FLOPs of a step as `annulus-bench step` counts them: an embedding that is only looked up has
    none."""
    config = model.config
    parameters = sum(weight.numel() for weight in model.parameters())
    columns = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    looked_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return parameters, 6 * (parameters - looked_up) * tokens + 12 * columns * tokens * tokens / 2


def quantile(numbers, share):
    """A quantile of the numbers, interpolated linearly."""
    numbers, place = sorted(numbers), share * (len(numbers) - 1)
    below = int(place)
    return numbers[below] + (numbers[min(below + 1, len(numbers) - 1)] - numbers[below]) * (place - below)


def measure(arguments):
    """The line of a step, or of why it failed."""
    import torch
    import transformers

    line = {"bench": "step", "peer": f"transformers {transformers.__version__}", "torch": torch.__version__}
    line |= {key: getattr(arguments, key) for key in ("tokens", "model", "dtype", "recompute", "device")}
    line["logits"] = arguments.loss
    try:
        step = Step(arguments)
        line["parameters"], all_operations = operations(step.model, arguments.tokens)
        _, loss = step.take()
        seconds = []
        for _ in range(arguments.samples):
            taken, loss = step.take()
            seconds.append(taken)
    except RuntimeError as error:
        return line | {"fits": False, "why": str(error).splitlines()[0]}
    if seconds:
        low, median, high = (quantile(seconds, share) for share in (0.25, 0.5, 0.75))
        line |= {"samples": len(seconds), "median_s": median, "low_s": low, "high_s": high}
        line |= {"tokens_per_second": arguments.tokens / median, "tflops": all_operations / median / 1e12}
    peaks = [float(peak) for peak in arguments.peak.split(",") if peak]
    if seconds and peaks:
        line |= {"peak_tflops": peaks, "mfu": [line["tflops"] / peak for peak in peaks]}
    return line | {"fits": True, "loss": loss} | step.memory()


def trial(arguments, tokens):
    """Runs one step over `tokens` tokens in a process of its own; returns whether it succeeded, and its line."""
    words = [sys.executable, __file__, "--samples", "0", "--tokens", str(tokens)]
    for key in ("model", "layers", "dtype", "recompute", "loss", "device"):
        if getattr(arguments, key) is not None:
            words += [f"--{key}", str(getattr(arguments, key))]
    start = time.perf_counter()
    ended = subprocess.run(words, capture_output=True, text=True)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    line = json.loads(lines[-1]) if lines else {"fits": False, "why": (ended.stderr.splitlines() or [f"exit {ended.returncode}"])[-1]}
    line = {"peer": "transformers", "logits": arguments.loss} | line
    line |= {"bench": "longest", "tokens": tokens, "trial_s": time.perf_counter() - start}
    print(json.dumps(line), flush=True)
    return line


def longest(arguments):
    """Doubles from `--tokens`, then halves the gap, as `annulus-bench step --longest` does; prints a line per trial and one for the result."""
    nearest = arguments.longest
    largest, above, most, beyond = 0, None, {}, None
    tokens = max(1, arguments.tokens // nearest) * nearest
    while tokens != largest:
        line = trial(arguments, tokens)
        if line["fits"]:
            largest, most = tokens, line
        else:
            above, beyond = tokens, line["why"]
        tokens = 2 * largest if above is None else largest + (above - largest) // 2 // nearest * nearest
    print(json.dumps(most | {"longest": largest, "nearest": nearest, "beyond": beyond}), flush=True)


def main():
    arguments = read()
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"not on this machine: {' and '.join(missing)}; there is nothing to compare the step with", file=sys.stderr)
        sys.exit(MISSING)
    if arguments.longest:
        longest(arguments)
    else:
        print(json.dumps(measure(arguments)), flush=True)


if __name__ == "__main__":
    main()
