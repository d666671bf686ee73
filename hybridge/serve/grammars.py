"""Grammars that answers have to follow, compiled by llguidance into bit masks of allowed tokens."""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridge.artifact.errors import RequestError
from hybridge.artifact.limits import GRAMMAR_BYTES, GRAMMAR_SECONDS
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.sampling import AllowedTokens

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Compiled grammars of a model.
_COMPILED = 64
# Masks of different answers are computed at the same time.
_MASK_THREADS = max(1, min(4, os.cpu_count() or 1))
# llguidance's own limits: 1 to 2 kB for each state of its lexer, symbols of a grammar, steps of 1/50 us at the start.
_LEXER_STATES, _SYMBOLS, _FUEL = 50_000, 200_000, 1_000_000
# Between the parts of a JSON value: a space, or a line break with an indentation. A model may not stop writing spaces.
JSON_OPTIONS: Any = {"whitespace_pattern": r"( |\n {0,8})?"}


def json_grammar(schema: Mapping[str, Any]) -> str:
    """JSON values of a schema."""
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), JSON_OPTIONS)
    except (ValueError, RecursionError) as error:
        raise _refused(str(error)) from error


def regex_grammar(regex: str) -> str:
    """Texts that match ``regex`` as a whole."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(regex)


def choice_grammar(texts: Sequence[str]) -> str:
    """One of ``texts``."""
    return lark_grammar("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))


def lark_grammar(text: str) -> str:
    """Texts of a Lark grammar, in llguidance's dialect."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(text)


class Grammars:
    """The compiled grammars of one model; the latest are stored."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="hybridge-grammar")
        self._masks = ThreadPoolExecutor(_MASK_THREADS, thread_name_prefix="hybridge-mask")

    def close(self) -> None:
        """End the threads."""
        self._compiler.shutdown(cancel_futures=True)
        self._masks.shutdown(cancel_futures=True)

    async def allowed_tokens(self, grammar: str) -> Callable[[], AllowedTokens]:
        """What makes the masks of each answer; RequestError when the grammar is wrong, or too large or slow."""
        found = self._compiled.get(grammar)
        if found is None:
            if len(grammar.encode("utf-8", "replace")) > GRAMMAR_BYTES:
                raise _refused(f"more than {GRAMMAR_BYTES} bytes")
            compiling = asyncio.wrap_future(self._compiler.submit(self._compile, grammar))
            try:
                found = await asyncio.wait_for(compiling, GRAMMAR_SECONDS)
            except asyncio.TimeoutError:
                raise _refused(f"more than {GRAMMAR_SECONDS:g} s of compiling") from None
            self._compiled[grammar] = found
            if len(self._compiled) > _COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        words, stops = -(-self._llm.config.vocab_size // 32), frozenset(self._llm.eos_token_ids)
        return lambda: _GrammarTokens(found.deep_copy(), words, stops, self._masks)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        llm = self._llm
        text = None if llm.tokenizer is None else llm.tokenizer.bounded_json
        eos = [token for token in llm.eos_token_ids if token < llm.config.vocab_size]
        if text is None or not eos:
            raise RequestError(
                "response_format: expected a model with a tokenizer of a known form and an EOS token, found none: "
                "leave it out"
            )
        return LLTokenizer(text, n_vocab=llm.config.vocab_size, eos_token=eos)

    def _compile(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            initial_lexer_fuel=_FUEL,
            max_lexer_states=_LEXER_STATES,
            max_grammar_size=_SYMBOLS,
            verbose_errors=False,
        )
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            # Errors of rules that contain nothing appear with the first mask.
            _mask(matcher.deep_copy(), -(-self._llm.config.vocab_size // 32))
        if matcher.is_error():
            raise _refused(matcher.get_error())
        return matcher


class _GrammarTokens:
    """``AllowedTokens`` of one answer: the next mask is computed from the moment that a token is known."""

    def __init__(self, matcher: LLMatcher, words: int, stops: frozenset[int], threads: ThreadPoolExecutor) -> None:
        """``words``: of a mask. ``stops``: tokens that end the answer."""
        self._matcher, self._words, self._stops, self._threads = matcher, words, stops, threads
        self._next = self._computed()

    def mask(self) -> np.ndarray:
        return self._next.result()

    def accept(self, token: int) -> None:
        if token in self._stops and (self._matcher.is_accepting() or self._matcher.is_stopped()):
            return
        if not self._matcher.consume_token(token):
            raise _refused(self._matcher.get_error())
        self._next = self._computed()

    def _computed(self) -> Future[np.ndarray]:
        return self._threads.submit(_mask, self._matcher, self._words)


def _mask(matcher: LLMatcher, words: int) -> np.ndarray:
    """int32 [words]; RequestError when the grammar needs more work than a step may have."""
    from llguidance.numpy import fill_next_token_bitmask

    mask = np.zeros((1, words), np.int32)
    fill_next_token_bitmask(matcher, mask, 0)
    if matcher.is_error():
        raise _refused(matcher.get_error())
    return mask[0]


def _refused(reason: str) -> RequestError:
    shown = " ".join(reason.split())[:300]
    return RequestError(f"response_format: expected a grammar that can be followed, found {shown}: simplify it")
