"""Tensor names and shapes of published checkpoints at their real size, as transformers loads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from tests.support.versions import skip_without_family
from tools.published_configs import PUBLISHED
from tools.sparse_checkpoint import tensors_of_config

# Tensors that checkpoints leave out: decays of lightning attention, which are computed, and vision towers.
LEFT_OUT = (".diagonal_decay", ".key_decay", ".query_decay", ".slope_rate")
TOWER = "model.visual."


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_finds_every_tensor(name: str) -> None:
    missing, wrong = loaded(PUBLISHED[name], tensors_of_config(PUBLISHED[name]))
    assert not wrong and not [key for key in missing if not key.endswith(LEFT_OUT) and not key.startswith(TOWER)]


@pytest.mark.slow
def test_another_name_or_shape_is_found() -> None:
    config = PUBLISHED["Qwen3-0.6B"]
    tensors = tensors_of_config(config)
    norm, (dtype, shape) = next((key, tensor) for key, tensor in tensors.items() if "q_norm" in key)
    assert loaded(config, {**tensors, norm: (dtype, (shape[0] + 1,))}) == (set(), {norm})
    renamed = {key.replace("q_norm", "query_norm"): tensor for key, tensor in tensors.items()}
    missing, wrong = loaded(config, renamed)
    assert norm in missing and norm.replace("q_norm", "query_norm") in wrong


def loaded(config: dict[str, Any], tensors: dict[str, tuple[Any, tuple[int, ...]]]) -> tuple[set[str], set[str]]:
    """What transformers' model of ``config`` misses of ``tensors``, and what it has no place for in this shape."""
    fields = dict(config)
    skip_without_family(fields["model_type"])
    theirs = CONFIG_MAPPING[fields.pop("model_type")](**fields)
    with torch.device("meta"):
        auto = AutoModelForImageTextToText if "text_config" in fields else AutoModelForCausalLM
        model = auto.from_config(theirs)
        stored = {key: torch.empty(shape) for key, (_, shape) in tensors.items()}
    settings = LoadStateDictConfig(device_map={"": "meta"}, weight_mapping=get_model_conversion_mapping(model))
    found, _ = convert_and_load_state_dict_in_model(model, stored, settings)
    misfits: Iterable[Any] = (*found.unexpected_keys, *found.mismatched_keys, *found.conversion_errors)
    wrong = {misfit if isinstance(misfit, str) else misfit[0] for misfit in misfits}
    return found.missing_keys - {*model.all_tied_weights_keys}, wrong
