"""How much work a call is, whatever the machine does at the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Count = Callable[..., object]


def bytecodes(work: Callable[..., object], *arguments: object) -> int:
    """The instructions of Python that ``work`` of ``arguments`` takes; what C code does in one of them is not seen.

    Without garbage collection in between: others, such as hypothesis, ask to be called when that happens.
    """
    count = 0

    def instruction(*_: Any) -> None:
        nonlocal count
        count += 1

    collects = gc.isenabled()
    gc.disable()
    try:
        with _monitored(instruction) if sys.version_info >= (3, 12) else _traced(instruction):
            work(*arguments)
    finally:
        if collects:
            gc.enable()
    return count


@contextmanager
def _traced(instruction: Count) -> Iterator[None]:
    """Up to Python 3.11: calls ``instruction`` for each opcode."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            instruction()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _monitored(instruction: Count) -> Iterator[None]:
    """Since Python 3.12, where a trace function misses the opcodes of a function's first call."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    monitoring.use_tool_id(monitoring.PROFILER_ID, "bytecodes")
    monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION, instruction)
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION)
    try:
        yield
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.free_tool_id(monitoring.PROFILER_ID)
