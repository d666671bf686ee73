"""Named special tokens (bos_token, eos_token, ...) as a checkpoint's tokenizer files declare them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.json_fields import load_json_object
from hybridge.artifact.untrusted_file import has_file

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_MAP_FILE = "special_tokens_map.json"


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, an empty object if there is none; ArtifactError when it is malformed."""
    present = has_file(folder, TOKENIZER_CONFIG_FILE)
    return load_json_object(folder / TOKENIZER_CONFIG_FILE) if present else {}


def named_special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text of every named special token.

    special_tokens_map.json, written with older configs, takes precedence there; a config with
    added_tokens_decoder is complete without it. This is what transformers does.
    """
    present = has_file(folder, SPECIAL_TOKENS_MAP_FILE) and "added_tokens_decoder" not in config
    legacy = load_json_object(folder / SPECIAL_TOKENS_MAP_FILE) if present else {}
    names = [name for name in (*config, *legacy) if name.endswith("_token")]
    texts = {name: _text(legacy.get(name, config.get(name))) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def extra_special_tokens(config: Mapping[str, Any]) -> list[str]:
    """Special tokens without a name; ArtifactError when they are neither a list nor an object."""
    key = "extra_special_tokens" if config.get("extra_special_tokens") else "additional_special_tokens"
    declared = config.get(key) or []
    if not isinstance(declared, (list, Mapping)):
        raise ArtifactError(
            f"{TOKENIZER_CONFIG_FILE}: {key}: expected a list of tokens or an object of them, found "
            f"{type(declared).__name__}: export the checkpoint again"
        )
    values = declared.values() if isinstance(declared, Mapping) else declared
    return [text for text in map(_text, values) if text is not None]


def _text(value: Any) -> str | None:
    """The text of a token given as a string or as an AddedToken object; None for anything else (a flag, null)."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
