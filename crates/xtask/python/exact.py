"""Computes loss and gradient norm of a Llama folder on the bytes of a text, in float64 throughout.

    python exact.py FOLDER TEXT

Written out in plain PyTorch, because transformers keeps norms, angles and the loss in float32 whatever the model's type.
Prints one line of JSON: {"loss": .., "norm": ..}.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.utils.checkpoint import checkpoint

folder, text = map(Path, sys.argv[1:])
config = json.loads((folder / "config.json").read_text())
weights = {name: weight.double().requires_grad_() for name, weight in load_file(folder / "model.safetensors").items()}
ids = torch.tensor(list(text.read_bytes()))
inputs, targets = ids[:-1], ids[1:]

heads, groups, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
# RoPE's frequencies are rounded to float32, as in every Llama; everything computed from them is float64.
frequencies = (config["rope_theta"] ** (-torch.arange(0, width, 2).double() / width)).float().double()
angles = torch.arange(len(inputs)).double()[:, None] * frequencies
cos, sin = angles.cos(), angles.sin()


def norm(x, name):
    return x * (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt() * weights[name + ".weight"]


def linear(x, name):
    return F.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))


def split(x, count):
    return x.view(len(inputs), count, width).transpose(0, 1)


def rotate(x):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rows(q, k, v, first):
    """Causal attention of consecutive queries, from position `first` on, to all keys up to the last query's position."""
    scores = q @ k.mT * width**-0.5
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(first + 1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def attend(q, k, v):
    """Causal attention in pieces, so that the scores fit into memory; PyTorch's own attention is slow in float64."""
    k, v = (x.repeat_interleave(heads // groups, 0) for x in (k, v))
    starts = range(0, len(inputs), 1024)
    pieces = [(q[:, at : at + 1024], k[:, : at + 1024], v[:, : at + 1024], at) for at in starts]
    return torch.cat([checkpoint(rows, *piece, use_reentrant=False) for piece in pieces], 1)


x = weights["model.embed_tokens.weight"][inputs]
for layer in range(config["num_hidden_layers"]):
    name = f"model.layers.{layer}."
    normed = norm(x, name + "input_layernorm")
    q, k, v = (split(linear(normed, f"{name}self_attn.{part}_proj"), count) for part, count in [("q", heads), ("k", groups), ("v", groups)])
    attended = attend(rotate(q), rotate(k), v).transpose(0, 1).flatten(1)
    x = x + linear(attended, name + "self_attn.o_proj")
    normed = norm(x, name + "post_attention_layernorm")
    x = x + linear(F.silu(linear(normed, name + "mlp.gate_proj")) * linear(normed, name + "mlp.up_proj"), name + "mlp.down_proj")
head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
loss = F.cross_entropy(F.linear(norm(x, "model.norm"), weights[head + ".weight"]), targets)
loss.backward()
squares = sum(weight.grad.square().sum() for weight in weights.values())
print(json.dumps({"loss": loss.item(), "norm": squares.sqrt().item()}))
