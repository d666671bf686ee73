"""The parts of a chat's answers: reasoning, content and tool calls, from the pieces of a stream."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridge.runtime.chat_output import (
    ChatFormat,
    ChatOutputParser,
    Content,
    Event,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
)
from hybridge.runtime.generation import Generation, Piece


@dataclass
class Call:
    """A call of a tool; ``arguments`` is JSON."""

    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")


@dataclass(frozen=True)
class AnswerFormat:
    """How the answers of one request are read. ``schemas``: of each tool's arguments, None without tools.

    prompt_end: its last characters, which may open the reasoning. most_calls: further calls are left out.
    """

    chat: ChatFormat
    schemas: Mapping[str, Any] | None
    prompt_end: str = ""
    most_calls: int | None = None

    def reader(self) -> PartsReader:
        """A parser for one answer."""
        return PartsReader(self)


class PartsReader:
    """Collects the parts of one answer. ``generation`` is set by its last piece."""

    def __init__(self, answer: AnswerFormat) -> None:
        chat = answer.chat if answer.schemas is not None else _without_tools(answer.chat)
        plain = not (chat.harmony or chat.reasons or chat.tools)
        self._parser = None if plain else ChatOutputParser(chat, answer.schemas or {}, answer.prompt_end)
        self._most_calls = answer.most_calls
        self.content = self.reasoning = ""
        self.calls: list[Call] = []
        self.reasoning_tokens = 0
        self.generation: Generation | None = None

    def read(self, pieces: Sequence[Piece]) -> list[Event]:
        """The events of ``pieces``; those of a last piece end the answer. Texts that follow each other are joined."""
        if self._parser is None:
            text = "".join([piece.text for piece in pieces])
            self.content += text
            self.generation = pieces[-1].generation
            return [Content(text)] if text else []
        return _joined([event for piece in pieces for event in self.push(piece)])

    def push(self, piece: Piece) -> list[Event]:
        """The events of one piece."""
        if self._parser is None:
            events: list[Event] = [Content(piece.text)] if piece.text else []
        else:
            if self._parser.in_reasoning:
                self.reasoning_tokens += len(piece.token_ids)
            events = self._parser.push(piece.text)
            if piece.generation is not None:
                events += self._parser.finish()
            if self._most_calls is not None:
                most = self._most_calls
                events = [event for event in events if isinstance(event, (Content, Reasoning)) or event.index < most]
        self.generation = piece.generation
        for event in events:
            self._add(event)
        return events

    @property
    def finish_reason(self) -> str:
        """The finish reason, as OpenAI names it."""
        assert self.generation is not None
        return "tool_calls" if self.calls and self.generation.finish_reason == "stop" else self.generation.finish_reason

    def _add(self, event: Event) -> None:
        if isinstance(event, Content):
            self.content += event.text
        elif isinstance(event, Reasoning):
            self.reasoning += event.text
        elif isinstance(event, ToolCallStart):
            self.calls.append(Call(event.name))
        elif isinstance(event, ToolCallArguments):
            self.calls[event.index].arguments += event.text


def _without_tools(chat: ChatFormat) -> ChatFormat:
    return ChatFormat(None, chat.reasons, chat.harmony)


def _joined(events: Sequence[Event]) -> list[Event]:
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, (Content, Reasoning)) and type(last) is type(event):
            joined[-1] = type(event)(last.text + event.text)
        elif isinstance(event, ToolCallArguments) and isinstance(last, ToolCallArguments) and last.index == event.index:
            joined[-1] = ToolCallArguments(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined


def by_choice(batch: Sequence[Piece]) -> Mapping[int, Sequence[Piece]]:
    """The pieces of each answer."""
    if len(batch) == 1:
        return {batch[0].choice: batch}
    found: dict[int, list[Piece]] = {}
    for piece in batch:
        found.setdefault(piece.choice, []).append(piece)
    return found
