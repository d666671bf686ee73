"""Errors that reach a user: one sentence with what was expected, what was found and what to do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class HybridgeError(Exception):
    """Base of every error meant for a user; ``exit_code`` is the process's exit code (2: bad input or usage)."""

    exit_code = 2


class CheckpointError(HybridgeError):
    """The checkpoint folder is unreadable, corrupt, incomplete or unsafe."""


class UnsupportedError(HybridgeError):
    """A model type, config value, operator dimension or target that Hybridge does not support."""


class ArtifactError(HybridgeError):
    """An exported artifact is missing, corrupt, of another format version or contradicts itself."""


class OutputError(HybridgeError):
    """The output cannot be written: it exists already, the disk is full, permissions are missing."""


class ExportError(HybridgeError):
    """The exported graph breaks its own contract (declared inputs, outputs, operators or types)."""


class EngineError(HybridgeError):
    """An inference engine cannot be created, built or run."""


class SettingError(HybridgeError):
    """A parameter of a call, or an option of a command, has a value that cannot be used."""


class RequestError(SettingError):
    """A generation request that cannot be served: a bad prompt, length or sampling parameter."""


class PromptLengthError(RequestError):
    """A prompt of more tokens than a sequence may have."""


def described(error: BaseException) -> str:
    """One line about an error of any code, of which ``__str__`` may raise: type and at most 300 characters of message.

    An error of Hybridge is its own sentence.
    """
    if isinstance(error, HybridgeError):
        return str(error)
    try:
        message = " ".join(str(error).split())[:300]
    except Exception:
        message = ""
    return f"{type(error).__name__}: {message or 'no message'}"


@contextlib.contextmanager
def located(folder: Path) -> Iterator[None]:
    """Make the input errors of the block name ``folder`` as the user gave it.

    Its absolute path becomes what was given. "config.json: ..." becomes "FOLDER/config.json: ..." where that file
    exists, and any other sentence that does not begin with the folder "FOLDER: ...". So code that sees only a file's
    content need not know its place.
    """
    absolute = folder.absolute()
    try:
        yield
    except (ArtifactError, CheckpointError, UnsupportedError) as error:
        raise type(error)(_located(str(error), folder, absolute)) from error


def _located(text: str, folder: Path, absolute: Path) -> str:
    text = text.replace(f"{absolute}/", f"{folder}/").replace(f"{absolute}:", f"{folder}:")
    if text.startswith((f"{folder}:", f"{folder}/")):
        return text
    name, colon, rest = text.partition(":")
    # os.path.isfile: the "name" may be any part of a sentence, which is too long for a file's name.
    if colon and Path(name).name == name and os.path.isfile(absolute / name):
        return f"{folder}/{name}:{rest}"
    return f"{folder}: {text}"
