"""Log-probabilities as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridge.runtime.sampling import TokenLogprobs
from hybridge.runtime.text import Tokenizer


class LogprobTexts:
    """Token ids with their texts; bytes of an incomplete character are replaced."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def chat(self, tokens: Sequence[TokenLogprobs], top: int) -> list[dict[str, Any]]:
        """The chat format: each token with the ``top`` most likely ones."""
        return [
            {
                **self._token(each.token_id, each.logprob),
                "top_logprobs": [self._token(token, logprob) for token, logprob in each.top[:top]],
            }
            for each in tokens
        ]

    def completion(self, tokens: Sequence[tuple[int, TokenLogprobs | None]], top: int, offset: int) -> dict[str, Any]:
        """The completion format: lists. The first token of a prompt has no log-probability.

        offset: characters before the first token.
        """
        texts = [self._text(token) for token, _ in tokens]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        likely = [
            None if found is None else {self._text(token): logprob for token, logprob in found.top[:top]}
            for _, found in tokens
        ]
        return {
            "tokens": texts,
            "token_logprobs": [None if found is None else found.logprob for _, found in tokens],
            "top_logprobs": likely if top else None,
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._bytes(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}

    def _text(self, token: int) -> str:
        return self._bytes(token).decode("utf-8", "replace")

    def _bytes(self, token: int) -> bytes:
        return f"token_id:{token}".encode() if self._tokenizer is None else self._tokenizer.token_bytes(token)
