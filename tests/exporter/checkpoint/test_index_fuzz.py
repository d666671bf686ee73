"""Whatever a shard index or generation_config.json holds, the checkpoint opens or is a typed error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.errors import HybridgeError
from hybridge.exporter.checkpoint.checkpoint import open_checkpoint
from tests.exporter.checkpoint.folders import TENSORS, sharded, write_index, write_json
from tests.support.fuzzing import RandomInput, fuzzed

SHARDS = [f"model-0000{index}-of-00002.safetensors" for index in (1, 2)]
FIELDS = ("eos_token_id", "dtype", "torch_dtype", "text_config", "quantization_config", "auto_map")
NAMES = (*SHARDS, "model-00003-of-00002.safetensors", "../x.safetensors", "a\0.safetensors", "config.json")
RIGHT = {name: SHARDS[name != "embedding"] for name in TENSORS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sharded(tmp_path_factory.mktemp("index"))


def _opens(folder: Path) -> bool:
    try:
        checkpoint = open_checkpoint(folder)
    except HybridgeError as error:
        assert "\n" not in str(error)
        return False
    return set(checkpoint.tensors) == set(TENSORS)


@fuzzed(400)
def test_any_index_opens_or_is_an_error(folder: Path, random: RandomInput) -> None:
    places: Any = random.json_value()
    if random.chance(0.4):
        places = {**RIGHT, random.choice(list(RIGHT)): random.choice(NAMES)}
    elif random.chance(0.6):
        names = [*RIGHT, "layers.1.weight", ""]
        places = {random.choice(names): random.choice([*NAMES, places]) for _ in range(random.randrange(6))}
    write_index(folder, places)
    assert _opens(folder) == (places == RIGHT)


@fuzzed(400)
def test_any_index_file_is_an_error(folder: Path, random: RandomInput) -> None:
    text = json.dumps(random.json_value()) if random.chance(0.5) else random.letters(30)
    if random.chance(0.02):
        text = "[" * 100_000
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8", errors="replace")
    assert not _opens(folder)


@fuzzed(400)
def test_any_general_field_opens_or_is_an_error(folder: Path, random: RandomInput) -> None:
    write_index(folder, RIGHT)
    config = random.json_object(FIELDS) if random.chance(0.8) else random.json_value()
    write_json(folder / "generation_config.json", config)
    general = config if isinstance(config, dict) else {}
    write_json(folder / "config.json", {"model_type": "llama", **general})
    _opens(folder)
