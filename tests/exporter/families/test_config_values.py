"""Every field of every family with null, with values of every wrong kind, and left out: read as transformers reads it,
or refused with the field's name.

The fields are those that the parser asks for and those of the config itself, so that none is forgotten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from hybridge.artifact.errors import HybridgeError
from hybridge.exporter.families.declared_fields import computed_fields, undeclared_kinds
from hybridge.exporter.families.registry import FAMILIES, declared_kinds, decoder_config
from hybridge.new_family.kinds import declared_kinds as kinds_that_transformers_declares
from tests.exporter.families.rows.parts import LLAMA3
from tests.support.config_oracle import AGREES, TOO_LARGE, Judge, complete_config, recorded
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS
from tests.support.versions import skip_ungrouped_norms, skip_without_family

ABSENT = object()
ODD: tuple[Any, ...] = (True, False, 0, -1, 1, 3, 2.5, 0.5, "x", "3", "auto", [], [1], ["x"], {}, {"a": 1})
# What the type of the weights is, and names of classes: no field of a decoder.
NOT_JUDGED = {"model_type", "dtype", "torch_dtype", "id2label", "label2id", "problem_type"}
BASES: dict[str, dict[str, Any]] = {
    **{family: {"model_type": family, **fields} for family, fields in BASE_CONFIGS.items()},
    **{
        f"{family} with experts": {"model_type": family, **BASE_CONFIGS[family], **fields}
        for family, fields in EXPERTS.items()
    },
    "granite with rope": {
        "model_type": "granitemoehybrid",
        **BASE_CONFIGS["granitemoehybrid"],
        "position_embedding_type": "rope",
    },
    "qwen3 with windows": {
        "model_type": "qwen3",
        **BASE_CONFIGS["qwen3"],
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
}
ROPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "yarn": (
        "llama",
        "rope_parameters",
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 8.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 0.9,
            "truncate": False,
        },
    ),
    "llama3": ("llama", "rope_parameters", LLAMA3),
    "longrope": (
        "phi3",
        "rope_parameters",
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.0, 2.5, 4.0, 9.0],
            "factor": 2.0,
            "attention_factor": 1.1,
            "original_max_position_embeddings": 64,
        },
    ),
    "dynamic": ("llama", "rope_parameters", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    "linear, old spelling": ("llama", "rope_scaling", {"type": "linear", "rope_theta": 1e4, "factor": 2.5}),
    **{
        f"{family}, half": (
            family,
            "rope_parameters",
            {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        )
        for family in ("bamba", "qwen3_next", "qwen3_5_text")
    },
    "olmo": ("olmo_hybrid", "rope_parameters", {"rope_type": "default", "rope_theta": 1e4}),
}
ROPE_FIELDS = ("attention_factor", "partial_rotary_factor", "type", "rope_type", "mrope_section")


def with_value(config: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    rest = {k: v for k, v in config.items() if k != field}
    return rest if value is ABSENT else {**rest, field: value}


def faults(base: dict[str, Any], values: tuple[Any, ...], folder: Path) -> list[str]:
    """Fields and ``values`` that are neither read as transformers reads them nor refused by name."""
    judge, found = Judge(folder, base), []
    fields = sorted({*recorded(base).requested, *base, *computed_fields(base["model_type"])} - NOT_JUDGED)
    assert len(fields) > 15
    for field in fields:
        for value in values:
            if value is ABSENT and field not in base:
                continue
            config = with_value(base, field, value)
            try:
                decoder_config(config)
            except HybridgeError as error:
                verdict = AGREES if field in str(error) else f"refused without its name: {error}"
            else:
                verdict = judge.verdict(config)
            if verdict not in (AGREES, TOO_LARGE):
                found.append(f"{field} {'absent' if value is ABSENT else repr(value)}: {verdict}")
    return found


# The others take the push too long; that their tables of kinds are right is checked for all.
PUSH = ("granitemoehybrid", "bamba", "llama")


@pytest.mark.parametrize(
    "name", [name if name in PUSH else pytest.param(name, marks=pytest.mark.slow) for name in BASES]
)
def test_null_and_absent(name: str, tmp_path: Path) -> None:
    skip_ungrouped_norms(name)
    skip_without_family(BASES[name]["model_type"])
    assert faults(BASES[name], (ABSENT, None), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_odd_values(name: str, tmp_path: Path) -> None:
    skip_without_family(BASES[name]["model_type"])
    assert faults(BASES[name], ODD, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_odd_values_of_complete_configs(name: str, tmp_path: Path) -> None:
    skip_without_family(BASES[name]["model_type"])
    assert faults(complete_config(BASES[name], tmp_path), (ABSENT, None, *ODD), tmp_path) == []


def rope_faults(name: str, values: tuple[Any, ...], folder: Path) -> list[str]:
    family, spelling, rope = ROPES[name]
    base = {"model_type": family, **BASE_CONFIGS[family], spelling: rope}
    judge, found = Judge(folder, base), []
    assert judge.verdict(base) == AGREES
    for field in dict.fromkeys((*rope, *ROPE_FIELDS)):
        for value in values:
            if value is ABSENT and field not in rope:
                continue
            config = {**base, spelling: with_value(rope, field, value)}
            try:
                decoder_config(config)
            except HybridgeError as error:
                named = field in str(error) or "rope_type" in str(error)
                verdict = AGREES if named else f"refused without its name: {error}"
            else:
                verdict = judge.verdict(config)
            if verdict != AGREES:
                found.append(f"{field} {'absent' if value is ABSENT else repr(value)}: {verdict}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ROPES)
def test_null_and_absent_in_the_rotary_embedding(name: str, tmp_path: Path) -> None:
    assert rope_faults(name, (ABSENT, None), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ROPES)
def test_odd_values_in_the_rotary_embedding(name: str, tmp_path: Path) -> None:
    assert rope_faults(name, ODD, tmp_path) == []


@pytest.mark.parametrize("name", [name for name, base in BASES.items() if recorded(base).spellings])
def test_other_spellings(name: str, tmp_path: Path) -> None:
    base, found = BASES[name], []
    skip_without_family(base["model_type"])
    judge = Judge(tmp_path, base)
    for spellings in sorted(recorded(base).spellings):
        held = next((spelling for spelling in spellings if spelling in base), None)
        rest = {k: v for k, v in base.items() if k not in spellings}
        # A flag is false where it is given alone, so that it differs from its default.
        values = [base[held]] if held else [False, 2, [0.02, 0.3]]
        for spelling in spellings:
            for value in values:
                try:
                    decoder_config(config := {**rest, spelling: value})
                except HybridgeError as error:
                    assert spelling in str(error)
                    assert held is None or spelling != held
                    continue
                verdict = judge.verdict(config)
                if verdict not in (AGREES, TOO_LARGE):
                    found.append(f"{spelling} {value!r}: {verdict}")
    assert found == []


@pytest.mark.parametrize("family", FAMILIES)
def test_kinds_are_those_that_transformers_declares(family: str) -> None:
    skip_without_family(family)
    found = {name: kind.replace("fraction", "float") for name, kind in declared_kinds(family).items()}
    assert found == kinds_that_transformers_declares(CONFIG_MAPPING[family])


@pytest.mark.parametrize("family", FAMILIES)
def test_computed_fields_are_those_that_transformers_cannot_set(family: str) -> None:
    skip_without_family(family)
    config_class = CONFIG_MAPPING[family]
    properties = [name for name in dir(config_class) if isinstance(getattr(config_class, name, None), property)]
    computed = {name for name in properties if getattr(config_class, name).fset is None and name[0] != "_"}
    # The config class of nemotron_h reads two of them from the file.
    assert set(computed_fields(family)) == computed - set(undeclared_kinds(family))
    base = {"model_type": family, **BASE_CONFIGS[family]}
    for name in computed_fields(family):
        with pytest.raises(HybridgeError, match=f"{name}: expected no such field"):
            decoder_config({**base, name: None})
