"""Prints, as JSON, the scalars, the text, the sizes of pictures, the layout of charts and the hyperparameters of a folder of event files as TensorBoard's own reader sees them."""

import json
import sys

from google.protobuf.json_format import MessageToDict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata

accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
accumulator.Reload()
tags = accumulator.Tags()
scalars = {tag: [[e.step, e.value] for e in accumulator.Scalars(tag)] for tag in tags["scalars"]}
texts = {}
layout = []
hparams = {"columns": [], "metrics": [], "values": {}}
for tag in tags["tensors"]:
    data = accumulator.SummaryMetadata(tag).plugin_data
    values = accumulator.Tensors(tag)
    if data.plugin_name == "custom_scalars":
        assert tag == "custom_scalars__config__", tag
        # The page shows the last.
        parsed = layout_pb2.Layout.FromString(values[-1].tensor_proto.string_val[0])
        layout = [[c.title, [list(chart.multiline.tag) for chart in c.chart]] for c in parsed.category]
    elif tag == metadata.EXPERIMENT_TAG:
        experiment = metadata.parse_experiment_plugin_data(data.content)
        hparams["columns"] = [info.name for info in experiment.hparam_infos]
        hparams["metrics"] = [info.name.tag for info in experiment.metric_infos]
    elif tag == metadata.SESSION_START_INFO_TAG:
        session = metadata.parse_session_start_info_plugin_data(data.content)
        hparams["values"] = MessageToDict(session)["hparams"]
    else:
        assert data.plugin_name == "text", f"{tag} is of {data.plugin_name}"
        texts[tag] = [[e.step, e.tensor_proto.string_val[0].decode()] for e in values]
images = {tag: [[e.step, e.width, e.height] for e in accumulator.Images(tag)] for tag in tags["images"]}
print(json.dumps({"scalars": scalars, "texts": texts, "images": images, "layout": layout, "hparams": hparams}))
