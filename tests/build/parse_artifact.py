"""A script: parses an artifact with TensorRT-RTX, with plugins or without, and prints every layer as JSON.

Arguments: the artifact, the most tokens of a row, and modes, of each of which it prints a line: "joined" or "separate"
for mixers as plugins, or "off". It has to run in ``child_environment``.
"""

from __future__ import annotations

import io
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from hybridge.artifact.config import read_config
from hybridge.trt_plugins.build.build_log import make_logger
from hybridge.trt_plugins.build.model import ParserModel, parser_model
from hybridge.trt_plugins.build.network import dtype_name, layers_of, parse_network
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.plugin_choice import choose_plugins
from hybridge.trt_plugins.build.presets import read_preset
from hybridge.trt_plugins.build.profiles import engine_limits, engine_profiles
from hybridge.trt_plugins.build.target import Target
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary
from hybridge.trt_plugins.plugins import register_plugins


def main(artifact: Path, max_seq_len: int, mode: str) -> None:
    config, preset = read_config(artifact), read_preset("rtx-ada")
    limits = engine_limits(config, preset, BuildOptions(max_seq_len=max_seq_len))
    target = Target("rtx-ada", preset, "tensorrt_rtx", ("8.9",))
    options = BuildOptions(plugins="off") if mode == "off" else BuildOptions(plugins="on", plugin_mixers=mode)
    profiles = engine_profiles(config, preset, limits)
    choose = partial(choose_plugins, options=options, target=target, profiles=profiles)
    model = parser_model(artifact, config, max_seq_len, choose)
    print(json.dumps({"nodes": model.plugins.nodes, "layers": described_layers(artifact, model)}))


def described_layers(artifact: Path, model: ParserModel) -> list[dict[str, Any]]:
    """The layers that the parser makes of ``model``."""
    library = TensorRTLibrary("tensorrt_rtx")
    errors = register_plugins(library.trt).errors
    logger = make_logger(library.trt, io.StringIO())
    builder = library.create_builder(logger)
    with errors.raised(any_thread=True):
        parsed = parse_network(library, builder, logger, model.serialized, str(artifact / "model.onnx"))
    found = [described(layer) for layer in layers_of(parsed.network)]
    # A network must not outlive its builder.
    del parsed, builder
    return found


def described(layer: Any) -> dict[str, Any]:
    inputs = [layer.get_input(index) for index in range(layer.num_inputs)]
    outputs = [layer.get_output(index) for index in range(layer.num_outputs)]
    return {
        "type": layer.type.name,
        "name": layer.name,
        "metadata": layer.metadata,
        "inputs": [tensor_of(tensor, tensor.is_network_input) for tensor in inputs if tensor is not None],
        "outputs": [tensor_of(tensor, tensor.is_network_output) for tensor in outputs],
    }


def tensor_of(tensor: Any, outside: bool) -> dict[str, Any]:
    shape = list(tensor.shape)
    return {"name": tensor.name, "dtype": dtype_name(tensor), "shape": shape, "outside": outside}


if __name__ == "__main__":
    for each in sys.argv[3:]:
        main(Path(sys.argv[1]), int(sys.argv[2]), each)
