"""Refuse a text that cannot fit before all of it is tokenized, which takes 200 bytes and 1 µs for each character."""

from __future__ import annotations

from hybridge.artifact.errors import PromptLengthError
from hybridge.runtime.text.tokenizer import Tokenizer

# A text of fewer characters for each token that fits is tokenized at once: English has about 4.
_ORDINARY = 8
# Tokenizers may drop characters: the compatibility form of Unicode makes at most 4 bytes of text into 1.
_MOST_DROPPED = 4
# Characters that are tokenized alone to count tokens, and the tokens that the cuts at both ends of such a piece may
# add to the whole text's.
_PIECE = 1 << 14
_ADDED_BY_CUTS = 64


def tokens_within(tokenizer: Tokenizer, text: str, limit: int, name: str, add_special_tokens: bool) -> list[int]:
    """The token ids of ``text``; the caller still compares their number with ``limit``.

    RequestError, which calls the text ``name``, when it must have more than ``limit`` tokens, or no valid Unicode.
    Time and memory are those of ``limit`` tokens, however long the text. A text of which the tokenizer drops nearly
    everything (megabytes of spaces for a vocabulary of words) is refused too.
    """
    if len(text) > _ORDINARY * limit and not _may_fit(tokenizer, text, limit):
        raise PromptLengthError(
            f"{name}: expected at most {limit} tokens (max_seq_len), found more in a text of {len(text)} "
            "characters: shorten it, or export with a larger `max_seq_len`"
        )
    return tokenizer.encode(text, add_special_tokens)


def _may_fit(tokenizer: Tokenizer, text: str, limit: int) -> bool:
    if len(text) > _MOST_DROPPED * tokenizer.longest_token * limit:
        return False
    tokens = 0
    for start in range(0, len(text), _PIECE):
        tokens += max(0, len(tokenizer.encode(text[start : start + _PIECE], False)) - _ADDED_BY_CUTS)
        if tokens > limit:
            return False
    return True
