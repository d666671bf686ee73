"""Which tokens the answer to a chat may have: those of a grammar, of a forced call, and of limited reasoning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from hybridge.artifact.errors import RequestError
from hybridge.runtime.chat_output import ChatFormat
from hybridge.runtime.chat_output.call_grammar import CallGrammar, Function
from hybridge.runtime.chat_output.parser import opens_reasoning
from hybridge.runtime.chat_output.tagged_answer import THINK, THINK_END
from hybridge.runtime.sampling import AllowedTokens
from hybridge.runtime.sampling.allowed_tokens import forked, prepare_mask
from hybridge.runtime.text import Tokenizer
from hybridge.serve.chat import AUTO, NONE, Chat
from hybridge.serve.errors import ApiError
from hybridge.serve.grammars import JSON_OPTIONS, lark_grammar
from hybridge.serve.served_model import ServedModel


async def allowed_tokens(
    model: ServedModel, chat: Chat, kind: ChatFormat, prompt_end: str
) -> Callable[[], AllowedTokens] | None:
    """A factory of each answer's token masks; None where every token is allowed.

    An answer to a chat with tools and a grammar is calls of tools, or content that follows the grammar. ApiError or
    RequestError for a grammar that is wrong.
    """
    if chat.tool_choice not in (AUTO, NONE) and not chat.forced:
        raise ApiError(
            400, f"tool_choice: expected a tool of the request, found {chat.tool_choice!r}", param="tool_choice"
        )
    reasons = kind.reasons and opens_reasoning(prompt_end)
    if chat.forced:
        return await model.grammars.allowed_tokens(_calls(model, chat, kind, chat.forced, reasons))
    content = None if chat.grammar is None else await model.grammars.allowed_tokens(chat.grammar)
    if content is not None and chat.functions:
        content = _either(
            content, await model.grammars.allowed_tokens(_calls(model, chat, kind, chat.functions, False))
        )
    if not kind.reasons or (chat.thinking_budget is None and not (content and reasons)):
        return content
    begin, end = _token(model.llm.tokenizer, THINK), _token(model.llm.tokenizer, THINK_END)
    words, budget = -(-model.llm.config.vocab_size // 32), chat.thinking_budget
    return lambda: _AroundReasoning(begin, end, reasons, budget, words, None if content is None else content())


def _calls(
    model: ServedModel, chat: Chat, kind: ChatFormat, functions: Sequence[Mapping[str, Any]], in_reasoning: bool
) -> str:
    """The grammar of calls of ``functions``."""
    added = {} if model.llm.tokenizer is None else model.llm.tokenizer.added_tokens
    special = {text for text, is_special in added.items() if is_special}
    found = [
        Function(each["name"], {**(each.get("parameters") or {}), "x-guidance": JSON_OPTIONS}) for each in functions
    ]
    return lark_grammar(CallGrammar(kind, special, in_reasoning).lark(found, chat.most_calls != 1))


def _either(*makers: Callable[[], AllowedTokens]) -> Callable[[], AllowedTokens]:
    return lambda: _Either([make() for make in makers])


class _Either:
    """``AllowedTokens`` of answers that follow one of several sources."""

    def __init__(self, sources: Sequence[AllowedTokens]) -> None:
        self._masks: Sequence[tuple[AllowedTokens, np.ndarray]] = []
        self._sources = sources

    def mask(self) -> np.ndarray:
        self._masks = [(source, source.mask()) for source in self._sources]
        return np.bitwise_or.reduce([mask for _, mask in self._masks])

    def prepare(self) -> None:
        """As ``AllowedTokens`` says."""
        for source in self._sources:
            prepare_mask(source)

    def accept(self, token: int) -> None:
        self._sources = [source for source, mask in self._masks if int(mask[token // 32]) >> (token % 32) & 1]
        for source in self._sources:
            source.accept(token)


def _token(tokenizer: Tokenizer | None, text: str) -> int:
    ids = [] if tokenizer is None else tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise RequestError(
            f"thinking_budget: expected a model with {text} as one token, found {len(ids)}: leave it out, and turn off "
            "reasoning for answers that follow a grammar"
        )
    return ids[0]


class _AroundReasoning:
    """``AllowedTokens``: all while the model reasons, then those of ``content``.

    After ``budget`` tokens of reasoning, it has to end; None is no limit.
    """

    def __init__(
        self, begin: int, end: int, reasons: bool, budget: int | None, words: int, content: AllowedTokens | None
    ) -> None:
        self._begin, self._end, self._reasons, self._budget = begin, end, reasons, budget
        self._all = np.full(words, 0xFFFFFFFF, np.uint32)
        self._only_end = np.zeros(words, np.uint32)
        self._only_end[end // 32] = 1 << (end % 32)
        self._content, self._tokens = content, 0

    def mask(self) -> np.ndarray:
        if self._reasons:
            return self._only_end if self._budget is not None and self._tokens >= self._budget else self._all
        return self._all if self._content is None else self._content.mask()

    def prepare(self) -> None:
        """As ``AllowedTokens`` says."""
        if not self._reasons and self._content is not None:
            prepare_mask(self._content)

    def fork(self) -> _AroundReasoning:
        """As ``AllowedTokens`` says."""
        found = copy(self)
        if self._content is not None:
            found._content = forked(self._content)
            assert found._content is not None, "a grammar's tokens can be copied"
        return found

    def accept(self, token: int) -> None:
        if self._reasons:
            self._tokens += 1
            self._reasons = token != self._end
        elif self._content is not None:
            self._content.accept(token)
        else:
            self._reasons = token == self._begin
