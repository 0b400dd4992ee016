"""Scores model folders and their exports in float32 on the CPU, and saves the exports again.

    python models.py FOLDER EXPORTED OUT [FOLDER EXPORTED OUT ...]
"""

import os
import sys

import transformers

import golden

TEXT = "tab\t, two  spaces, grüße, 漢字 🦀\n\x00 end"

for folder, exported, out in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3], strict=True):
    # The tokenizer must return the bytes of a text.
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    assert tokenizer(TEXT, add_special_tokens=False).input_ids == list(TEXT.encode()), tokenizer
    assert tokenizer.decode(list(TEXT.encode())) == TEXT, tokenizer
    assert tokenizer.eos_token_id == 256, tokenizer
    transformers.AutoModelForCausalLM.from_pretrained(exported).save_pretrained(out)
    for name, model in [("golden", folder), ("exported", exported)]:
        model = golden.whole(model)
        golden.save(os.path.join(out, f"{name}.safetensors"), model, golden.score(model))
