"""Unread fields of config.json: refused unless they mean nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from hybridge.artifact.errors import UnsupportedError
from hybridge.exporter.families.hf_config import HARMLESS_FIELDS, HfConfig
from hybridge.exporter.families.registry import FAMILIES, decoder_config
from tests.support.tiny_models import BASE_CONFIGS
from tests.support.versions import skip_without_family


@pytest.mark.parametrize("value", [False, 0, 0.0, "", True, 2, [0], {"a": None}], ids=repr)
def test_an_unknown_field_with_a_value_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"unknown field.*new_gate: they may change what the model computes"):
        decoder_config({**BASE_CONFIGS["llama"], "model_type": "llama", "new_gate": value})


@pytest.mark.parametrize("value", [None, [], {}], ids=repr)
def test_an_unknown_field_that_is_empty_is_not(value: Any) -> None:
    config = {**BASE_CONFIGS["llama"], "model_type": "llama"}
    assert decoder_config({**config, "new_gate": value}) == decoder_config(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_that_transformers_writes_is_known(family: str) -> None:
    skip_without_family(family)
    written = json.loads(CONFIG_MAPPING[family](**BASE_CONFIGS[family]).to_json_string(use_diff=False))
    config = HfConfig({**written, "model_type": family})
    FAMILIES[family](config)
    assert set(config.unread()) <= HARMLESS_FIELDS
