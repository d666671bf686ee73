"""One JSON line on standard error for each event. Prompts and answers are written only with ``log_prompts``."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from hybridge.artifact.errors import HybridgeError


class RequestLog:
    """Writes to ``stream``, by default standard error."""

    def __init__(self, writes_prompts: bool, stream: TextIO | None = None) -> None:
        self.writes_prompts = writes_prompts
        self._stream = stream

    def write(self, event: str, **fields: Any) -> None:
        """A line with the time (seconds since 1970), the event and its fields; those that are None are left out."""
        line = {"time": round(time.time(), 3), "event": event}
        line.update({name: value for name, value in fields.items() if value is not None})
        print(json.dumps(line), file=self._stream or sys.stderr, flush=True)

    def error(self, event: str, error: BaseException, **fields: Any) -> None:
        """``error`` in one sentence; with its traceback where it is a bug."""
        trace = None if isinstance(error, HybridgeError) else "".join(traceback.format_exception(error))
        self.write(event, error=f"{type(error).__name__}: {error}", traceback=trace, **fields)


@contextmanager
def with_messages_of(name: str, log: RequestLog) -> Iterator[None]:
    """Warnings and errors of the logger ``name`` are lines of ``log``."""
    logger, handler = logging.getLogger(name), _Handler(log)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, log: RequestLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = None if record.exc_info is None else record.exc_info[1]
        if error is None:
            self._log.write("connection", message=record.getMessage())
        else:
            self._log.error("connection", error, message=record.getMessage())
