"""Checkpoints by the id of a model on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.extras import install_command

# Weights and what describes them, never code; files in subfolders are those of other formats.
FILES = ("*.safetensors", "*.json", "*.jinja")
NOT_FILES = ("*/*.safetensors", "*/*.json")
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def checkpoint_folder(checkpoint: str | os.PathLike[str]) -> Path:
    """The folder of ``checkpoint``: the path itself, or a downloaded copy where only the hub has one of that name.

    CheckpointError: it looks like an id, and huggingface_hub is not installed or does not get it.
    """
    path = Path(checkpoint)
    name = path.as_posix()
    if os.path.lexists(path) or not _ID.fullmatch(name):
        return path
    try:
        import huggingface_hub  # noqa: F401 (whether it is installed)
    except ImportError as error:
        raise CheckpointError(
            f"{name}: expected a folder, found none: if this is a model of the Hugging Face hub, download it with "
            f"{download_line(name)} and give that folder, or let Hybridge do it: {install_command('hub')}"
        ) from error
    folder = _downloaded(name, list(FILES), list(NOT_FILES))
    if _is_original_of_mamba_ssm(folder):
        from hybridge.exporter.checkpoint.torch_file import TORCH_FILE

        _downloaded(name, [TORCH_FILE])
    return folder


def _downloaded(name: str, files: list[str], not_files: list[str] | None = None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=files, ignore_patterns=not_files))
    except Exception as error:  # of the hub's library, of its HTTP library, or of the disk
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(". ")
        raise CheckpointError(
            f"{name}: expected a folder or a model of the Hugging Face hub, found no such folder, and the download "
            f"failed ({reason}): check the name, the network, or log in with hf auth login"
        ) from error


def _is_original_of_mamba_ssm(folder: Path) -> bool:
    """Whether this is a checkpoint of state-spaces/mamba2-*: the only ones with weights in another format."""
    from hybridge.exporter.checkpoint.entries import read_json
    from hybridge.exporter.families.mamba_ssm import is_mamba_ssm

    config = None if any(folder.glob("*.safetensors")) else read_json(folder, "config.json")
    return config is not None and is_mamba_ssm(config)


def download_line(name: str) -> str:
    """The command that downloads the model ``name`` into a folder of its own."""
    include = " ".join(f"--include '{pattern}'" for pattern in FILES)
    exclude = " ".join(f"--exclude '{pattern}'" for pattern in NOT_FILES)
    return f"`hf download {name} {include} {exclude} --local-dir {name.split('/')[1]}`"
