"""A script: parses both graphs of a replay with TensorRT-RTX, and prints every layer as JSON.

Its arguments are the artifact and a number of draft tokens. It has to run in ``child_environment``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from hybridge.artifact.config import read_config
from hybridge.trt_plugins.build.model import parser_model
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.plugin_choice import choose_plugins
from hybridge.trt_plugins.build.presets import read_preset
from hybridge.trt_plugins.build.profiles import engine_limits, engine_profiles
from hybridge.trt_plugins.build.target import Target
from hybridge.trt_plugins.rewrites.draft_slots import DraftSlots
from tests.build.parse_artifact import described_layers


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
    print(json.dumps({"step": described_layers(artifact, model), "advance": described_layers(artifact, model.advance)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
