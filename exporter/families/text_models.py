"""Models of text and images, or sound: the text model in their text_config, without the towers around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hybridge.artifact.errors import CheckpointError, UnsupportedError

VISION_NOTE = "the checkpoint's encoders of other inputs are left out: the artifact takes text alone"
_PROJECTOR = ("model.vision_tower.", "model.multi_modal_projector.")
_LEGACY = (*_PROJECTOR, "vision_tower.", "multi_modal_projector.")
_MERGER = ("model.vision_tower.", "model.merger.")
# As published, as transformers saves them, and the head that predicts further tokens.
_OMNI = (
    *("vision_model.", "mlp1.", "sound_encoder.", "sound_projection."),
    *("vision_final_layernorm.", "multi_modal_projector.", "audio_tower.", "embed_audio."),
    "language_model.mtp.",
)
# Names of the text model's config; the second is of published nemotron_h_omni checkpoints.
TEXT_CONFIG_NAMES = ("text_config", "llm_config")


def text_config_of(raw: Mapping[str, Any]) -> Any:
    """The config of the text model in ``raw``, as it is in there; None where there is none."""
    return next((raw[name] for name in TEXT_CONFIG_NAMES if raw.get(name) is not None), None)


@dataclass(frozen=True)
class TextModel:
    """family: of the text model. towers: what the names of all other tensors begin with.

    text_type: model_type in text_config, where it is not the family's. tied: whether the head is the embedding in a
    config without tie_word_embeddings; transformers then ignores that of text_config. None: the two must agree.
    """

    family: str
    towers: tuple[str, ...]
    text_type: str | None = None
    tied: bool | None = None

    def fields(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The config of the text model in ``raw``, the config of the whole.

        CheckpointError, UnsupportedError: a field has another value than supported, or two contradict each other.
        """
        text, expected = text_config_of(raw), self.text_type or self.family
        if not isinstance(text, dict):
            raise CheckpointError(f"config.json: text_config: expected an object, found {text!r}")
        if text.get("model_type", expected) != expected:
            raise UnsupportedError(
                f"config.json: text_config.model_type: expected {expected!r}, found {text['model_type']!r}"
            )
        return {**text, **self._tied(raw, text), "model_type": self.family}

    def _tied(self, raw: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
        """The field that says whether the head is the embedding."""
        outer, inner = raw.get("tie_word_embeddings", self.tied), text.get("tie_word_embeddings")
        if self.tied is None and None not in (outer, inner) and outer != inner:
            raise CheckpointError(
                f"config.json: tie_word_embeddings: expected {inner!r} like in text_config, found {outer!r}"
            )
        return {} if outer is None else {"tie_word_embeddings": outer}


# model_type -> its text model.
TEXT_MODELS: Mapping[str, TextModel] = MappingProxyType(
    {
        "gemma3": TextModel("gemma3_text", _LEGACY, tied=True),
        "granite4_vision": TextModel(
            "granite",
            (
                *_PROJECTOR,
                *(f"model.{name}" for name in ("image_newline", "layerwise_projectors.", "spatial_projectors.")),
            ),
            text_type="granite4_vision_text",
            tied=False,
        ),
        "lfm2_vl": TextModel("lfm2", _PROJECTOR, tied=True),
        "lfm3_vl": TextModel("lfm3", _PROJECTOR, tied=True),
        "minicpm_ocr": TextModel("qwen3_5_text", _MERGER, tied=True),
        "minicpmv4_6": TextModel("qwen3_5_text", _MERGER, tied=False),
        "minicpmv4_7": TextModel("qwen3_5_text", _MERGER, tied=False),
        "mistral3": TextModel("mistral", _LEGACY, tied=True),
        "nemotron_h_omni": TextModel("nemotron_h", _OMNI),
        "qwen3_5": TextModel("qwen3_5_text", ("model.visual.",)),
        "qwen3_5_moe": TextModel("qwen3_5_moe_text", ("model.visual.",)),
    }
)
