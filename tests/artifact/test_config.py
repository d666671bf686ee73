"""config.json: what is written is read back, and every contradiction is refused by name."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.config import RuntimeConfig, config_from_json, config_text, config_to_json, read_config
from hybridge.artifact.errors import ArtifactError, HybridgeError
from hybridge.artifact.layer_config import RecurrentLayerConfig
from tests.artifact.samples import sample_config
from tests.support.effort import examples

DOCUMENTED_FIELDS = {
    *("format_version", "model_type", "layout", "dtype", "vocab_size", "hidden_size", "num_hidden_layers"),
    *("max_batch_size", "max_seq_len", "num_attention_layers", "num_linear_attn_layers", "layer_types"),
    *("kv_layer_configs", "kv_cache_dtype", "recurrent_state_num_heads", "recurrent_state_head_dim"),
    *("recurrent_state_size", "recurrent_state_dtype", "conv_dim", "conv_kernel", "conv_state_dtype"),
    *("eos_token_id", "bindings"),
}


def as_json(config: RuntimeConfig | None = None) -> dict[str, Any]:
    return json.loads(config_text(config or sample_config()))


def test_round_trip() -> None:
    config = sample_config()
    assert config_from_json(as_json(config)) == config
    assert set(as_json()) == DOCUMENTED_FIELDS


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config_text(sample_config()))
    assert read_config(tmp_path) == sample_config()


def test_latents_have_one_cache() -> None:
    data = as_json()
    data["kv_layer_configs"][0]["latent_dim"] = 7
    for kind in ("inputs", "outputs"):
        data["bindings"][kind] = [each for each in data["bindings"][kind] if not each["name"].endswith("_value_0")]
    config = config_from_json(data)
    assert config.kv_layers[0].state_names(0) == ("past_key_0",) and as_json(config) == data
    del data["kv_layer_configs"][0]["latent_dim"]
    with pytest.raises(ArtifactError, match=r"expected the state past_value_0 .* found no state past_value_0"):
        config_from_json(data)


def test_layers_of_different_shapes_become_lists() -> None:
    config = sample_config()
    layers = (RecurrentLayerConfig(3, 5, 7, 30, 4), RecurrentLayerConfig(3, 9, 7, 41, 4))
    config = replace(config, layer_types=("mamba", "mamba", "attention"), recurrent_layers=layers)
    data = as_json(config)
    assert data["conv_dim"] == [30, 41] and data["recurrent_state_num_heads"] == 3
    assert config_from_json(data) == config


def test_pure_attention_has_no_recurrent_shapes() -> None:
    config = replace(sample_config(), layer_types=("attention", "mlp"), recurrent_layers=())
    data = as_json(config)
    assert data["conv_dim"] is None and data["num_linear_attn_layers"] == 0
    assert config_from_json(data) == config


def test_layer_indices() -> None:
    config = sample_config()
    assert config.num_hidden_layers == 3
    assert config.attention_layer_indices == (2,) and config.recurrent_layer_indices == (0,)
    assert not config.all_logits
    assert [b.name for b in config.bindings.states][:2] == ["past_key_0", "past_value_0"]
    assert config.bindings.input("conv_state_0").resolve(batch=2) == (2, 30, 4)
    with pytest.raises(KeyError):
        config.bindings.input("past_key_0").resolve(batch=2)


def edit(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]

    def apply(data: Any) -> None:
        for parent in parents:
            data = data[parent]
        data[last] = value

    return apply


CONTRADICTIONS: list[tuple[str, Any, str]] = [
    ("format_version", 1, "format_version 2, found 1: export the checkpoint again"),
    ("format_version", "1", "format_version"),
    ("model_type", 3, "model_type"),
    ("layout", "sparse", "layout 'sparse'"),
    ("dtype", "float8", "dtype"),
    ("dtype", ["float32"], "dtype"),
    ("vocab_size", 0, "vocab_size"),
    ("hidden_size", -1, "hidden_size"),
    ("max_batch_size", 0, "max_batch_size"),
    ("max_seq_len", True, "max_seq_len"),
    ("max_seq_len", 64.0, "max_seq_len"),
    ("max_batch_size", 2**16 + 1, "max_batch_size: expected an integer of at most 65536"),
    ("max_seq_len", 2**31, "max_seq_len: expected an integer of at most 2147483647"),
    ("num_hidden_layers", 4, "num_hidden_layers: expected 3"),
    ("num_attention_layers", 2, "num_attention_layers: expected 1"),
    ("num_linear_attn_layers", 2, "num_linear_attn_layers: expected 1"),
    ("num_linear_attn_layers", 10**12, "num_linear_attn_layers: expected 1"),
    ("layer_types", ["mamba", "mlp", "banana"], "layer_types|num_attention_layers|kv_layer_configs"),
    ("layer_types", ["mamba", ["mlp"], "attention"], "layer_types"),
    ("layer_types", "mamba", "layer_types"),
    ("kv_layer_configs", [], "num_attention_layers|kv_layer_configs"),
    ("kv_layer_configs", [3], "kv_layer_configs"),
    ("kv_layer_configs.0.head_dim", 0, "head_dim"),
    ("kv_layer_configs.0.sliding_window", 0, "sliding_window"),
    ("kv_layer_configs.0.latent_dim", 10, "latent_dim: expected at most head_dim, 9"),
    ("kv_layer_configs.0.latent_dim", 0, "latent_dim: expected an integer of at least 1"),
    ("kv_layer_configs.0.latent_dim", -1, "latent_dim: expected an integer of at least 1"),
    ("kv_layer_configs.0.latent_dim", "7", "latent_dim: expected an integer"),
    ("kv_layer_configs.0.latent_dim", 7, "expected no state past_value_0 as kv_layer_configs .* found the state past"),
    ("kv_layer_configs.0.head_dim", 8, r"expected the state past_key_0 \['batch', 2, 'max_seq', 8\] float32"),
    ("kv_cache_dtype", "float16", "float16 replaced by present_key_0 as .* found the state past_key_0 .* float32"),
    ("kv_layer_configs.0.extra", 0, "unknown field.*extra"),
    ("kv_cache_dtype", None, "kv_cache_dtype"),
    ("conv_dim", [30, 30], "conv_dim"),
    ("conv_dim", None, "conv_dim"),
    ("conv_kernel", True, "conv_kernel"),
    ("recurrent_state_size", -7, "recurrent_state_size"),
    ("recurrent_state_dtype", "int31", "recurrent_state_dtype"),
    ("eos_token_id", 2, "eos_token_id"),
    ("eos_token_id", [2, "</s>"], "eos_token_id"),
    ("eos_token_id", [-1], "eos_token_id"),
    ("bindings", [], "bindings"),
    ("bindings.inputs", {}, "inputs"),
    ("bindings.inputs.0.name", 3, "name"),
    ("bindings.inputs.0.dtype", "int31", "dtype"),
    ("bindings.inputs.0.shape", ["batch", 1.5], "shape"),
    ("bindings.inputs.0.shape", ["batch", True], "shape"),
    ("bindings.inputs.0.extra", 1, "unknown field.*extra"),
    ("bindings.inputs.1.name", "input_ids", "input_ids is given twice"),
    ("bindings.inputs.3.replaced_by", "present_nothing", "past_key_0 has no output present_nothing"),
    ("bindings.outputs.1.dtype", "float16", "past_key_0 has no output present_key_0 of its type"),
    ("bindings.outputs.1.shape", ["batch", 2, "max_seq", 8], "past_key_0"),
    ("extra", 1, "unknown field.*extra"),
]


@pytest.mark.parametrize(
    ("path", "value", "words"), CONTRADICTIONS, ids=[f"{p}={v}"[:60] for p, v, _ in CONTRADICTIONS]
)
def test_contradictions(path: str, value: Any, words: str) -> None:
    data = as_json()
    edit(path, value)(data)
    with pytest.raises(ArtifactError, match=words):
        config_from_json(data)


def test_a_graph_that_gives_only_states_is_refused() -> None:
    data = as_json()
    del data["bindings"]["outputs"][0]
    with pytest.raises(ArtifactError, match="expected an output for the result of a step, found only states"):
        config_from_json(data)


@pytest.mark.parametrize("key", sorted(DOCUMENTED_FIELDS))
def test_every_field_is_needed(key: str) -> None:
    data = as_json()
    del data[key]
    with pytest.raises(ArtifactError, match=key):
        config_from_json(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": "sparse"}, "layout"),
        ({"layer_types": ("mamba", "banana", "attention")}, "layer_types"),
        ({"kv_layers": ()}, "0 kv_layer_configs for 1"),
        ({"recurrent_layers": ()}, "0 of 1"),
        ({"recurrent_layers": (RecurrentLayerConfig(0, 0, 0, 30, 4),)}, "recurrent_state_num_heads"),
        ({"layer_types": ("short_conv", "mlp", "attention")}, "recurrent_state_num_heads"),
    ],
)
def test_the_writer_checks_too(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        replace(sample_config(), **change).check()


def test_a_checkpoint_is_not_an_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"config\.json, found none"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ArtifactError, match="written by hybridge export"):
        read_config(tmp_path)


SCALARS: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
)


def places(data: Any, path: tuple = ()) -> list[tuple]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [p for key, value in items for p in ((*path, key), *places(value, (*path, key)))]


PLACES = places(config_to_json(sample_config()))


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(PLACES), SCALARS | st.lists(SCALARS, max_size=3))
def test_any_value_anywhere_is_read_or_refused(place: tuple, value: Any) -> None:
    data = copy.deepcopy(config_to_json(sample_config()))
    target: Any = data
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    try:
        config = config_from_json(data)
    except HybridgeError:
        return
    assert config_from_json(config_to_json(config)) == config
