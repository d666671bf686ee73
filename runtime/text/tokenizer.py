"""The checkpoint's tokenizer, over the tokenizers library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import tokenizers

from artifact.errors import ArtifactError, RequestError
from runtime.text.byte_level import bytes_from_token
from runtime.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from runtime.text.special_tokens import extra_special_tokens, named_special_tokens, read_tokenizer_config

TOKENIZER_FILE = "tokenizer.json"
# Tokens before a stream that a window detokenizer looks at.
_CONTEXT_TOKENS = 8


class Tokenizer:
    """Text to token ids and back, as transformers does it for the same files.

    BOS and EOS are added as the post-processor of tokenizer.json says; padding and truncation stored there are
    ignored. Special tokens written in a text are recognised. ``special_tokens`` maps names such as "bos_token"
    to their text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str], byte_level: bool) -> None:
        self._backend = backend
        self._byte_level = byte_level
        self.special_tokens = MappingProxyType(dict(special_tokens))
        self._token_bytes = {skip: lru_cache(maxsize=None)(self._bytes_reader(skip)) for skip in (False, True)}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Load the tokenizer files in ``folder``; ArtifactError when they are missing or malformed."""
        path = folder / TOKENIZER_FILE
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"{path}: expected a tokenizer ({error}): export the checkpoint again") from error
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise ArtifactError(f"{path}: the tokenizer is malformed ({error}): export the checkpoint again") from error
        backend.no_padding()
        backend.no_truncation()
        config = read_tokenizer_config(folder)
        named = named_special_tokens(folder, config)
        _mark_special(backend, [*named.values(), *extra_special_tokens(config)])
        return cls(backend, named, _is_byte_level(json.loads(text).get("decoder")))

    @property
    def bos_token_id(self) -> int | None:
        """The id of the BOS token, None when the checkpoint names none."""
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of the tokenizer's own EOS token, None when the checkpoint names none."""
        return self._named_id("eos_token")

    @property
    def content(self) -> Mapping[str, object]:
        """What decides which tokens a text has and what they mean: vocabulary, added tokens, and how text is split."""
        found = json.loads(self._backend.to_str())
        return {name: found.get(name) for name in ("added_tokens", "normalizer", "pre_tokenizer", "model")}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of ``text``; RequestError when it is not valid Unicode (a lone surrogate)."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"prompt: expected valid Unicode text, found {error.object[error.start]!r}") from error
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; ids outside the vocabulary have none."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def detokenizer(self, context: Sequence[int] = (), skip_special_tokens: bool = True) -> Detokenizer:
        """A streaming decoder for the tokens that follow ``context``."""
        if self._byte_level:
            return ByteDetokenizer(self._token_bytes[skip_special_tokens])

        def decode(ids: list[int]) -> str:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

        return WindowDetokenizer(decode, context[-_CONTEXT_TOKENS:])

    def _named_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)

    def _bytes_reader(self, skip_special_tokens: bool) -> Callable[[int], bytes]:
        special = {i for i, token in self._backend.get_added_tokens_decoder().items() if token.special}

        def read(token: int) -> bytes:
            text = self._backend.id_to_token(token)
            if text is None or (skip_special_tokens and token in special):
                return b""
            return bytes_from_token(text)

        return read


def _mark_special(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> None:
    """Make declared special tokens atomic where tokenizer.json has them as ordinary vocabulary only.

    A token that the vocabulary lacks is left out: the model has no embedding for it.
    """
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in texts if text not in special and backend.token_to_id(text) is not None]
    if missing:
        backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in missing])


def _is_byte_level(decoder: object) -> bool:
    """True when tokenizer.json's decoder only maps the byte-level alphabet back to bytes."""
    if not isinstance(decoder, Mapping):
        return False
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders")
        return isinstance(parts, list) and len(parts) == 1 and _is_byte_level(parts[0])
    return decoder.get("type") == "ByteLevel"
