"""Which tokens the answer to a chat may have: those of a grammar, of a forced call, and of limited reasoning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from hybridge.artifact.errors import RequestError
from hybridge.runtime.chat_output import ChatFormat
from hybridge.runtime.chat_output.call_grammar import CallGrammar
from hybridge.runtime.chat_output.call_rules import Function
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
        return await _of_calls(model, _lark(_grammar(model, kind, reasons).calls, chat, chat.forced))
    content = None
    if chat.grammar is not None:
        content = await model.grammars.allowed_tokens(chat.grammar)
        if chat.functions:
            calls = _lark(_grammar(model, kind, False).calls, chat, chat.functions)
            content = _either(content, await _of_calls(model, calls))
    elif any(function.get("strict") for function in chat.functions):
        content = await _of_calls(model, _strict_calls(model, chat, kind, reasons))
        if chat.thinking_budget is None and not _has_reasoning_tokens(model):
            return content  # the grammar includes the reasoning
    reopens = chat.grammar is None
    if not kind.reasons or (chat.thinking_budget is None and not (content and (reasons or reopens))):
        return content
    begin, end = _token(model.llm.tokenizer, THINK), _token(model.llm.tokenizer, THINK_END)
    words, budget = -(-model.llm.config.vocab_size // 32), chat.thinking_budget
    stop = model.llm.eos_token_ids[0] if content and reopens else None
    return lambda: _AroundReasoning(begin, end, reasons, budget, words, None if content is None else content(), stop)


async def _of_calls(model: ServedModel, grammar: str) -> Callable[[], AllowedTokens]:
    try:
        return await model.grammars.allowed_tokens(grammar)
    except RequestError as error:
        raise ApiError(400, f"tools: {str(error).removeprefix('response_format: ')}", param="tools") from error


def _strict_calls(model: ServedModel, chat: Chat, kind: ChatFormat, in_reasoning: bool) -> str:
    """The grammar of any text in which calls are those of the chat's tools."""
    if _has_reasoning_tokens(model):
        kind, in_reasoning = replace(kind, reasons=False), False
    functions = chat.functions
    if kind.harmony:  # other calls are left to the model
        functions = [each for each in functions if each.get("strict")]
    return _lark(_grammar(model, kind, in_reasoning).calls_in_text, chat, functions)


def _has_reasoning_tokens(model: ServedModel) -> bool:
    """Whether the tags of reasoning are one token each."""
    tokenizer = model.llm.tokenizer
    return tokenizer is not None and all(
        len(tokenizer.encode(tag, add_special_tokens=False)) == 1 for tag in (THINK, THINK_END)
    )


def _grammar(model: ServedModel, kind: ChatFormat, in_reasoning: bool) -> CallGrammar:
    special = {} if model.llm.tokenizer is None else model.llm.tokenizer.special_token_ids
    return CallGrammar(kind, special, model.llm.eos_token_ids, in_reasoning)


def _lark(write: Callable[[Sequence[Function], bool], str], chat: Chat, functions: Sequence[Mapping[str, Any]]) -> str:
    """The grammar that ``write`` makes for ``functions``; RequestError where a schema is wrong."""
    forced = bool(chat.forced) or chat.grammar is not None
    found = [
        Function(
            each["name"],
            {**(each.get("parameters") or {}), "x-guidance": JSON_OPTIONS},
            forced or bool(each.get("strict")),
        )
        for each in functions
    ]
    return lark_grammar(write(found, chat.most_calls != 1))


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
        self._sources = [source for source, mask in self._masks if _has(mask, token)]
        for source in self._sources:
            source.accept(token)


def _has(mask: np.ndarray, token: int) -> int:
    return int(mask[token // 32]) >> (token % 32) & 1


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

    After ``budget`` tokens of reasoning, it has to end; None is no limit. In a content with ``stop``, a token that
    ends the answer, reasoning may begin again wherever that is allowed.
    """

    def __init__(
        self,
        begin: int,
        end: int,
        reasons: bool,
        budget: int | None,
        words: int,
        content: AllowedTokens | None,
        stop: int | None = None,
    ) -> None:
        self._begin, self._end, self._reasons, self._budget = begin, end, reasons, budget
        self._all = np.full(words, 0xFFFFFFFF, np.uint32)
        self._only_end = np.zeros(words, np.uint32)
        self._only_end[end // 32] = 1 << (end % 32)
        self._only_begin = np.zeros(words, np.uint32)
        self._only_begin[begin // 32] = 1 << (begin % 32)
        self._content, self._stop, self._tokens = content, stop, 0

    def mask(self) -> np.ndarray:
        if self._reasons:
            return self._only_end if self._budget is not None and self._tokens >= self._budget else self._all
        if self._content is None:
            return self._all
        mask = self._content.mask()
        return mask.view(np.uint32) | self._only_begin if self._may_begin(mask) else mask

    def _may_begin(self, mask: np.ndarray) -> bool:
        return self._stop is not None and bool(_has(mask, self._stop))

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
        elif self._content is None or (token == self._begin and self._may_begin(self._content.mask())):
            self._reasons = token == self._begin
        else:
            self._content.accept(token)
