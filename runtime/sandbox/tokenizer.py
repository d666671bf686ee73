"""The tokenizers library behind a few calls, whose panics are errors; the jobs at the end are the child's.

A tokenizer of a bounded shape (runtime.text.tokenizer_shape) is used in this process, any other one in a child.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers

from hybridge.artifact.errors import ArtifactError, HybridgeError, RequestError

# The parts that determine which tokens a text has and what they mean.
_CONTENT = ("added_tokens", "normalizer", "pre_tokenizer", "model")
# Characters of the library's own words that an error sentence shows.
_LONGEST_REASON = 300


class TokenizerLibrary:
    """One loaded tokenizer.json; padding and truncation stored there are ignored."""

    def __init__(self, text: str, where: str, special_tokens: Sequence[str]) -> None:
        """``where`` is the file that ``text`` is of, ``special_tokens`` what the other files declare special.

        ArtifactError: the tokenizer is malformed.
        """
        self._where = where
        with self._errors(ArtifactError, f"{where}: the tokenizer is malformed", "export the checkpoint again"):
            self._backend = tokenizers.Tokenizer.from_str(text)
            self._backend.no_padding()
            self._backend.no_truncation()
            _mark_special(self._backend, special_tokens)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """The token ids of ``text``; RequestError when the tokenizer cannot do it."""
        with self._errors(RequestError, f"prompt: {self._where} fails on the text", "use token ids"):
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of ``ids``; ids outside the vocabulary have none. ArtifactError when the decoder fails on them."""
        with self._errors(ArtifactError, f"{self._where}: fails on tokens", "export a repaired checkpoint"):
            return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token: int) -> str | None:
        """The vocabulary's own text of ``token``."""
        return self._backend.id_to_token(token)

    def token_id(self, text: str) -> int | None:
        """The id of the token that is written ``text`` in the vocabulary; ArtifactError when it is no Unicode."""
        with self._errors(ArtifactError, f"{self._where}: fails on a token", "export a repaired checkpoint"):
            return self._backend.token_to_id(text)

    def special_ids(self) -> list[int]:
        """The ids of special tokens."""
        return [i for i, token in self._backend.get_added_tokens_decoder().items() if token.special]

    def added_tokens(self) -> list[tuple[str, bool]]:
        """The texts that are one token wherever they occur, each with whether it is a special token."""
        return [(token.content, bool(token.special)) for token in self._backend.get_added_tokens_decoder().values()]

    def longest_token(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self._backend.get_vocab()), default=0)

    def to_json(self) -> str:
        """The whole tokenizer in the form of tokenizer.json."""
        return self._backend.to_str()

    def content(self) -> dict[str, Any]:
        """The parts that determine tokenization: vocabulary, added tokens, and how text is split."""
        found = json.loads(self._backend.to_str())
        return {name: found.get(name) for name in _CONTENT}

    @contextlib.contextmanager
    def _errors(self, kind: type[HybridgeError], sentence: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except MemoryError:
            raise
        except BaseException as error:
            # The library raises plain Exception; a panic of its native code is a BaseException.
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            reason = " ".join(str(error).split())[:_LONGEST_REASON]
            raise kind(f"{sentence} ({reason}): {remedy}") from None


def _mark_special(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> None:
    """Make declared special tokens atomic where tokenizer.json has them as ordinary vocabulary only.

    A token that the vocabulary lacks is left out: the model has no embedding for it.
    """
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in texts if text not in special and backend.token_to_id(text) is not None]
    if missing:
        backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in missing])


_loaded: TokenizerLibrary


def load_job(text: str, where: str, special_tokens: list[str]) -> bytes:
    """The first job of a child: what every later one works on."""
    global _loaded
    _loaded = TokenizerLibrary(text, where, special_tokens)
    return b""


def call_job(method: str, *arguments: Any) -> bytes:
    """Call a public method of TokenizerLibrary; its result as JSON."""
    return json.dumps(getattr(_loaded, method)(*arguments)).encode()
