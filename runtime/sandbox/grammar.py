"""Grammars of requests, compiled by llguidance: in the child process first, because some take hours or crash it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybridge.artifact.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# llguidance's own limits: 1 to 2 kB for each state of its lexer, symbols of a grammar, steps of 1/50 us at the start.
_LEXER_STATES, _SYMBOLS, _FUEL = 50_000, 200_000, 1_000_000
# Stacks in bytes of the child's compiler, and of the one in this process, which must not crash: llguidance takes about
# 3.5 kB for each rule within another one. Masks need no deep stack.
_CHILD_STACK, _STACK = 4 << 20, 16 << 20


def vocabulary(text: str, vocab_size: int, eos: Sequence[int]) -> LLTokenizer:
    """The tokens of a tokenizer.json."""
    from llguidance import LLTokenizer

    return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos))


def compiled(tokens: LLTokenizer, grammar: str, stack: int = _STACK) -> LLMatcher:
    """``grammar`` for answers of ``tokens``; RequestError when it is wrong, or too large. stack: bytes."""
    found: list[LLMatcher | Exception] = []

    def work() -> None:
        try:
            found.append(_compiled(tokens, grammar))
        except Exception as error:
            found.append(error)

    before = threading.stack_size(stack)
    try:
        thread = threading.Thread(target=work, name="hybridge-grammar-compiler")
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _compiled(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        initial_lexer_fuel=_FUEL,
        max_lexer_states=_LEXER_STATES,
        max_grammar_size=_SYMBOLS,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        # Errors in empty rules appear only with the first mask.
        first = matcher.deep_copy()
        first.compute_bitmask()
        matcher = first if first.is_error() else matcher
    if matcher.is_error():
        raise grammar_error(matcher.get_error())
    return matcher


def grammar_error(reason: str) -> RequestError:
    """The refusal of a grammar, with llguidance's ``reason``."""
    shown = " ".join(reason.split())[:300]
    return RequestError(f"response_format: expected a usable grammar, found {shown}: simplify it")


_vocabulary: Any = None


def load_vocabulary_job(text: str, vocab_size: int, eos: tuple[int, ...]) -> bytes:
    """The setup of the child that checks grammars."""
    global _vocabulary
    _vocabulary = vocabulary(text, vocab_size, eos)
    return b""


def check_grammar_job(grammar: str) -> bytes:
    """Compile ``grammar``; RequestError as of ``compiled``."""
    compiled(_vocabulary, grammar, _CHILD_STACK)
    return b""
