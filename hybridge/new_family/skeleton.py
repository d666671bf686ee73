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
# Models without this field rotate nothing.
ROPE = "rope_parameters"
# Of a rotary embedding whose theta no config gives.
_THETA = 10000.0
_GATED, _PLAIN, _FUSED = ("gate_proj", "up_proj", "down_proj"), ("up_proj", "down_proj"), ("gate_up_proj", "down_proj")


def family_text(model_type: str, kinds: Mapping[str, str], defaults: Mapping[str, Any], model: ModelTensors) -> str:
    """A file in the layout of Llama with what differs in this family's defaults and tensors."""
    mixed = bool(model.other_layers)
    windows = {"sliding_window", "layer_types"} <= set(kinds) and not mixed
    filled = (*_FILLED, "sliding_window") if windows else _FILLED
    absent = {name: defaults[name] for name in filled if defaults.get(name) is not None}
    head_dim = "head_dim_of(config)" if not absent.get("head_dim") else 'config.positive("head_dim")'
    norms = model.sources("")
    after = "post_feedforward_layernorm" in norms and "input_layernorm" not in norms
    layer = "norm_after_layer_of" if after else "layer_of"
    helpers = {head_dim.partition("(")[0], layer} | {*(["layer_kinds"] * mixed), *(["check_heads"] * model.divided)}
    rope, theta = _absent_rope(model.config)
    constants = [f"ABSENT = {{\n{_table(absent)}\n}}"]
    constants += [f"ABSENT_ROPE = {{\n{_table(rope)}\n}}"] if rope else []
    pattern = _pattern(model.config) if windows else [*(["FULL"] if mixed else [])]
    if windows:
        constants.append(f"# The kinds of layers, repeated.\nPATTERN = [{', '.join(pattern)}]")
    return f'''"""{model_type}: {"layers with and without attention" if mixed else "Llama's layout"}."""

from __future__ import annotations

{_imports(helpers, pattern, [*["fill_rope"] * bool(rope), *["rope_from_config"] * (ROPE in kinds)])}

# The kinds of fields that transformers declares, and its defaults.
KINDS = {{
{_table(_by_kind(kinds))}
}}
{chr(10).join(constants)}


def parse(config: HfConfig) -> DecoderConfig:
    """Translate {_article(model_type)} {model_type} config."""
{_parser(model_type, kinds, model, head_dim, layer, (bool(rope), theta), windows)}
'''


def _parser(
    model_type: str,
    kinds: Mapping[str, str],
    model: ModelTensors,
    head_dim: str,
    layer: str,
    rope: tuple[bool, float],
    windows: bool,
) -> str:
    """The lines of the parser. rope: whether its parameters are filled in, and the theta where none is given."""
    filled, theta = rope
    norm = ", qk_norm=True" if "q_norm" in model.sources("self_attn.") else ""
    bias = ', bias=config.flag("mlp_bias", default=False)' if "mlp_bias" in kinds else ""
    absent_theta = "" if theta == _THETA else f", absent_theta={theta!r}"
    lines = ["config.fill(ABSENT)", *(["fill_rope(config, ABSENT_ROPE)"] if filled else [])]
    lines += [*(["check_heads(config)"] if model.divided else []), f"head_dim = {head_dim}"]
    neighbours = ", interleaved=True" if model.interleaved else ""
    if "self_attn.q_proj.bias" in model.biases and "self_attn.o_proj.bias" not in model.biases:
        norm += ", output_bias=False"
    if "attention_bias" not in kinds:
        lines.append('config.expect("attention_bias", (False,), False)')
    if ROPE in kinds:
        lines.append(f"rope = rope_from_config(config, head_dim{absent_theta}{neighbours})")
    lines += [
        f"attention = attention_of(config, head_dim, {'rope' if ROPE in kinds else None}{norm})",
        'width, activation = config.positive("intermediate_size"), activation_of(config)',
        f"mlp = MlpConfig(width, activation{_projections(model)}{bias})",
    ]
    call = f'{layer}("self_attn", ' if layer == "layer_of" else f"{layer}("
    if model.other_layers:
        lines += [
            "# The layers without attention are missing.",
            f"layers = {{FULL: {call}attention, mlp)}}",
            "kinds = layer_kinds(config, [FULL] * config.layer_count())",
            "if any(kind not in layers for kind in kinds):",
            '    raise config.fail("layer_types", "layers of attention alone, until this file has the others")',
            f'return decoder_of(config, "{model_type}", [layers[kind] for kind in kinds])',
        ]
        return textwrap.indent("\n".join(lines), "    ")
    if not windows:
        lines.append(f'return decoder_of(config, "{model_type}", ({call}attention, mlp),) * config.layer_count())')
        return textwrap.indent("\n".join(lines), "    ")
    lines += [
        "count = config.layer_count()",
        "kinds = [PATTERN[index % len(PATTERN)] for index in range(count)]",
        'windows = layer_windows(config, count, kinds, config.positive("sliding_window", null=None))',
        f"layers = [{call}replace(attention, sliding_window=window), mlp) for window in windows]",
        f'return decoder_of(config, "{model_type}", layers)',
    ]
    return textwrap.indent("\n".join(lines), "    ")


def _imports(helpers: set[str], pattern: list[str], rope: list[str]) -> str:
    """The imports of a file that uses ``helpers`` of common_fields, and of ``rope``.

    pattern: its kinds of layers with windows.
    """
    helpers = {"attention_of", "decoder_of", *helpers, *({"FULL"} & {*pattern})} - {"config.positive"}
    windows = "layer_kinds" not in helpers and bool(pattern)
    names = {
        "activation_names": "activation_of",
        "common_fields": ", ".join(sorted(helpers, key=lambda name: (not name.isupper(), name))),
        "decoder_config": "DecoderConfig",
        "hf_config": "HfConfig",
        "mlp_config": "MlpConfig",
        **({"rope": ", ".join(rope)} if rope else {}),
        **({"sliding_window": ", ".join([*({"SLIDING"} & {*pattern}), "layer_windows"])} if windows else {}),
    }
    lines = [f"from hybridge.exporter.families.{module} import {name}" for module, name in names.items()]
    return "\n".join([*(["from dataclasses import replace", ""] if windows else []), *lines])


def _absent_rope(config: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """The parameters that a config without any has, {} for those of every family; and their theta."""
    found = dict(config.get(ROPE) or {})
    theta = found.get("rope_theta", _THETA)
    return ({} if found.get("rope_type", "default") == "default" else found), theta


def _pattern(config: Mapping[str, Any]) -> list[str]:
    """The names of the shortest pattern whose repetition is ``layer_types``."""
    kinds = list(config["layer_types"])
    length = next(n for n in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return ["FULL" if kind == "full_attention" else "SLIDING" for kind in kinds[:length]]


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
