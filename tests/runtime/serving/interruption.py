"""Raises an exception at any line of some functions, or of what they call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from types import CodeType, FrameType
from typing import Any


class Lines:
    """A trace function that counts the lines of the runtime that run in a call of ``codes``.

    at: raise ``kind`` at this one, the first is 1; 0: raise nothing. count: how many there have been.
    """

    def __init__(self, codes: Container[CodeType], kind: type[BaseException] = KeyboardInterrupt, at: int = 0) -> None:
        self._codes, self._kind, self._at = codes, kind, at
        self._depth = self.count = 0
        self.where = ""

    def during(self, work: Callable[[], object]) -> None:
        """Count during ``work``."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            work()
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        enters = code in self._codes
        if not (enters or self._depth) or "/runtime/" not in code.co_filename or "/tests/" in code.co_filename:
            return None
        self._depth += enters
        return self._in_codes if enters else self._line

    def _in_codes(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "return":
            self._depth -= 1
        self._line(frame, event, argument)
        return self._in_codes

    def _line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "line":
            self.count += 1
            if self.count == self._at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                raise self._kind
        return self._line
