"""A tokenizer whose shape bounds neither its time nor its memory, in a process with limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hybridge.artifact.errors import ArtifactError, RequestError
from hybridge.artifact.limits import TOKENIZER_BYTES, TOKENIZER_MEMORY, TOKENIZER_SECONDS
from hybridge.runtime.sandbox.process import LimitedProcess, LimitError, ProcessLimits

LIMITS = ProcessLimits(TOKENIZER_SECONDS, TOKENIZER_MEMORY, 2 * TOKENIZER_BYTES)


class LimitedTokenizer:
    """The calls of runtime.sandbox.tokenizer.TokenizerLibrary, each of them answered by a child process."""

    def __init__(self, text: str, where: str, special_tokens: Sequence[str], part: str) -> None:
        """``part`` names what is not bounded; the rest is as for TokenizerLibrary, whose errors these are."""
        self._where, self._part = where, part
        self._process = LimitedProcess(LIMITS, setup=("load", text, where, list(special_tokens)))
        self._special = self._call("special_ids")

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._call("encode", text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self._call("decode", list(ids), skip_special_tokens)

    def token_text(self, token: int) -> str | None:
        return self._call("token_text", token)

    def token_id(self, text: str) -> int | None:
        return self._call("token_id", text)

    def special_ids(self) -> list[int]:
        return self._special

    def added_tokens(self) -> list[tuple[str, bool]]:
        return [(text, special) for text, special in self._call("added_tokens")]

    def longest_token(self) -> int:
        return self._call("longest_token")

    def content(self) -> dict[str, Any]:
        return self._call("content")

    def close(self) -> None:
        """End the process; a later call starts another one."""
        self._process.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return json.loads(self._process.call("call", method, *arguments))
        except LimitError as error:
            if method == "encode":
                raise RequestError(
                    f"prompt: the tokenizer ({self._part}) needs {error} for this text: shorten it, or use token ids"
                ) from None
            raise ArtifactError(
                f"{self._where}: the tokenizer ({self._part}) needs {error}: use a checkpoint with a repaired one"
            ) from None
