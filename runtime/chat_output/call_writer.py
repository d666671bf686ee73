"""Events of tool calls, numbered in the order of the answer."""

from __future__ import annotations

from collections.abc import Callable

from hybridge.runtime.chat_output.events import Event, ToolCallArguments, ToolCallEnd, ToolCallStart


class CallWriter:
    """Writes one call at a time. ``count``: the calls that have started."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.count = 0
        self._open, self._has_arguments = False, False

    @property
    def is_open(self) -> bool:
        """Whether a call has started and not ended."""
        return self._open

    def start(self, name: str) -> None:
        """Begin a call of the function ``name``."""
        self._emit(ToolCallStart(self.count, _valid(name)))
        self.count += 1
        self._open, self._has_arguments = True, False

    def arguments(self, text: str) -> None:
        """The next part of the JSON object of the arguments."""
        if text:
            self._emit(ToolCallArguments(self.count - 1, _valid(text)))
            self._has_arguments = True

    def end(self, complete: bool = True) -> None:
        """End the call, if one is open; a call without arguments has an empty object."""
        if not self._open:
            return
        if complete and not self._has_arguments:
            self.arguments("{}")
        self._emit(ToolCallEnd(self.count - 1, complete))
        self._open = False


def _valid(text: str) -> str:
    """``text`` with surrogate pairs joined and lone surrogates replaced: models write them as escapes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
