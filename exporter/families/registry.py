"""The supported families: one row each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.exporter.families import (
    arcee,
    bailing_hybrid,
    bamba,
    cwm,
    ernie4_5,
    exaone4,
    falcon_h1,
    gemma,
    gemma3,
    glm,
    glm4,
    gpt_oss,
    granite,
    granitemoehybrid,
    helium,
    internlm3,
    iquestcoder,
    jamba,
    kimi_linear,
    lfm2,
    lfm2_moe,
    lfm3,
    llama,
    mamba,
    mamba2,
    minimax,
    ministral,
    mistral,
    mixtral,
    nemotron_h,
    olmo2,
    olmo3,
    olmo_hybrid,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    qwen3_next,
    recurrent_gemma,
    seed_oss,
    smollm3,
    zamba,
    zamba2,
    zaya,
)
from hybridge.exporter.families.declared_fields import DECLARED_KINDS, computed_fields, undeclared_kinds
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.field_kinds import check_kinds, kinds_of
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.text_models import TEXT_MODELS, VISION_NOTE, TextModel

FAMILIES: Mapping[str, Callable[[HfConfig], DecoderConfig]] = {
    "arcee": arcee.parse,
    "bailing_hybrid": bailing_hybrid.parse,
    "bamba": bamba.parse,
    "cwm": cwm.parse,
    "ernie4_5": ernie4_5.parse,
    "exaone4": exaone4.parse,
    "falcon_h1": falcon_h1.parse,
    "gemma": gemma.parse,
    "gemma3_text": gemma3.parse,
    "falcon_mamba": mamba.parse_falcon_mamba,
    "glm": glm.parse,
    "glm4": glm4.parse,
    "gpt_oss": gpt_oss.parse,
    "granite": granite.parse,
    "granitemoehybrid": granitemoehybrid.parse,
    "helium": helium.parse,
    "internlm3": internlm3.parse,
    "iquestcoder": iquestcoder.parse,
    "jamba": jamba.parse,
    "kimi_linear": kimi_linear.parse,
    "lfm2": lfm2.parse,
    "lfm2_moe": lfm2_moe.parse,
    "lfm3": lfm3.parse,
    "llama": llama.parse,
    "mamba": mamba.parse_mamba,
    "mamba2": mamba2.parse,
    "minimax": minimax.parse,
    "ministral": ministral.parse,
    "mistral": mistral.parse,
    "mixtral": mixtral.parse,
    "nemotron_h": nemotron_h.parse,
    "olmo2": olmo2.parse,
    "olmo3": olmo3.parse,
    "olmo_hybrid": olmo_hybrid.parse,
    "phi3": phi3.parse,
    "qwen2": qwen2.parse,
    "qwen3": qwen3.parse,
    "qwen3_5_moe_text": qwen3_next.parse_qwen3_5_moe,
    "qwen3_5_text": qwen3_next.parse_qwen3_5,
    "qwen3_moe": qwen3_moe.parse,
    "qwen3_next": qwen3_next.parse_qwen3_next,
    "recurrent_gemma": recurrent_gemma.parse,
    "seed_oss": seed_oss.parse,
    "smollm3": smollm3.parse,
    "zamba": zamba.parse,
    "zamba2": zamba2.parse,
    "zaya": zaya.parse,
}


# Known hybrid families that are not supported, each with its missing layer.
LAYERS_NOT_SUPPORTED: Mapping[str, str] = {
    "glm5_next": "attention over tokens that an indexer chooses, and hyper-connections",
    "glm5_next_text": "attention over tokens that an indexer chooses, and hyper-connections",
    "inkling2": "attention with relative logits, and convolutions whose kernels depend on the input",
    "inkling2_text": "attention with relative logits, and convolutions whose kernels depend on the input",
    "inkling_mm_model": "attention with relative logits and short convolutions",
    "inkling_text": "attention with relative logits and short convolutions",
    "nemo_speechlm": "an audio encoder around nemotron_h, with layers under the names of NeMo",
    "qwen4_exp": "embeddings of n-grams, hyper-connections, and attention over tokens that an indexer chooses",
    "qwen4_exp_text": "embeddings of n-grams, hyper-connections, and attention over tokens that an indexer chooses",
    "rwkv": "RWKV time mixing",
    "xlstm": "mLSTM layers",
}


def declared_kinds(model_type: str) -> Mapping[str, str]:
    """field -> kind of the family's config, from its own file or from declared_fields."""
    own = getattr(sys.modules[FAMILIES[model_type].__module__], "KINDS", None)
    return DECLARED_KINDS[model_type] if own is None else kinds_of(own)


def decoder_config(raw: Mapping[str, Any], ignored_fields: Iterable[str] = ()) -> DecoderConfig:
    """Translate a checkpoint's config.json.

    UnsupportedError: unknown model_type, unsupported value or unknown field; CheckpointError: malformed field.
    """
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"config.json: model_type: expected a string, found {model_type!r}")
    if model_type in TEXT_MODELS:
        return _text_model(raw, TEXT_MODELS[model_type], ignored_fields)
    parse = FAMILIES.get(model_type)
    if parse is None:
        known = ", ".join(sorted([*FAMILIES, *TEXT_MODELS]))
        layers = LAYERS_NOT_SUPPORTED.get(model_type)
        why = f" ({layers})" if layers else ""
        raise UnsupportedError(f"unsupported model_type {model_type!r}{why}: supported types are {known}")
    config = HfConfig(raw, ignored_fields)
    check_kinds(config, raw, {**undeclared_kinds(model_type), **declared_kinds(model_type)})
    for name in computed_fields(model_type):
        if name in config:
            raise config.fail(name, "no such field (transformers computes it, and cannot load a config that has it)")
    # Some of transformers' models cannot run without it.
    config.expect("return_dict", (True, None), True)
    decoder = parse(config)
    config.finish()
    return decoder


def _text_model(raw: Mapping[str, Any], model: TextModel, ignored_fields: Iterable[str]) -> DecoderConfig:
    """The text model of a model of text and images."""
    decoder = decoder_config(model.fields(raw), ignored_fields)
    sources, notes = (*decoder.ignored_sources, *model.towers), (*decoder.notes, VISION_NOTE)
    return replace(decoder, ignored_sources=sources, notes=notes)
