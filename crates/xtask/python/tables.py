"""Writes the same records as parquet and as lines of JSON, with pyarrow: with several row groups, further columns and every compression.

    python tables.py FOLDER
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

folder = Path(sys.argv[1])
texts = [f"{word} text number {n}, grüße 漢字 🦀\nline \"two\"\t\\" for n, word in enumerate(["first", "second", "third"] * 9)]
chats = [
    [{"role": "user", "content": f"{n} plus {n}?"}, {"role": "assistant", "content": f"{2 * n} \"of course\"\n"}] * (1 + n % 2)
    for n in range(7)
]


def write(name, column, values, compression, **options):
    table = pa.table({"id": list(range(len(values))), column: values, "weight": [0.5] * len(values)})
    pq.write_table(table, folder / f"{name}.parquet", compression=compression, row_group_size=10, **options)


def lines(name, column, values):
    records = [json.dumps({column: value}, ensure_ascii=False) for value in values]
    (folder / f"{name}.jsonl").write_text("\n".join(records) + "\n")


lines("texts", "text", texts)
lines("chats", "messages", chats)
write("plain", "text", texts, "none", use_dictionary=False)
write("snappy", "text", texts, "snappy")
write("gzip", "text", texts, "gzip", data_page_version="2.0")
write("zstd", "text", texts, "zstd", data_page_version="2.0")
write("chats", "messages", chats, "zstd")
pq.write_table(pa.table({"text": ["whole", None]}), folder / "null.parquet")
pq.write_table(pa.table({"text": [1, 2]}), folder / "numbers.parquet")
pq.write_table(pa.table({"body": ["a"]}), folder / "body.parquet")
