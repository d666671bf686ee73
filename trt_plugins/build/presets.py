"""Build presets: the TOML files of configs/, one a device. Keys are documented in configs/README.md."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.artifact.json_fields import Fields
from hybridge.artifact.limits import LARGEST_INTEGER, PRESET_BYTES
from hybridge.artifact.resources import data_folder
from hybridge.artifact.untrusted_file import read_given
from hybridge.trt_plugins.build.capability import normal_capability

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GENERIC = "generic"
# TensorRT counts the bytes in 64 bits.
MOST_WORKSPACE_MIB = LARGEST_INTEGER >> 20


@dataclass(frozen=True)
class Preset:
    """A device and the shapes that its engines are tuned for; batches in rows, sequences in tokens."""

    name: str
    description: str
    compute_capabilities: tuple[str, ...]
    max_batch_size: int
    max_seq_len: int
    prefill_opt_batch: int
    prefill_opt_seq: int
    prefill_max_seq: int
    decode_opt_batch: int
    workspace_mib: int | None = None
    optimization_level: int | None = None


def preset_names() -> tuple[str, ...]:
    """The names of the presets that ship, sorted."""
    return tuple(sorted(path.stem for path in data_folder("configs").glob("*.toml")))


def read_preset(name_or_path: str) -> Preset:
    """The preset of that name, or of the TOML file at that path.

    SettingError: no such preset. EngineError: the file is malformed, or holds an unknown or a missing key.
    """
    if name_or_path in preset_names():
        return _read(data_folder("configs") / f"{name_or_path}.toml")
    path = Path(name_or_path)
    if path.suffix != ".toml":
        known = ", ".join(preset_names())
        raise SettingError(f"target: expected the path of a .toml file or one of {known}, found {name_or_path!r}")
    return _read(path)


def preset_for(capability: str) -> Preset | None:
    """The shipped preset made for ``capability``, None if there is none."""
    presets = (read_preset(name) for name in preset_names())
    return next((preset for preset in presets if preset.compute_capabilities == (capability,)), None)


def _read(path: Path) -> Preset:
    try:
        data = tomllib.loads(read_given(path, PRESET_BYTES, SettingError).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{path}: is not valid TOML ({error}): correct the file") from error
    return _preset(path.stem, data, str(path))


def _preset(name: str, data: dict[str, Any], where: str) -> Preset:
    f = Fields(data, where, EngineError)
    prefill, decode = f.fields("prefill"), f.fields("decode")
    preset = Preset(
        name=name,
        description=f.string("description"),
        compute_capabilities=_capabilities(f),
        max_batch_size=f.integer("max_batch_size", minimum=1),
        max_seq_len=f.integer("max_seq_len", minimum=1),
        prefill_opt_batch=prefill.integer("opt_batch", minimum=1),
        prefill_opt_seq=prefill.integer("opt_seq", minimum=1),
        prefill_max_seq=prefill.integer("max_seq", minimum=1),
        decode_opt_batch=decode.integer("opt_batch", minimum=1),
        workspace_mib=f.integer("workspace_mib", None, minimum=1, maximum=MOST_WORKSPACE_MIB),
        optimization_level=f.integer("optimization_level", None, minimum=0),
    )
    for fields in (f, prefill, decode):
        fields.refuse_unknown()
    _check_order(preset, where)
    return preset


def _capabilities(f: Fields) -> tuple[str, ...]:
    return tuple(normal_capability(value) for value in f.strings("compute_capabilities"))


def _check_order(preset: Preset, where: str) -> None:
    for small, large, names in (
        (preset.prefill_opt_batch, preset.max_batch_size, ("prefill.opt_batch", "max_batch_size")),
        (preset.decode_opt_batch, preset.max_batch_size, ("decode.opt_batch", "max_batch_size")),
        (preset.prefill_opt_seq, preset.prefill_max_seq, ("prefill.opt_seq", "prefill.max_seq")),
        (preset.prefill_max_seq, preset.max_seq_len, ("prefill.max_seq", "max_seq_len")),
        (preset.optimization_level or 0, 5, ("optimization_level", "5")),
    ):
        if small > large:
            raise EngineError(f"{where}: expected {names[0]} of at most {names[1]} ({large}), found {small}: lower it")
