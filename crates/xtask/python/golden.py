"""Computes reference results from fixed ids, such that a machine always produces the same bits."""

import torch
import transformers
from safetensors.torch import save_file

# Results must not depend on the number of cores.
torch.set_num_threads(1)


def ids(model):
    torch.manual_seed(0)
    return torch.randint(0, model.config.vocab_size, (2, 32))


def whole(folder):
    """A model in float32. A warning about a missing or an unknown key would be lost in the log: it must be an error."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.to(torch.float32).eval()


@torch.no_grad()
def score(model):
    return model(input_ids=ids(model), use_cache=False).logits.contiguous()


def save(path, model, logits, **others):
    save_file({"input_ids": ids(model), "logits": logits, **others}, path)
