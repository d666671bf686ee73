"""The windows of a text that are scored, as llama-perplexity takes them.

Windows follow one another without overlap; what is left at the end is dropped. A text that is shorter than one window
is a window of its own. Where the tokenizer begins a text with BOS, each window begins with it, in place of its first
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridge.artifact.errors import ArtifactError, SettingError
from hybridge.artifact.limits import EVALUATION_TEXT_BYTES
from hybridge.artifact.untrusted_file import has_file, read_given
from hybridge.runtime.text import Tokenizer
from hybridge.runtime.text.tokenizer import TOKENIZER_FILE


def first_scored(length: int) -> int:
    """The first token of a window of ``length`` tokens after which the next one is predicted and scored.

    The last one is ``length - 2``: nothing follows the last token.
    """
    return min(length // 2, length - 2)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; SettingError otherwise."""
    raw = read_given(path, EVALUATION_TEXT_BYTES, SettingError, "give a text file")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(
            f"{path}: expected UTF-8 text, found the byte {raw[error.start]:#04x}: give a text file"
        ) from error


def shared_tokenizer(reference: Path, other: Path) -> Tokenizer:
    """The tokenizer of both folders, to be closed; SettingError when one has none, or they differ."""
    for folder in (reference, other):
        if not has_file(folder, TOKENIZER_FILE):
            raise SettingError(f"{folder}: expected a tokenizer, found no {TOKENIZER_FILE}: add the file of the model")
    tokenizer, second = Tokenizer.from_folder(reference), Tokenizer.from_folder(other)
    try:
        same = tokenizer.content == second.content
    finally:
        second.close()
    if not same:
        tokenizer.close()
        raise SettingError(
            f"{other}: expected the tokenizer of {reference}, found another one: their predictions are of different "
            "tokens, give two versions of one model"
        )
    return tokenizer


def token_windows(tokenizer: Tokenizer, text: str, size: int, most: int | None, name: str) -> list[np.ndarray]:
    """At most ``most`` windows of ``size`` tokens, int64; SettingError when the text ``name`` has less than 2."""
    begins = tokenizer.bos_token_id is not None and tokenizer.encode("")[:1] == [tokenizer.bos_token_id]
    ids = np.array(tokenizer.encode(text, add_special_tokens=False), np.int64)
    if begins:
        ids = np.concatenate([[tokenizer.bos_token_id], ids])
    if ids.size < 2:
        raise SettingError(f"{name}: expected a text of at least 2 tokens, found {ids.size}: give a longer one")
    size = min(size, ids.size)
    found = [ids[start : start + size].copy() for start in range(0, ids.size - size + 1, size)][:most]
    if begins:
        for window in found:
            window[0] = tokenizer.bos_token_id
    return found


def check_tokens(windows: Sequence[np.ndarray], vocab: int, folder: Path) -> None:
    """ArtifactError when the tokenizer gives tokens that the model does not have."""
    largest = max(int(window.max()) for window in windows)
    if largest >= vocab:
        raise ArtifactError(
            f"{folder}: expected tokens below {vocab}, the model's vocabulary, found {largest} in the text: the "
            "tokenizer belongs to another model"
        )
