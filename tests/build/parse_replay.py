"""A script: parses both graphs of a replay with TensorRT-RTX, and prints every layer as JSON.

Its arguments are the artifact and a number of draft tokens. It has to run in ``child_environment``.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hybridge.artifact.config import read_config
from hybridge.trt_plugins.build.build_log import make_logger
from hybridge.trt_plugins.build.model import ParserModel, parser_model
from hybridge.trt_plugins.build.network import layers_of, parse_network
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.plugin_choice import choose_plugins
from hybridge.trt_plugins.build.presets import read_preset
from hybridge.trt_plugins.build.profiles import engine_limits, engine_profiles
from hybridge.trt_plugins.build.target import Target
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary
from hybridge.trt_plugins.plugins import register_plugins
from hybridge.trt_plugins.rewrites.draft_slots import DraftSlots
from tests.build.parse_artifact import described


def main(artifact: Path, tokens: int) -> None:
    config, preset = read_config(artifact), read_preset("rtx-ada")
    options, target = BuildOptions(plugins="on"), Target("rtx-ada", preset, "tensorrt_rtx", ("8.9",))
    limits = engine_limits(config, preset, options)
    drafts = DraftSlots(tokens, replays=True)
    stepped = replace(config, bindings=drafts.bindings(config.bindings))
    profiles = engine_profiles(stepped, preset, limits, tokens)
    choose = partial(choose_plugins, options=options, target=target, profiles=profiles)
    model = parser_model(artifact, config, limits.max_seq_len, choose, drafts)
    assert model.advance is not None
    print(json.dumps({"step": layers(artifact, model), "advance": layers(artifact, model.advance)}))


def layers(artifact: Path, model: ParserModel) -> list[dict[str, Any]]:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
