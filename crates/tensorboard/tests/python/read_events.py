"""Prints the scalars and the text of a folder of event files as TensorBoard's own reader sees them."""

import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
accumulator.Reload()
tags = accumulator.Tags()
for tag in sorted(tags["scalars"]):
    print(f"scalar {tag}:", *(f"{e.step}={e.value:g}" for e in accumulator.Scalars(tag)))
for tag in sorted(tags["tensors"]):
    plugin = accumulator.SummaryMetadata(tag).plugin_data.plugin_name
    values = (f"{e.step}={e.tensor_proto.string_val[0].decode()!r}" for e in accumulator.Tensors(tag))
    print(f"{plugin} {tag}:", *values)
