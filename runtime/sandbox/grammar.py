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
# Stack of the child's compiler, bytes. llguidance recurses, and other threads, with larger stacks, compile it again.
_STACK = 1 << 20


def vocabulary(text: str, vocab_size: int, eos: Sequence[int]) -> LLTokenizer:
    """The tokens of a tokenizer.json."""
    from llguidance import LLTokenizer

    return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos))


def compiled(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    """``grammar`` for answers of ``tokens``; RequestError when it is wrong, or too large."""
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
    errors: list[Exception] = []

    def check() -> None:
        try:
            compiled(_vocabulary, grammar)
        except Exception as error:
            errors.append(error)

    threading.stack_size(_STACK)
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return b""
