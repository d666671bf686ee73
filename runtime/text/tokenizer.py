"""The checkpoint's tokenizer, over the tokenizers library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from hybridge.artifact.errors import ArtifactError, RequestError
from hybridge.artifact.limits import TOKENIZER_BYTES
from hybridge.artifact.untrusted_file import read_inside
from hybridge.runtime.text.byte_level import bytes_from_token
from hybridge.runtime.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from hybridge.runtime.text.limited_tokenizer import LimitedTokenizer
from hybridge.runtime.text.special_tokens import extra_special_tokens, named_special_tokens, read_tokenizer_config
from hybridge.runtime.text.tokenizer_shape import unbounded_part

if TYPE_CHECKING:
    from hybridge.runtime.sandbox.tokenizer import TokenizerLibrary

TOKENIZER_FILE = "tokenizer.json"
# Tokens before a stream that a window detokenizer looks at.
_CONTEXT_TOKENS = 8


class Tokenizer:
    """Text to token ids and back, as transformers does it for the same files.

    BOS and EOS are added as the post-processor of tokenizer.json says; padding and truncation stored there are
    ignored. Special tokens written in a text are recognised. ``special_tokens`` maps names such as "bos_token"
    to their text. A tokenizer that nothing bounds (runtime.text.tokenizer_shape) runs in a child process. May be used
    from several threads.
    """

    def __init__(
        self, backend: TokenizerLibrary | LimitedTokenizer, special_tokens: Mapping[str, str], byte_level: bool
    ) -> None:
        self._backend = backend
        self._byte_level = byte_level
        self.special_tokens = MappingProxyType(dict(special_tokens))
        self._token_bytes = {skip: lru_cache(maxsize=None)(self._bytes_reader(skip)) for skip in (False, True)}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Load the tokenizer files in ``folder``; ArtifactError when they are missing or malformed."""
        path = folder / TOKENIZER_FILE
        raw = read_inside(folder, TOKENIZER_FILE, TOKENIZER_BYTES)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{path}: expected a tokenizer ({error}): export the checkpoint again") from error
        config = read_tokenizer_config(folder)
        named = named_special_tokens(folder, config)
        data = _json_object(path, text)
        backend = _backend(text, str(path), data, [*named.values(), *extra_special_tokens(config)])
        return cls(backend, named, _is_byte_level(data.get("decoder")))

    def close(self) -> None:
        """End the child process where there is one; calling it twice is allowed."""
        if isinstance(self._backend, LimitedTokenizer):
            self._backend.close()

    @property
    def bos_token_id(self) -> int | None:
        """The id of the BOS token, None when the checkpoint names none."""
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of the tokenizer's own EOS token, None when the checkpoint names none."""
        return self._named_id("eos_token")

    @cached_property
    def added_tokens(self) -> Mapping[str, bool]:
        """The texts that are one token wherever they occur, each with whether it is a special token."""
        return MappingProxyType(dict(self._backend.added_tokens()))

    @cached_property
    def special_token_ids(self) -> Mapping[str, int]:
        """The special tokens, by their text."""
        texts = {self._backend.token_text(token): token for token in self._backend.special_ids()}
        return MappingProxyType({text: token for text, token in texts.items() if text is not None})

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, at least 1."""
        return max(1, self._backend.longest_token())

    @property
    def bounded_json(self) -> str | None:
        """The tokenizer as a tokenizer.json, for other libraries; None where its running time is unbounded."""
        return None if isinstance(self._backend, LimitedTokenizer) else self._backend.to_json()

    @property
    def content(self) -> Mapping[str, object]:
        """The parts that determine tokenization: vocabulary, added tokens, and how text is split."""
        return self._backend.content()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of ``text``; RequestError when it is not valid Unicode (a lone surrogate)."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"prompt: expected valid Unicode text, found {error.object[error.start]!r}") from error
        return self._backend.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; ids outside the vocabulary have none."""
        return self._backend.decode(ids, skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that ``token`` stands for, which may be a part of a character; none outside the vocabulary."""
        if self._byte_level:
            return self._token_bytes[False](token)
        return self.decode([token], skip_special_tokens=False).encode()

    def detokenizer(self, context: Sequence[int] = (), skip_special_tokens: bool = True) -> Detokenizer:
        """A streaming decoder for the tokens that follow ``context``."""
        if self._byte_level:
            return ByteDetokenizer(self._token_bytes[skip_special_tokens])

        def decode(ids: list[int]) -> str:
            return self._backend.decode(ids, skip_special_tokens)

        return WindowDetokenizer(decode, context[-_CONTEXT_TOKENS:])

    def _named_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._backend.token_id(text)

    def _bytes_reader(self, skip_special_tokens: bool) -> Callable[[int], bytes]:
        special = set(self._backend.special_ids())

        def read(token: int) -> bytes:
            text = self._backend.token_text(token)
            if text is None or (skip_special_tokens and token in special):
                return b""
            return bytes_from_token(text)

        return read


def _backend(
    text: str, where: str, data: Mapping[str, object], special_tokens: Sequence[str]
) -> TokenizerLibrary | LimitedTokenizer:
    part = unbounded_part(data)
    if part is not None:
        return LimitedTokenizer(text, where, special_tokens, part)
    from hybridge.runtime.sandbox.tokenizer import TokenizerLibrary

    return TokenizerLibrary(text, where, special_tokens)


def _json_object(path: Path, text: str) -> dict[str, object]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: the tokenizer is malformed ({error}): export the checkpoint again") from error
    if not isinstance(data, dict):
        raise ArtifactError(f"{path}: expected a JSON object, found {type(data).__name__}: export the checkpoint again")
    return data


def _is_byte_level(decoder: object) -> bool:
    """True when tokenizer.json's decoder only maps the byte-level alphabet back to bytes."""
    if not isinstance(decoder, Mapping):
        return False
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders")
        return isinstance(parts, list) and len(parts) == 1 and _is_byte_level(parts[0])
    return decoder.get("type") == "ByteLevel"
