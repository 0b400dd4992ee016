"""Prints the scalars, the text, the layout and the hyperparameters of a folder of event files as TensorBoard's own reader sees them."""

import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
accumulator.Reload()
tags = accumulator.Tags()
for tag in sorted(tags["scalars"]):
    print(f"scalar {tag}:", *(f"{e.step}={e.value:g}" for e in accumulator.Scalars(tag)))
for tag in sorted(tags["tensors"]):
    data = accumulator.SummaryMetadata(tag).plugin_data
    plugin = data.plugin_name
    if plugin == "hparams":
        print(plugin, tag, str(plugin_data_pb2.HParamsPluginData.FromString(data.content)).split())
        continue
    if plugin == "custom_scalars":
        layout = layout_pb2.Layout.FromString(accumulator.Tensors(tag)[0].tensor_proto.string_val[0])
        print(plugin, tag, str(layout).split())
        continue
    values = (f"{e.step}={e.tensor_proto.string_val[0].decode()!r}" for e in accumulator.Tensors(tag))
    print(f"{plugin} {tag}:", *values)
