"""Grammars that answers have to follow, compiled by llguidance into bit masks of allowed tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hybridge.artifact.errors import RequestError
from hybridge.artifact.limits import GRAMMAR_BYTES, GRAMMAR_MEMORY, GRAMMAR_SECONDS, TOKENIZER_BYTES
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.sampling import AllowedTokens
from hybridge.runtime.sandbox.grammar import compiled, grammar_error, vocabulary
from hybridge.runtime.sandbox.process import LimitedProcess, LimitError, ProcessLimits
from hybridge.serve.grammar_tokens import MOST_LEXERS, GrammarCopies, MaskBatch

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Compiled grammars that a model stores.
_COMPILED, _COMPILED_CHARACTERS = 64, 4 << 20
# Seconds in which further matchers of a grammar are compiled.
_COPYING = 0.05
# Seconds until a request no longer waits for the child and for this process to compile its grammar.
_WAIT = 4 * GRAMMAR_SECONDS
# Between the parts of a JSON value: a space, or a line break with an indentation. A model may not stop writing spaces.
JSON_OPTIONS: Any = {"whitespace_pattern": r"( |\n {0,8})?"}


def json_grammar(schema: Mapping[str, Any]) -> str:
    """JSON values of a schema."""
    from llguidance import LLMatcher

    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), JSON_OPTIONS)
    except (ValueError, RecursionError) as error:
        raise grammar_error(str(error)) from error


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


def grammar_copies(tokens: LLTokenizer, grammar: str) -> GrammarCopies:
    """``grammar`` for answers of ``tokens``, whose masks several threads can compute; RequestError as of ``compiled``.

    A grammar that takes long is compiled less often.
    """
    begin = time.perf_counter()
    matchers = [compiled(tokens, grammar)]
    while len(matchers) < MOST_LEXERS and time.perf_counter() - begin < _COPYING:
        matchers.append(compiled(tokens, grammar))
    return GrammarCopies(matchers)


class Grammars:
    """The compiled grammars of one model; the latest are stored."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._compiled: OrderedDict[str, GrammarCopies] = OrderedDict()
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="hybridge-grammar")
        self._child: LimitedProcess | None = None
        self._turn = asyncio.Lock()
        self._compiling: asyncio.Future[GrammarCopies] | None = None
        self._masks = MaskBatch(llm.config.vocab_size)

    def close(self) -> None:
        """End the threads that compile and compute masks."""
        self._compiler.shutdown(cancel_futures=True)
        if self._child is not None:
            self._child.close()
        self._masks.close()

    async def allowed_tokens(self, grammar: str) -> Callable[[], AllowedTokens]:
        """A factory of each answer's token masks; RequestError when the grammar is wrong, or too large or slow."""
        found = self._compiled.get(grammar)
        if found is None:
            if len(grammar.encode("utf-8", "replace")) > GRAMMAR_BYTES:
                raise grammar_error(f"more than {GRAMMAR_BYTES} bytes")
            found = await self._in_turn(grammar)
            self._compiled[grammar] = found
            while len(self._compiled) > _COMPILED or sum(map(len, self._compiled)) > _COMPILED_CHARACTERS:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(grammar)
        stops = frozenset(self._llm.eos_token_ids)
        return lambda: found.tokens(stops, self._masks)

    async def _in_turn(self, grammar: str) -> GrammarCopies:
        """Compile after all earlier grammars; the time limit starts only then."""
        async with self._turn:
            if (found := self._compiled.get(grammar)) is not None:
                return found  # an earlier request compiled it
            if self._compiling is not None:
                await asyncio.wait([self._compiling])
            self._compiling = asyncio.wrap_future(self._compiler.submit(self._compile, grammar))
            try:
                return await asyncio.wait_for(asyncio.shield(self._compiling), _WAIT)
            except asyncio.TimeoutError:
                raise grammar_error(f"more than {_WAIT:g} s of compiling") from None

    @cached_property
    def _vocabulary(self) -> tuple[str, int, tuple[int, ...]]:
        """tokenizer.json, the size of the vocabulary and its tokens that end an answer."""
        llm = self._llm
        text = None if llm.tokenizer is None else llm.tokenizer.bounded_json
        eos = tuple(token for token in llm.eos_token_ids if token < llm.config.vocab_size)
        if text is None or not eos:
            raise RequestError(
                "response_format: expected a model with a tokenizer of a known form and an EOS token, found none: "
                "leave it out"
            )
        return text, llm.config.vocab_size, eos

    @cached_property
    def _tokens(self) -> LLTokenizer:
        return vocabulary(*self._vocabulary)

    def _compile(self, grammar: str) -> GrammarCopies:
        """Compile in the child first, which ends at its limits, and then here."""
        if self._child is None:
            limits = ProcessLimits(GRAMMAR_SECONDS, GRAMMAR_MEMORY, 2 * TOKENIZER_BYTES)
            self._child = LimitedProcess(limits, ("load_vocabulary", *self._vocabulary))
        try:
            self._child.call("check_grammar", grammar)
        except LimitError as error:
            raise grammar_error(f"one that needs {error}") from None
        return grammar_copies(self._tokens, grammar)
