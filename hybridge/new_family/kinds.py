"""The kinds of a config's fields, from the annotations of transformers' config class."""

from __future__ import annotations

import dataclasses
from typing import Any


def declared_kinds(config_class: Any) -> dict[str, str]:
    """field -> kind, as in ``exporter.families.field_kinds``, of all fields but the type of the weights."""
    return {field.name: kind_of(str(field.type)) for field in dataclasses.fields(config_class) if field.name != "dtype"}


def kind_of(annotation: str) -> str:
    """The short name of the kind that ``annotation`` allows."""
    text = annotation.removeprefix("<class '").removesuffix("'>")
    parts = [part.strip() for part in text.split(" | ")]
    null = "?" if "None" in parts else ""
    parts = [part for part in parts if part != "None"]
    if set(parts) == {"int", "float"}:
        return f"number{null}"
    if set(parts) == {"int", "str"}:
        return f"int or str{null}"
    if parts == ["int", "list[int]"]:
        return f"ints{null}"
    if parts[0].startswith("list["):
        return f"[{parts[0][5:].split(',')[0].rstrip(']')}]{null}"
    if parts[0].startswith("Literal"):
        return f"str{null}"
    return f"{'object' if 'dict' in text else parts[0]}{null}"
