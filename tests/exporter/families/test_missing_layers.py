"""Models with recurrent layers that are not supported are refused by the layer that is missing."""

from __future__ import annotations

import contextlib
import inspect
import re
from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from hybridge.artifact.errors import UnsupportedError
from hybridge.exporter.families.registry import FAMILIES, LAYERS_NOT_SUPPORTED, decoder_config
from hybridge.exporter.families.text_models import TEXT_MODELS


@pytest.mark.parametrize("model_type", LAYERS_NOT_SUPPORTED)
def test_a_family_known_for_another_kind_of_layer_names_it(model_type: str) -> None:
    expected = f"unsupported model_type '{model_type}' ({LAYERS_NOT_SUPPORTED[model_type]})"
    with pytest.raises(UnsupportedError, match=re.escape(expected)):
        decoder_config({"model_type": model_type})


# What modeling files of recurrent layers, linear attention and short convolutions name, and no others.
RECURRENT = re.compile("recurrent_state|conv_state|causal_conv1d|linear_attention|wkv|mlstm", re.IGNORECASE)
GENERATING = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)


def has_recurrent_layers(config_class: type) -> bool:
    """Whether the modeling file of the text model names some; defaults tell which text model a model of images has."""
    text = config_class().get_text_config()
    file = Path(inspect.getfile(type(text))).parent
    return any(RECURRENT.search(source.read_text()) for source in file.glob("modeling_*.py"))


@pytest.mark.slow
def test_every_recurrent_model_of_transformers_is_supported_or_refused_by_its_layers() -> None:
    found = set()
    for model_type in {*CONFIG_MAPPING} & {name for names in GENERATING for name in names}:
        # Configs of several models have no defaults.
        with contextlib.suppress(ValueError, StrictDataclassError):
            if has_recurrent_layers(CONFIG_MAPPING[model_type]):
                found.add(model_type)
    assert {"bamba", "jamba", "rwkv", "qwen3_5"} <= found
    assert found - {*FAMILIES, *TEXT_MODELS} <= set(LAYERS_NOT_SUPPORTED) <= set(CONFIG_MAPPING)


def test_supported_families_are_not_refused() -> None:
    assert not set(LAYERS_NOT_SUPPORTED) & {*FAMILIES, *TEXT_MODELS}
