"""Renders conversations by a folder's chat template in transformers, and writes ids and assistant masks.

    python chats.py FOLDER CHATS.jsonl OUT.json
"""

import json
import sys
from pathlib import Path

import transformers

folder, chats, out = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
found = []
for line in Path(chats).read_text().splitlines():
    encoded = tokenizer.apply_chat_template(
        json.loads(line)["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    found.append({"ids": encoded["input_ids"], "mask": encoded["assistant_masks"]})
Path(out).write_text("[\n" + ",\n".join(json.dumps(entry) for entry in found) + "\n]\n")
