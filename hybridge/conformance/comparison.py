"""Two answers to one prompt: equal, different after a tie, or different."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from hybridge.conformance.client import Answer

EQUAL, TIE, DIFFERENT, FAILED = "equal", "tie", "different", "failed"


@dataclass(frozen=True)
class Finding:
    """The verdict on one request. position: the first token (character, if there are no tokens) that differs.

    gap: the log-probability gap of the two most likely tokens there, in the expected answer.
    """

    scenario: str
    verdict: str
    prompt: str
    expected: str = ""
    found: str = ""
    position: int | None = None
    gap: float | None = None
    cached_tokens: int | None = None


def compared(scenario: str, prompt: str, expected: Answer, found: Answer, tie: float) -> Finding:
    """The finding about ``found``, where ``expected`` is the answer to the same prompt alone."""
    if expected.text == found.text and expected.tokens == found.tokens:
        return Finding(scenario, EQUAL, prompt, cached_tokens=found.cached_tokens)
    texts = (expected.tokens, found.tokens) if expected.tokens and found.tokens else (expected.text, found.text)
    position = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    gap = expected.gaps[position] if position < len(expected.gaps) else None
    verdict = TIE if gap is not None and gap <= tie else DIFFERENT
    return Finding(scenario, verdict, prompt, expected.text, found.text, position, gap, found.cached_tokens)
