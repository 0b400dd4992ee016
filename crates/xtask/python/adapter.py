"""Scores fixed ids with a model and an adapter in float32 on the CPU; merged must agree; saves the adapter again, and ids and logits
with the versions that made them."""

import os
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

base, adapter, out, limit = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(base).to(torch.float32)
model = peft.PeftModel.from_pretrained(model, adapter).eval()
# What it did not find it would have left as it was, with a warning in a log.
written = load_file(os.path.join(adapter, "adapter_model.safetensors"))
read = peft.get_peft_model_state_dict(model)
assert written.keys() <= read.keys(), sorted(written.keys() - read.keys())
for name, tensor in written.items():
    assert torch.equal(read[name], tensor), name
torch.manual_seed(0)
ids = torch.randint(0, model.config.vocab_size, (2, 32))
with torch.no_grad():
    plain = transformers.AutoModelForCausalLM.from_pretrained(base).to(torch.float32)
    plain = plain(input_ids=ids, use_cache=False).logits
    logits = model(input_ids=ids, use_cache=False).logits
    model.save_pretrained(out)
    merged = model.merge_and_unload()(input_ids=ids, use_cache=False).logits
largest = logits.abs().max()
changed = ((logits - plain).abs().max() / largest).item()
error = ((merged - logits).abs().max() / largest).item()
print(f"{adapter}: the adapter changes {changed:.2f}, merged differs by {error:.1e}")
assert changed > 0.1 and error <= float(limit)
modules = (transformers, torch, peft)
versions = {module.__name__: module.__version__ for module in modules}
tensors = {"input_ids": ids, "logits": logits.contiguous(), "plain": plain.contiguous()}
save_file(tensors, os.path.join(out, "golden.safetensors"), metadata=versions)
