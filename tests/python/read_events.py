"""Prints, as JSON, the scalars, the text and the sizes of pictures of a folder of event files as TensorBoard's own reader sees them."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
accumulator.Reload()
tags = accumulator.Tags()
scalars = {tag: [[e.step, e.value] for e in accumulator.Scalars(tag)] for tag in tags["scalars"]}
texts = {}
for tag in tags["tensors"]:
    plugin = accumulator.SummaryMetadata(tag).plugin_data.plugin_name
    assert plugin == "text", f"{tag} is of {plugin}"
    values = accumulator.Tensors(tag)
    texts[tag] = [[e.step, e.tensor_proto.string_val[0].decode()] for e in values]
images = {tag: [[e.step, e.width, e.height] for e in accumulator.Images(tag)] for tag in tags["images"]}
print(json.dumps({"scalars": scalars, "texts": texts, "images": images}))
