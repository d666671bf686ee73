"""Text without the line breaks that separate it from the surrounding tags."""

from __future__ import annotations

import sys

from hybridge.runtime.chat_output.text_stream import Emit


class TrimmedText:
    """Emits text as it arrives, without the line breaks next to edges.

    ``begin`` and ``end`` mark edges at which up to ``limit`` line breaks (None: any number) are dropped.
    """

    def __init__(self, emit: Emit, limit: int | None = None) -> None:
        self._emit, self._limit = emit, limit
        self._leading = 0  # line breaks that may still be dropped
        self._pending = ""  # line breaks that are dropped if an edge comes next

    def begin(self) -> None:
        """The next line breaks are dropped."""
        self._pending = ""
        self._leading = sys.maxsize if self._limit is None else self._limit

    def push(self, text: str) -> None:
        """Add text."""
        while self._leading and text.startswith("\n"):
            text, self._leading = text[1:], self._leading - 1
        if not text:
            return
        self._leading = 0
        text = self._pending + text
        body = text.rstrip("\n")
        if self._limit is not None:
            body = text[: max(len(body), len(text) - self._limit)]
        self._pending = text[len(body) :]
        if body:
            self._emit(body)

    def end(self) -> None:
        """Drop the line breaks that came last."""
        self._pending = ""

    def flush(self) -> None:
        """The text ends here without an edge: its last line breaks belong to it."""
        pending, self._pending = self._pending, ""
        if pending:
            self._emit(pending)
