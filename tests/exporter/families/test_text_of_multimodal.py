"""The text model of a checkpoint with a vision tower, as transformers loads it for text alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.checkpoint.quantized.reader import without_quantization
from hybridge.exporter.families.registry import decoder_config
from hybridge.exporter.families.text_models import TEXT_MODELS, VISION_NOTE, text_config_of
from hybridge.exporter.plan import plan_export
from tests.support.agreement import assert_one_shot_agrees
from tests.support.checkpoint_edits import edit_config, edit_tensors, read_config
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, randomise
from tests.support.versions import skip_without_family

VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 1]}


SIGLIP = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
RADIO = {**SIGLIP, "model_type": "radio", "max_img_size": 28, "video_temporal_patch_size": 2}
DELTA = {"num_hidden_layers": 2, "rope_parameters": MROPE, "layer_types": ["linear_attention", "full_attention"]}
# Of a model: what its text_config has, its vision_config, and the fields beside them.
PARTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": ({}, SIGLIP, {}),
    "granite4_vision": (
        {},
        {**SIGLIP, "model_type": "siglip_vision_model", "hidden_size": 64},
        {"deepstack_layer_map": [[-1, 0]], "image_grid_pinpoints": [[28, 28]], "downsample_rate": "1/1"},
    ),
    "lfm2_vl": ({}, SIGLIP, {}),
    "lfm3_vl": ({}, SIGLIP, {}),
    "minicpm_ocr": (DELTA, SIGLIP, {}),
    "minicpmv4_6": (DELTA, SIGLIP, {}),
    "minicpmv4_7": (DELTA, SIGLIP, {}),
    "mistral3": ({}, {**SIGLIP, "head_dim": 8}, {"tie_word_embeddings": False}),
    "nemotron_h_omni": ({}, RADIO, {"vision_hidden_size": 16, "projector_hidden_size": 24}),
    "qwen3_5": (DELTA, VISION, {}),
    "qwen3_5_moe": (DELTA, VISION, {}),
}


def save_model_of_text_and_images(folder: Path, model_type: str) -> Path:
    from transformers import AutoConfig, AutoModelForMultimodalLM

    torch.manual_seed(0)
    text, vision, beside = PARTS[model_type]
    kind = TEXT_MODELS[model_type]
    fields = {**BASE_CONFIGS[kind.family], **text, "model_type": kind.text_type or kind.family}
    skip_without_family(model_type)
    config = AutoConfig.for_model(model_type, text_config=fields, vision_config=vision, **beside)
    model = AutoModelForMultimodalLM.from_config(config)
    randomise(model)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", sample(sorted(TEXT_MODELS), on_push=("gemma3", "qwen3_5")))
def test_text_model_agrees_with_transformers(model_type: str, tmp_path: Path) -> None:
    folder = save_model_of_text_and_images(tmp_path / "a", model_type)
    assert "vision_config" in read_config(folder)
    assert_one_shot_agrees(folder)
    plan = plan_export(folder)
    assert VISION_NOTE in plan.notes
    assert plan.config.model_type == TEXT_MODELS[model_type].family
    assert plan.weight_bytes < sum(slot.nbytes for slot in open_checkpoint(folder).tensors.values())
    assert plan.config.eos_token_ids == (2,)


def config(**fields: Any) -> dict[str, Any]:
    text = {"model_type": "qwen3_5_text", **BASE_CONFIGS["qwen3_5_text"]}
    return {"model_type": "qwen3_5", "text_config": text, "vision_config": VISION, **fields}


def test_fields_of_released_checkpoints() -> None:
    released = {
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {**MROPE, "mrope_interleaved": True},
    }
    plain = config()
    assert decoder_config(config(text_config={**plain["text_config"], **released})) == decoder_config(plain)


def test_a_tied_head_may_be_said_outside() -> None:
    assert decoder_config(config(tie_word_embeddings=True)).tie_word_embeddings


@pytest.mark.parametrize(
    ("fields", "named", "error"),
    [
        ({"text_config": None}, "text_config", CheckpointError),
        ({"text_config": {"model_type": "llama"}}, "text_config.model_type", UnsupportedError),
        ({"text_config": {**config()["text_config"], "attn_output_gate": False}}, "attn_output_gate", UnsupportedError),
        (
            {"tie_word_embeddings": True, "text_config": {**config()["text_config"], "tie_word_embeddings": False}},
            "tie_word_embeddings",
            CheckpointError,
        ),
    ],
    ids=["none", "other", "no gate", "tied twice"],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], named: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=named):
        decoder_config(config(**fields))


def test_other_tensors_are_still_refused(tmp_path: Path) -> None:
    folder = save_model_of_text_and_images(tmp_path / "a", "qwen3_5")
    edit_tensors(folder, lambda tensors: tensors.update({"model.audio.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"model\.audio\.weight"):
        plan_export(folder)
    edit_config(folder, model_type="qwen3_6")
    with pytest.raises(UnsupportedError, match="qwen3_5_moe"):
        plan_export(folder)


def test_the_text_model_of_a_published_omni_config_has_another_name() -> None:
    text = {"model_type": "nemotron_h", **BASE_CONFIGS["nemotron_h"], "eos_token_id": 7}
    saved = {"model_type": "nemotron_h_omni", "text_config": text, "vision_config": RADIO}
    published = {"model_type": "nemotron_h_omni", "llm_config": text, "vision_config": RADIO}
    assert decoder_config(published) == decoder_config(saved)
    assert text_config_of({**published, "text_config": None}) == text_config_of(saved) == text
    quantized = {**published, "llm_config": {**text, "quantization_config": {"quant_method": "fp8"}}}
    assert without_quantization(quantized) == (published, {"quant_method": "fp8"})
