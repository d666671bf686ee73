"""Models with recurrent layers that are not supported are refused by the layer that is missing."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import model_type_to_module_name

from hybridge.artifact.errors import UnsupportedError
from hybridge.exporter.families.registry import FAMILIES, LAYERS_NOT_SUPPORTED, decoder_config
from hybridge.exporter.families.text_models import TEXT_MODELS
from tests.support.versions import skip_without_family


@pytest.mark.parametrize("model_type", LAYERS_NOT_SUPPORTED)
def test_a_family_known_for_another_kind_of_layer_names_it(model_type: str) -> None:
    expected = f"unsupported model_type '{model_type}' ({LAYERS_NOT_SUPPORTED[model_type]})"
    with pytest.raises(UnsupportedError, match=re.escape(expected)):
        decoder_config({"model_type": model_type})


# What modeling files of recurrent layers, linear attention and short convolutions name, and no others.
RECURRENT = re.compile(rb"recurrent_state|conv_state|causal_conv1d|linear_attention|[Ww]kv|m[Ll][Ss][Tt][Mm]")
GENERATING = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)


TYPES = {*CONFIG_MAPPING} & {name for names in GENERATING for name in names}
KNOWN = {*FAMILIES, *TEXT_MODELS, *LAYERS_NOT_SUPPORTED}


@cache
def has_recurrent_layers(folder: Path) -> bool:
    """Whether a modeling file in ``folder`` names some."""
    return any(RECURRENT.search(source.read_bytes()) for source in folder.glob("modeling_*.py"))


def test_every_type_whose_own_file_has_recurrent_layers_is_supported_or_refused_by_its_layers() -> None:
    models = Path(transformers.__file__).parent / "models"
    found = {name for name in TYPES if has_recurrent_layers(models / model_type_to_module_name(name))}
    assert {"bamba", "jamba", "rwkv", "xlstm", "lfm2"} <= found
    assert not found - KNOWN


@pytest.mark.parametrize("model_type", LAYERS_NOT_SUPPORTED)
def test_transformers_has_what_is_refused_by_its_layers(model_type: str) -> None:
    skip_without_family(model_type)
    assert model_type in CONFIG_MAPPING


@pytest.mark.slow
def test_every_type_around_a_text_model_with_recurrent_layers_is_known_too() -> None:
    """The defaults of a config tell which text model a model of images has."""
    found, without_defaults = set(), set()
    for model_type in TYPES:
        try:
            text = CONFIG_MAPPING[model_type]().get_text_config()
        except (ValueError, StrictDataclassError):
            without_defaults.add(model_type)
            continue
        if has_recurrent_layers(Path(inspect.getfile(type(text))).parent):
            found.add(model_type)
    assert {"qwen3_5", "nemotron_h_omni"} <= found
    assert not found - KNOWN
    assert without_defaults <= {"gemma4_assistant", "musicgen", "musicgen_melody", "nougat"}


def test_supported_families_are_not_refused() -> None:
    assert not set(LAYERS_NOT_SUPPORTED) & {*FAMILIES, *TEXT_MODELS}
