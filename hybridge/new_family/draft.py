"""A draft of a family: its file, its rows in other files, and the open decisions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import HybridgeError, OutputError, UnsupportedError
from hybridge.exporter.families.common_fields import FULL
from hybridge.exporter.families.declared_fields import DECLARED_KINDS
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.hf_config import HARMLESS_FIELDS, HfConfig
from hybridge.exporter.families.parameters import declared
from hybridge.exporter.families.registry import FAMILIES, LAYERS_NOT_SUPPORTED
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
    only the draft or only the model has, or whose shapes differ, None where the draft cannot be compared.
    other_layers: the number of the first layer of each kind without attention -> its tensors and their shapes.
    error: why the draft does not read the defaults of its own config, or "".
    """

    model_type: str
    text: str
    rows: Mapping[str, str]
    open_fields: Mapping[str, str]
    open_tensors: tuple[str, ...] | None
    error: str = ""
    other_layers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the same fields."""
        return {
            "model_type": self.model_type,
            "rows": dict(self.rows),
            "open_fields": dict(self.open_fields),
            "open_tensors": None if self.open_tensors is None else list(self.open_tensors),
            "other_layers": {str(number): list(tensors) for number, tensors in self.other_layers.items()},
            "error": self.error,
        }


def draft_family(model_type: str) -> FamilyDraft:
    """The start of the family ``model_type``, of which transformers has a config class and a model.

    UnsupportedError: the type is supported, or its layers are known not to be, or transformers does not know it, or
    it builds no causal language model with attention from it.
    """
    from transformers import CONFIG_MAPPING

    if model_type in FAMILIES:
        raise UnsupportedError(f"{model_type}: expected a type that is not supported yet, found one that is")
    if model_type in LAYERS_NOT_SUPPORTED:
        raise UnsupportedError(
            f"{model_type}: expected a type whose layers are supported, found {LAYERS_NOT_SUPPORTED[model_type]}: "
            "add these layers first (docs/how-to/add_a_model.md)"
        )
    if model_type not in CONFIG_MAPPING or not re.fullmatch(r"[a-z][a-z0-9_]*", model_type):
        raise UnsupportedError(f"{model_type}: expected a model_type that transformers knows, found none of this name")
    config_class = CONFIG_MAPPING[model_type]
    kinds, model = declared_kinds(config_class), model_tensors(model_type, config_class)
    defaults = {own.name: own.default for own in dataclasses.fields(config_class)}
    text = family_text(model_type, kinds, defaults, model)
    config = HfConfig(_of_attention_alone(model))
    error, decoder = "", None
    try:
        decoder = parsed(text, config)
    except HybridgeError as failure:
        error = str(failure)
    # After an error nothing more was read: the file names those of Llama all the same.
    named = {*HARMLESS_FIELDS, *(DECLARED_KINDS["llama"] if error else ())}
    unread = [name for name in config.unread() if name not in named]
    fields = {name: f"{kinds.get(name, 'not declared')}, default {_short(model.config[name])}" for name in unread}
    fields |= {other: f"another name of {usual}" for other, usual in model.spellings.items()}
    return FamilyDraft(
        model_type,
        text,
        _rows(model_type, bool(model.other_layers)),
        fields,
        None if decoder is None else tuple(_differences(decoder, model)),
        error,
        {number: tuple(f"{n} {list(s)}" for n, s in layer.items()) for number, layer in model.other_layers.items()},
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


def parsed(text: str, config: HfConfig) -> DecoderConfig:
    """What the family's file ``text`` makes of ``config``."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "<draft>", "exec"), namespace)  # generated text, with checked names
    decoder: DecoderConfig = namespace["parse"](config)
    return decoder


def _of_attention_alone(model: ModelTensors) -> dict[str, Any]:
    """The default config, without other layers: the draft has none."""
    kinds = {"layer_types": [FULL] * len(model.layers)} if model.other_layers else {}
    return {**model.config, **kinds}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _differences(decoder: DecoderConfig, model: ModelTensors) -> list[str]:
    named = {source: p.source_shape for p in declared(decoder, "model.", {}) for source in p.sources}
    theirs = {name: shape for name, shape in model.tensors.items() if _compared(name, model.first)}
    ours = {name: shape for name, shape in named.items() if _compared(name, model.first)}
    missing = [f"{name} {list(shape)}: not in the model" for name, shape in ours.items() if name not in theirs]
    unnamed = [f"{name} {list(shape)}: not in the draft" for name, shape in theirs.items() if name not in ours]
    other = [
        f"{name}: {list(ours[name])} in the draft, {list(shape)} in the model"
        for name, shape in theirs.items()
        if name in ours and prod(ours[name]) != prod(shape)
    ]
    return [*missing, *unnamed, *other]


def _compared(name: str, layer: int) -> bool:
    """Whether a tensor belongs to ``layer``, or to none."""
    return ".layers." not in name or f".layers.{layer}." in name


def _rows(model_type: str, mixed: bool) -> dict[str, str]:
    name, configs = f'"{model_type}"', "tests/support/tiny_configs"
    sizes = "".join(f'\n    "{field}": {value},' for field, value in _TINY.items())
    near_llama = {f"{configs}/near_llama.py": f"{name}, in NEAR_LLAMA: its tests follow from KINDS"}
    own = {
        f"{configs}/linear_attention.py": f"{name}: {{\n    **COMMON,\n    **ATTENTION,{sizes}\n}},",
        "tests/support/random_models.py": f"{name}, in FAMILIES and, with a function of its fields, in _OWN_FIELDS",
        "tests/exporter/families/rows/linear_attention.py": f"{name}: [*HEADS, ...], rows of one value each",
    }
    return {
        "exporter/families/registry.py": f"    {model_type},  # the import\n{name}: {model_type}.parse,",
        "README.md": f"`{model_type}`, in the row of its layers",
        "tools/published/NAME.json": "the fields of its largest published config.json, NAME with its size such as 7B",
        **(own if mixed else near_llama),
        "CHANGELOG.md": f"{model_type}, in the line of the models under Added",
    }
