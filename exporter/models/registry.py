"""The supported families: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from artifact.errors import CheckpointError, UnsupportedError
from exporter.models import bamba, granitemoehybrid, llama, mamba2, nemotron_h, olmo_hybrid, qwen3, qwen3_next
from exporter.models.decoder_config import DecoderConfig
from exporter.models.hf_config import HfConfig

FAMILIES: Mapping[str, Callable[[HfConfig], DecoderConfig]] = {
    "bamba": bamba.parse,
    "granitemoehybrid": granitemoehybrid.parse,
    "llama": llama.parse,
    "mamba2": mamba2.parse,
    "nemotron_h": nemotron_h.parse,
    "olmo_hybrid": olmo_hybrid.parse,
    "qwen3": qwen3.parse,
    "qwen3_5_moe_text": qwen3_next.parse_qwen3_5_moe,
    "qwen3_5_text": qwen3_next.parse_qwen3_5,
    "qwen3_next": qwen3_next.parse_qwen3_next,
}


def decoder_config(raw: Mapping[str, Any], ignored_fields: Iterable[str] = ()) -> DecoderConfig:
    """Translate a checkpoint's config.json.

    UnsupportedError: unknown model_type, unsupported value or unknown field; CheckpointError: malformed field.
    """
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"config.json: model_type: expected a string, found {model_type!r}")
    parse = FAMILIES.get(model_type)
    if parse is None:
        raise UnsupportedError(f"unsupported model_type {model_type!r}: supported are {', '.join(sorted(FAMILIES))}")
    config = HfConfig(raw, ignored_fields)
    decoder = parse(config)
    config.finish()
    return decoder
