"""Loads an exported folder whole: its tokenizer gives the bytes of a text, and its model, saved again by transformers, is left for the program to score.

    python exported.py FOLDER SAVED
"""

import sys

import transformers

folder, saved = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
text = "tab\t, two  spaces, grüße, 漢字 🦀\n\x00 end"
assert tokenizer(text, add_special_tokens=False).input_ids == list(text.encode()), tokenizer
assert tokenizer.decode(list(text.encode())) == text, tokenizer
assert tokenizer.eos_token_id == 256, tokenizer
model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
assert not any(report.values()), report
model.save_pretrained(saved)
