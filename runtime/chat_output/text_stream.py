"""Text that arrives in pieces, for parsers that can wait for more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import TypeVar

from hybridge.runtime.text.stop_strings import possible_start

_Result = TypeVar("_Result")
# A parser: a generator that yields where it needs more text and returns its result.
Parsing = Generator[None, None, _Result]
Emit = Callable[[str], None]


class TextStream:
    """Received text that has not been read yet.

    The result of a parser depends only on the text, not on how it is split into pieces.
    """

    def __init__(self) -> None:
        self._text, self._at = "", 0
        self._recorded: list[str] | None = None
        self.ended = False

    @property
    def available(self) -> str:
        """The text that can be read without waiting."""
        return self._text[self._at :]

    def push(self, text: str) -> None:
        """Add text that has arrived."""
        self._text, self._at = self._text[self._at :] + text, 0

    def take(self, length: int) -> str:
        """Read ``length`` of the available characters."""
        taken = self._text[self._at : self._at + length]
        self._at += length
        if self._recorded is not None:
            self._recorded.append(taken)
        return taken

    def record(self) -> None:
        """Begin to record the text that is read, for ``recorded``."""
        self._recorded = []

    def recorded(self) -> str:
        """The text read since ``record``; ends the recording."""
        text, self._recorded = "".join(self._recorded or ()), None
        return text

    def peek(self) -> Parsing[str]:
        """The next character, which stays unread; empty at the end of the text."""
        while self._at >= len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def skip_space(self) -> Parsing[None]:
        """Read white space."""
        while (char := (yield from self.peek())) and char.isspace():
            self.take(1)

    def literal(self, text: str) -> Parsing[bool]:
        """Read ``text`` if it comes next; else read nothing. Returns whether it did."""
        while not self.ended and len(self.available) < len(text) and text.startswith(self.available):
            yield
        found = self.available.startswith(text)
        if found:
            self.take(len(text))
        return found

    def until(self, markers: Collection[str], emit: Emit) -> Parsing[str]:
        """Read through the first of ``markers``; emit the text before it as soon as it cannot belong to a marker.

        Returns the marker, or "" when the text ended without one. No marker begins with another.
        """
        while True:
            rest = self.available
            found = min(((at, marker) for marker in markers if (at := rest.find(marker)) >= 0), default=None)
            if found is not None:
                emit(self.take(found[0]))
                return self.take(len(found[1]))
            emit(self.take(len(rest) - (0 if self.ended else possible_start(rest, markers))))
            if self.ended:
                return ""
            yield
