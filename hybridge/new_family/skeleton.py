"""The text of a family's file."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from hybridge.exporter.families.field_kinds import ALWAYS
from hybridge.new_family.model import ModelTensors

# Fields whose absence the parser has to fill.
_FILLED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "pad_token_id",
    "tie_word_embeddings",
)
_GATED, _PLAIN, _FUSED = ("gate_proj", "up_proj", "down_proj"), ("up_proj", "down_proj"), ("gate_up_proj", "down_proj")


def family_text(model_type: str, kinds: Mapping[str, str], defaults: Mapping[str, Any], model: ModelTensors) -> str:
    """A file in the layout of Llama with what differs in this family's defaults and tensors."""
    absent = {name: defaults[name] for name in _FILLED if defaults.get(name) is not None}
    head_dim = 'config.positive("head_dim")' if absent.get("head_dim") else "head_dim_of(config)"
    norm = ", qk_norm=True" if "q_norm" in model.sources("self_attn.") else ""
    helpers = ["attention_of", "decoder_of", "layer_of"]
    helpers += [] if absent.get("head_dim") else ["head_dim_of"]
    bias = ', bias=config.flag("mlp_bias", default=False)' if "mlp_bias" in kinds else ""
    return f'''"""{model_type}: Llama's layout."""

from __future__ import annotations

from hybridge.exporter.families.activation_names import activation_of
from hybridge.exporter.families.common_fields import {", ".join(sorted(helpers))}
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.rope import rope_from_config

# The kinds of fields that transformers declares, and its defaults.
KINDS = {{
{_table(_by_kind(kinds))}
}}
ABSENT = {{
{_table(absent)}
}}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate {_article(model_type)} {model_type} config."""
    config.fill(ABSENT)
    head_dim = {head_dim}
    attention = attention_of(config, head_dim, rope_from_config(config, head_dim){norm})
    width, activation = config.positive("intermediate_size"), activation_of(config)
    mlp = MlpConfig(width, activation{_projections(model)}{bias})
    return decoder_of(config, "{model_type}", (layer_of("self_attn", attention, mlp),) * config.layer_count())
'''


def _projections(model: ModelTensors) -> str:
    parts = set(model.sources("mlp."))
    return ', "plain"' if parts == set(_PLAIN) else ', "fused"' if parts == set(_FUSED) else ""


def _by_kind(kinds: Mapping[str, str]) -> dict[str, str]:
    known = {name for names in ALWAYS.values() for name in names.split()}
    found: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        if name not in known or kind != next(k for k, names in ALWAYS.items() if name in names.split()):
            found.setdefault(kind, []).append(name)
    return {kind: " ".join(names) for kind, names in found.items()}


def _table(values: Mapping[str, Any]) -> str:
    lines = []
    for name, value in values.items():
        text = repr(value).replace("'", '"')
        if len(text) < 100 or not isinstance(value, str):
            lines.append(f'    "{name}": {text},')
            continue
        parts = textwrap.wrap(value, 100)
        texts = [f'    "{part} "' for part in parts[:-1]] + [f'    "{parts[-1]}",']
        texts[0] = f'    "{name}": {texts[0].strip()}'
        lines += texts
    return "\n".join(lines)


def _article(name: str) -> str:
    return "an" if name[0] in "aeiou" else "a"
