"""Scores models with adapters in float32 on the CPU: with separate adapters, merged by PEFT, and merged by the program. Saves the
adapters again.

    python adapters.py BASE ADAPTER MERGED OUT [BASE ADAPTER MERGED OUT ...]
"""

import os
import sys

import peft
import torch
from safetensors.torch import load_file

import golden

for base, adapter, merged, out in zip(sys.argv[1::4], sys.argv[2::4], sys.argv[3::4], sys.argv[4::4], strict=True):
    plain = golden.score(golden.whole(base))
    model = peft.PeftModel.from_pretrained(golden.whole(base), adapter).eval()
    # PEFT would leave weights that it did not find unchanged, with only a warning in a log.
    written = load_file(os.path.join(adapter, "adapter_model.safetensors"))
    read = peft.get_peft_model_state_dict(model)
    assert written.keys() <= read.keys(), sorted(written.keys() - read.keys())
    for name, tensor in written.items():
        assert torch.equal(read[name], tensor), name
    logits = golden.score(model)
    assert (logits - plain).abs().max() > 0.1 * logits.abs().max(), "the adapter changes nothing"
    model.save_pretrained(out)
    golden.save(os.path.join(out, "golden.safetensors"), model, logits, plain=plain)
    for name, model in [("merged", model.merge_and_unload()), ("exported", golden.whole(merged))]:
        golden.save(os.path.join(out, f"{name}.safetensors"), model, golden.score(model))
