"""From messages to the tokens of a prompt. Runs off the event loop (``AsyncLLM.prepare``)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.errors import RequestError
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.generation.prompts import check_length, checked_ids
from hybridge.runtime.text import Tokenizer
from hybridge.runtime.text.prompt_size import tokens_within

_ASSISTANT = "assistant"
# Fields of a request that no variable of a template may replace.
_FIELDS = frozenset({"messages", "tools", "add_generation_prompt", "template"})
# Last characters of a prompt, in which its opening tag of the reasoning is looked for.
_END = 64


def text_tokens(llm: AsyncLLM, text: str, special_tokens: bool = True, most: int | None = None) -> list[int]:
    """The tokens of ``text``, at least one; RequestError when it has none, or more than ``most``."""
    limit = llm.max_seq_len if most is None else min(most, llm.max_seq_len)
    tokenizer = _tokenizer(llm)
    ids = tokens_within(tokenizer, text, limit, "prompt", special_tokens)
    if not ids and tokenizer.bos_token_id is not None:
        ids = [tokenizer.bos_token_id]
    if not ids:
        raise RequestError("prompt: expected at least one token, found none: write a text")
    check_length(len(ids), limit, "prompt")
    return ids


def prompts_of(llm: AsyncLLM, given: str | Sequence[Any], most: int | None) -> list[list[int]]:
    """The tokens of one prompt or of several, each a text or token ids; RequestError for one that is wrong."""
    prompts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    limit = llm.max_seq_len if most is None else min(most, llm.max_seq_len)
    return [
        text_tokens(llm, each, most=most)
        if isinstance(each, str)
        else list(checked_ids(each, "prompt", llm.config.vocab_size, limit))
        for each in prompts
    ]


@dataclass(frozen=True)
class ChatPrompt:
    """The tokens of a chat, the last characters of its text, and the token positions at which its last messages end."""

    ids: list[int]
    end: str
    turns: tuple[int, ...] = ()


def chat_prompt(
    llm: AsyncLLM,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    control_tokens: bool,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    most: int | None = None,
) -> ChatPrompt:
    """A chat as its template renders it; RequestError when the template refuses it, or it has too many tokens.

    control_tokens: special tokens in the text of messages take effect. Otherwise they are tokenized as plain text, so
    that text cannot end a message; in the assistant's own messages only those that the tokenizer declares special.
    """
    tokenizer = _tokenizer(llm)
    if _FIELDS & variables.keys():
        raise RequestError("chat_template_kwargs: expected variables of the template, found a field of the request")
    mark = secrets.token_hex(16)
    given = list(messages)
    if not control_tokens:
        # A tool has no role: all of its texts are those of the client.
        *given, shown = _guarded([*messages, {"role": "", "tools": list(tools or ())}], tokenizer, mark)
        tools = shown["tools"] if tools is not None else None
    text, ends = llm.chat_template.render_with_ends(given, tools, add_generation_prompt, **variables)
    limit = llm.max_seq_len if most is None else min(most, llm.max_seq_len)

    def tokens(shown: str) -> list[int]:
        return [
            token for part in shown.split(mark) for token in tokens_within(tokenizer, part, limit, "messages", False)
        ]

    ids = tokens(text)
    if not ids:
        raise RequestError("messages: expected a chat of at least one token, found none: write a text")
    check_length(len(ids), limit, "messages")
    turns = []
    for end in ends:
        # The rest is short, so few tokens are tokenized twice.
        following = tokens(text[end:])
        if ids[len(ids) - len(following) :] == following:
            turns.append(len(ids) - len(following))
    return ChatPrompt(ids, text[-_END:], tuple(turns))


def _guarded(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, mark: str) -> list[Mapping[str, Any]]:
    """The messages with ``mark`` inside of each special token, where the text is cut before it is tokenized."""
    every = _pattern(list(tokenizer.added_tokens))
    special = _pattern([text for text, is_special in tokenizer.added_tokens.items() if is_special])

    def guarded(value: Any, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: match[0] + mark, value)
        if isinstance(value, Mapping):
            return {guarded(key, pattern): guarded(each, pattern) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [guarded(each, pattern) for each in value]
        return value

    return [
        {
            name: value if name == "role" else guarded(value, special if message["role"] == _ASSISTANT else every)
            for name, value in message.items()
        }
        for message in messages
    ]


def _pattern(texts: Sequence[str]) -> re.Pattern[str]:
    """Matches the first character of each occurrence of ``texts``, also of those that overlap."""
    if not texts:
        return re.compile(r"(?!)")
    ends = "|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in sorted(texts) if len(text) > 1)
    return re.compile(ends or r"(?!)", re.DOTALL)


def _tokenizer(llm: AsyncLLM) -> Tokenizer:
    if llm.tokenizer is None:
        raise RequestError("prompt: expected token ids, because the model has no tokenizer, found a text")
    return llm.tokenizer
