"""Turn a stream of tokens into text, whole characters only."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

# What a decoder shows for bytes that are not, or not yet, a character.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has at most 4 bytes; with more tokens than this held back, the text is simply not UTF-8.
_MAX_PENDING_TOKENS = 32


class Detokenizer(ABC):
    """Tokens of one sequence in, text out. The pieces and the flush together are the decoded text."""

    @abstractmethod
    def push(self, token: int) -> str:
        """The text that became certain with ``token``; empty while a character is incomplete."""

    @abstractmethod
    def flush(self) -> str:
        """The remaining text at the end: replacement characters for an incomplete character."""


class ByteDetokenizer(Detokenizer):
    """For byte-level vocabularies, where a token is a string of bytes: exact, and constant work per token."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._token_bytes(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer(Detokenizer):
    """For every other vocabulary: decodes a sliding window twice, without and with the new tokens, and compares.

    ``context`` holds the last tokens before the stream, so that a decoder that drops the space in front of a text
    keeps the one between prompt and continuation.
    """

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context)
        self._shown = len(self._window)

    def push(self, token: int) -> str:
        self._window.append(token)
        before, after = self._texts()
        pending = len(self._window) - self._shown
        if (after.endswith(_REPLACEMENT) or len(after) <= len(before)) and pending <= _MAX_PENDING_TOKENS:
            return ""
        # The tokens shown last become the context of the next ones.
        del self._window[: self._shown]
        self._shown = len(self._window)
        return after[len(before) :]

    def flush(self) -> str:
        before, after = self._texts()
        self._shown = len(self._window)
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._window[: self._shown]), self._decode(self._window)
