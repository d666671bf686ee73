"""Events of one answer, collected until they are taken."""

from __future__ import annotations

from hybridge.runtime.chat_output.call_writer import CallWriter
from hybridge.runtime.chat_output.events import Content, Event, Reasoning
from hybridge.runtime.chat_output.trimmed_text import TrimmedText


class AnswerWriter:
    """``content`` and ``reasoning`` take text, ``calls`` tool calls. in_reasoning: the text is reasoning."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.content = TrimmedText(lambda text: self._events.append(Content(text)))
        self.reasoning = TrimmedText(lambda text: self._events.append(Reasoning(text)))
        self.calls = CallWriter(self._events.append)
        self.in_reasoning = False

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._events[:] = list(self._events), []
        return events
