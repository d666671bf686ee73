"""A conversation is not computed again: each turn of an agent computes its new tokens and little more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.running import Running

CHAT = "/v1/chat/completions"
TURNS, MOST_EXTRA = 20, 64
WORDS = ("sea", "has", "many", "fish", "and", "the", "ships", "that", "sail", "bring", "salt", "news", "from", "north")


def words(turn: int, count: int) -> str:
    """A text that no other turn has."""
    return " ".join(f"{WORDS[(turn * 7 + i * i) % len(WORDS)]} {turn * 31 + i}" for i in range(count))


class Trace:
    """``computed``: all token sequences that the server has read or written."""

    def __init__(self, tooled: Running) -> None:
        self._tooled, self.computed = tooled, [[0]]

    def ask(self, turn: int, messages: list[dict[str, Any]]) -> str:
        """The answer; in every fourth turn it has to be that of a server that knows nothing of the conversation."""
        fields = {"messages": messages, "max_tokens": 12, "chat_template_kwargs": {"thinks": True}}
        ids = self._tooled.post("/tokenize", messages=messages, chat_template_kwargs={"thinks": True})["tokens"]
        body = self._tooled.post(CHAT, **fields, cache_salt="agent")
        message = body["choices"][0]["message"]
        if turn % 4 == 3:
            cold = self._tooled.post(CHAT, **fields, cache_salt=f"turn {turn}, {len(self.computed)}")
            assert message == cold["choices"][0]["message"]
            assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        known = max(shared(ids, earlier) for earlier in self.computed)
        recomputed = body["usage"]["prompt_tokens"] - body["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert recomputed <= len(ids) - known + MOST_EXTRA, f"turn {turn}"
        self.computed.append(ids)
        return message["reasoning_content"]  # the demo model does not end its reasoning


def shared(first: list[int], second: list[int]) -> int:
    """Length of the common prefix."""
    equal = [one == other for one, other in zip(first, second, strict=False)]
    return equal.index(False) if False in equal else len(equal)


@pytest.mark.slow
def test_twenty_turns_of_an_agent(tooled: Running) -> None:
    trace, messages = Trace(tooled), [{"role": "system", "content": words(99, 20)}]
    for turn in range(TURNS):
        role = "tool" if turn % 3 == 2 else "user"
        messages.append({"role": role, "content": words(turn, 5 if role == "user" else 12)})
        answer = trace.ask(turn, messages)
        if turn % 5 == 4:  # regenerated, as by a user who wants another answer
            assert trace.ask(turn, messages) == answer
        if turn % 7 == 6:  # edited, after the answer to it had been read
            messages[-1] = {"role": role, "content": words(turn + 200, 5)}
            answer = trace.ask(turn, messages)
        # The client returns the answer without what came before its last words.
        messages.append({"role": "assistant", "content": answer.split()[-1] + " " + words(turn + 100, 4)})
