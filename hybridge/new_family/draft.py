"""A draft of a family: its file, its rows in other files, and the open decisions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import HybridgeError, OutputError, UnsupportedError
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HARMLESS_FIELDS, HfConfig
from hybridge.exporter.families.parameters import declared
from hybridge.exporter.families.registry import FAMILIES
from hybridge.new_family.kinds import declared_kinds
from hybridge.new_family.model import ModelTensors, model_tensors
from hybridge.new_family.skeleton import family_text

# Characters of a field's default.
_LONGEST = 80
FOLDER = Path("exporter") / "families"
# Sizes of a tiny model, as in the other families.
_TINY = {"num_hidden_layers": 2, "intermediate_size": 88, "max_position_embeddings": 512}


@dataclass(frozen=True)
class FamilyDraft:
    """text: the family's file. rows: file -> what to add to it.

    open_fields: field -> its kind and default, of fields that the draft does not read. open_tensors: tensors that
    only the draft or only the model has, or whose shapes differ. error: why the draft does not read
    the defaults of its own config, or "".
    """

    model_type: str
    text: str
    rows: Mapping[str, str]
    open_fields: Mapping[str, str]
    open_tensors: tuple[str, ...]
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the same fields."""
        return {
            "model_type": self.model_type,
            "rows": dict(self.rows),
            "open_fields": dict(self.open_fields),
            "open_tensors": list(self.open_tensors),
            "error": self.error,
        }


def draft_family(model_type: str) -> FamilyDraft:
    """The start of the family ``model_type``, of which transformers has a config class and a model.

    UnsupportedError: the type is supported, or transformers does not know it, or it builds no causal language model
    with attention in every layer from it.
    """
    from transformers import CONFIG_MAPPING

    if model_type in FAMILIES:
        raise UnsupportedError(f"{model_type}: expected a type that is not supported yet, found one that is")
    if model_type not in CONFIG_MAPPING or not re.fullmatch(r"[a-z][a-z0-9_]*", model_type):
        raise UnsupportedError(f"{model_type}: expected a model_type that transformers knows, found none of this name")
    config_class = CONFIG_MAPPING[model_type]
    kinds, model = declared_kinds(config_class), model_tensors(model_type, config_class)
    defaults = {field.name: field.default for field in dataclasses.fields(config_class)}
    text = family_text(model_type, kinds, defaults, model)
    config = HfConfig(model.config)
    error, decoder = "", None
    try:
        decoder = _parsed(text, config)
    except HybridgeError as failure:
        error = str(failure)
    unread = [name for name in config.unread() if name not in HARMLESS_FIELDS]
    fields = {name: f"{kinds.get(name, 'not declared')}, default {_short(model.config[name])}" for name in unread}
    fields |= {other: f"another name of {usual}" for other, usual in model.spellings.items()}
    return FamilyDraft(
        model_type,
        text,
        _rows(model_type, kinds, defaults),
        fields,
        () if decoder is None else tuple(_differences(decoder, model)),
        error,
    )


def write_family(draft: FamilyDraft, checkout: Path) -> Path:
    """Write the draft's file into ``checkout``. OutputError: no checkout of Hybridge, or the file exists."""
    folder = checkout / FOLDER
    if not (folder / "registry.py").is_file():
        raise OutputError(f"{checkout}: expected a checkout of Hybridge, found no {FOLDER / 'registry.py'}")
    path = folder / f"{draft.model_type}.py"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(draft.text)
    except FileExistsError as error:
        raise OutputError(f"{path}: expected no file of this name, found one: remove it to start again") from error
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error
    return path


def _parsed(text: str, config: HfConfig) -> DecoderConfig:
    namespace: dict[str, Any] = {}
    exec(compile(text, "<draft>", "exec"), namespace)  # generated text, with checked names
    decoder: DecoderConfig = namespace["parse"](config)
    return decoder


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _differences(decoder: DecoderConfig, model: ModelTensors) -> list[str]:
    named = {source: p.source_shape for p in declared(decoder, "model.", {}) for source in p.sources}
    first = {name: shape for name, shape in named.items() if _in_first_layer(name)}
    missing = [f"{name} {list(shape)}: not in the model" for name, shape in first.items() if name not in model.tensors]
    unnamed = [f"{n} {list(s)}: not in the draft" for n, s in model.tensors.items() if n not in named]
    other = [
        f"{name}: {list(named[name])} in the draft, {list(shape)} in the model"
        for name, shape in model.tensors.items()
        if name in named and prod(named[name]) != prod(shape)
    ]
    return [text for text in (*missing, *unnamed, *other) if _in_first_layer(text)]


def _in_first_layer(name: str) -> bool:
    """Whether a tensor belongs to the first layer, or to none."""
    return ".layers." not in name or ".layers.0." in name


def _rows(model_type: str, kinds: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, str]:
    head_dim = '\n    "head_dim": 14,' if "head_dim" in kinds else ""
    sizes = "".join(f'\n    "{name}": {value},' for name, value in _TINY.items())
    tiny = f"\n    **COMMON,\n    **ATTENTION,{head_dim}{sizes}"
    switches = [name for name, kind in kinds.items() if kind == "bool" and name.endswith(("bias", "embeddings"))]
    flips = "".join(f', {{"{name}": {not defaults[name]}}}' for name in switches)
    return {
        "exporter/families/registry.py": f'"{model_type}": {model_type}.parse,',
        "README.md": f"| `{model_type}` | attention |",
        "tests/support/tiny_configs/attention.py": f'"{model_type}": {{{tiny}\n}},',
        "tests/exporter/families/rows/attention.py": f'"{model_type}": [*HEADS, *ROPES[:3]{flips}],',
    }
