"""How much work a call is, whatever the machine does at the time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def bytecodes(work: Callable[..., object], *arguments: object) -> int:
    """The instructions of Python that ``work`` of ``arguments`` takes; what C code does in one of them is not seen.

    Without garbage collection in between: others, such as hypothesis, ask to be called when that happens.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        work(*arguments)
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
