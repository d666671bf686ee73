"""Whatever a shard index or generation_config.json holds, the checkpoint opens or is a typed error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import HybridgeError
from hybridge.exporter.checkpoint.checkpoint import open_checkpoint
from tests.exporter.checkpoint.folders import TENSORS, sharded, write_index, write_json
from tests.support.effort import examples
from tests.support.json_values import VALUES, objects

pytestmark = pytest.mark.fuzz
SHARDS = [f"model-0000{index}-of-00002.safetensors" for index in (1, 2)]
FIELDS = ("eos_token_id", "dtype", "torch_dtype", "text_config", "quantization_config", "auto_map")
_names = st.sampled_from(
    [*SHARDS, "model-00003-of-00002.safetensors", "../x.safetensors", "a\0.safetensors", "config.json"]
)
_places = st.dictionaries(st.sampled_from([*TENSORS, "layers.1.weight", ""]), _names | VALUES, max_size=5)
_right = {name: SHARDS[name != "embedding"] for name in TENSORS}
_nearly = st.dictionaries(st.sampled_from([*TENSORS]), _names, max_size=1).map(lambda changed: {**_right, **changed})


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


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=_places | _nearly | VALUES)
def test_any_index_opens_or_is_an_error(folder: Path, places: Any) -> None:
    write_index(folder, places)
    assert _opens(folder) == (places == _right)


@settings(max_examples=examples(400), deadline=None)
@given(text=VALUES.map(json.dumps) | st.text(max_size=20) | st.just("[" * 100_000))
def test_any_index_file_is_an_error(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8", errors="replace")
    assert not _opens(folder)


@settings(max_examples=examples(400), deadline=None)
@given(
    config=objects("eos_token_id", "dtype", "torch_dtype", "text_config", "quantization_config", "auto_map") | VALUES
)
def test_any_general_field_opens_or_is_an_error(folder: Path, config: Any) -> None:
    write_index(folder, _right)
    write_json(folder / "generation_config.json", config)
    general = config if isinstance(config, dict) else {}
    write_json(folder / "config.json", {"model_type": "llama", **general})
    _opens(folder)
