"""Configs as they are published, and as transformers writes them: all become decoders, none needs a field ignored."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from hybridge.artifact.errors import HybridgeError
from hybridge.exporter.families.parameters import declared
from hybridge.exporter.families.registry import FAMILIES, decoder_config
from hybridge.exporter.families.text_models import TEXT_MODELS
from tests.support.agreement import assert_one_shot_agrees
from tests.support.checkpoint_edits import edit_tensors
from tests.support.tiny_models import BASE_CONFIGS, save_tiny_model
from tests.support.versions import skip_without_family
from tools.published_configs import PUBLISHED

# Fields of published configs that say nothing of the decoder.
BESIDE: dict[str, Any] = {
    "_name_or_path": "/mnt/checkpoints/hf",
    "_model_name_or_path": "somewhere/else",
    "architectures": ["SomethingForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "num_logits_to_keep": 1,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"use_external_data_format": True},
    "transformers_version": "4.57.0.dev0",
    "unk_token_id": 0,
    "use_cache": True,
}


NOT_IN_NAME = {"Jamba-v0.1": 52, "Ling-3.0-Flash": 124, "Qwen3-Coder-Next": 80}
# Named without the embedding.
OTHERWISE = {
    "Bamba-9B-v1": 9.8,
    "Gemma-7B": 8.5,
    "Helium-1-2B": 2.2,
    "InternLM3-8B": 8.8,
    "Mixtral-8x22B": 141,
    "ZAYA1-8B": 8.8,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_has_the_parameters_that_its_name_tells(name: str) -> None:
    decoder = decoder_config(PUBLISHED[name])
    # Layers of some families share parameters.
    shapes = {p.sources: p.shape for p in declared(decoder, "", {})}
    count = sum(map(prod, shapes.values()))
    found = re.search(r"(\d+(?:\.\d+)?)B", name)
    billions = OTHERWISE.get(name) or (NOT_IN_NAME[name] if found is None else float(found[1]))
    assert billions * 0.93 < count / 1e9 < billions * 1.07


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_reads_as_many_layers(name: str) -> None:
    fields = dict(PUBLISHED[name])
    skip_without_family(fields["model_type"])
    theirs = CONFIG_MAPPING[fields.pop("model_type")](**fields).get_text_config()
    ours = decoder_config(PUBLISHED[name])
    assert len(ours.layers) == theirs.num_hidden_layers
    assert ours.vocab_size == theirs.vocab_size


@pytest.mark.parametrize("name", PUBLISHED)
def test_fields_outside_the_decoder_do_not_change_it(name: str) -> None:
    fields = PUBLISHED[name]
    assert decoder_config({**BESIDE, **fields}) == decoder_config(fields)
    if "text_config" in fields:
        text = {**BESIDE, **fields["text_config"]}
        assert decoder_config({**fields, "text_config": text}) == decoder_config(fields)


# Of a family: a field of published configs, the value that it has there, and one that means something else.
ONE_MEANING: list[tuple[str, str, Any, Any]] = [
    ("qwen3_next", "use_sliding_window", False, True),
    ("qwen3_5_text", "use_sliding_window", False, True),
    ("qwen3_5_moe_text", "use_sliding_window", False, True),
    ("qwen3_5_text", "output_gate_type", "swish", "sigmoid"),
    ("qwen3_5_moe_text", "output_gate_type", "silu", "tanh"),
    ("olmo_hybrid", "linear_use_gate", True, False),
    ("llama", "rope_interleaved", False, True),
    ("bamba", "attn_rotary_emb", 4, 8),
]


@pytest.mark.parametrize(("family", "field", "published", "other"), ONE_MEANING)
def test_a_field_that_has_one_meaning_here(family: str, field: str, published: Any, other: Any) -> None:
    base = {"model_type": family, **BASE_CONFIGS[family]}
    assert decoder_config({**base, field: published}) == decoder_config(base)
    with pytest.raises(HybridgeError, match=field):
        decoder_config({**base, field: other})


def test_any_value_of_is_llama_config() -> None:
    base = {"model_type": "llama", **BASE_CONFIGS["llama"]}
    assert decoder_config({**base, "is_llama_config": True}) == decoder_config(base)


@pytest.mark.parametrize("family", ["llama", "qwen3", "olmo_hybrid", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"])
def test_swish_is_silu(family: str) -> None:
    base = {"model_type": family, **BASE_CONFIGS[family], "hidden_act": "silu"}
    assert decoder_config({**base, "hidden_act": "swish"}) == decoder_config(base)


# transformers cannot build a model of the config that it saves for lfm2_moe, which has no layer_types, and for
# ministral, which has no head_dim.
@pytest.mark.parametrize("model_type", [*sorted({*FAMILIES} - {"lfm2_moe", "ministral"}), *TEXT_MODELS])
def test_defaults_that_transformers_saves(model_type: str, tmp_path: Path) -> None:
    skip_without_family(model_type)
    config = CONFIG_MAPPING[model_type]()
    config.save_pretrained(tmp_path)
    decoder = decoder_config(json.loads((tmp_path / "config.json").read_text()))
    assert len(decoder.layers) == config.get_text_config().num_hidden_layers


def test_frequencies_that_old_checkpoints_store(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "a", "llama")
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.ones(4)}))
    assert_one_shot_agrees(folder)
