"""The TOML file of ``hybridge serve --config``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import SettingError
from hybridge.artifact.limits import PRESET_BYTES
from hybridge.artifact.settings import SettingField, bad_value, settings_of
from hybridge.artifact.untrusted_file import read_given
from hybridge.serve.settings import ModelSettings, ServeSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MODELS = "models"


def read_config_file(path: Path) -> tuple[dict[str, Any], list[ModelSettings]]:
    """Values of ``ServeSettings``, and the models of the tables ``[models.NAME]``.

    Paths of models are relative to the file. SettingError: malformed, an unknown key, or a value of a wrong type.
    """
    try:
        data = tomllib.loads(read_given(path, PRESET_BYTES, SettingError).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path}: is not valid TOML ({error}): correct the file") from error
    tables = data.pop(_MODELS, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingError(f"{path}: expected a table [{_MODELS}.NAME] for each model: correct the file")
    values = _values(path, data, ServeSettings, {})
    return values, [_model(path, name, table) for name, table in tables.items()]


def _model(path: Path, name: str, table: dict[str, Any]) -> ModelSettings:
    values = _values(path, table, ModelSettings, {"path": str, "preload": bool})
    if "path" not in values:
        raise SettingError(f"{path}: expected path in [{_MODELS}.{name}], found none: name the artifact's folder")
    return ModelSettings(**{**values, "name": name, "path": path.parent / values["path"]})


def _values(path: Path, table: dict[str, Any], kind: type, more: dict[str, type]) -> dict[str, Any]:
    fields: dict[str, SettingField] = {each.name: each for each in settings_of(kind)}
    kinds = {**{name: each.kind for name, each in fields.items()}, **more}
    for name, value in table.items():
        if name not in kinds:
            raise SettingError(f"{path}: expected one of {', '.join(kinds)}, found {name!r}: leave it out")
        if type(value) is not kinds[name]:
            raise bad_value(f"{path}: {name}", f"a value of type {kinds[name].__name__}", value)
    return table
