"""Scores fixed ids with model folders in float32 on the CPU, and saves ids and logits with the versions that made them.

    python logits.py FOLDER OUT [FOLDER OUT ...]
"""

import sys

import torch
import transformers
from safetensors.torch import save_file

for model, out in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    # A warning about a missing or an unknown key would be lost in the log: it must be an error.
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(model, output_loading_info=True)
    assert not any(report.values()), report
    loaded = loaded.to(torch.float32).eval()
    torch.manual_seed(0)
    ids = torch.randint(0, loaded.config.vocab_size, (2, 32))
    with torch.no_grad():
        logits = loaded(input_ids=ids, use_cache=False).logits
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    save_file({"input_ids": ids, "logits": logits.contiguous()}, out, metadata=versions)
