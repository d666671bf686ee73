"""An answer as a list of blocks (reasoning, text, calls of tools), each with a beginning and an end."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from hybridge.runtime.chat_output import Content, Event, Reasoning, ToolCallArguments, ToolCallStart

REASONING, TEXT, CALL = "reasoning", "text", "call"
START, DELTA, STOP = "start", "delta", "stop"


@dataclass(eq=False)
class Block:
    """``text``: of a call, its arguments in JSON. ``name``: of the function of a call."""

    index: int
    kind: str
    name: str = ""
    text: str = ""
    key: str = field(default_factory=lambda: uuid.uuid4().hex[:24])


@dataclass(frozen=True)
class BlockStep:
    """``text``: what a delta adds."""

    kind: Literal["start", "delta", "stop"]
    block: Block
    text: str = ""


class Blocks:
    """Converts the events of one answer to steps of blocks."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None

    def push(self, events: Iterable[Event]) -> list[BlockStep]:
        """The steps of ``events``."""
        steps: list[BlockStep] = []
        for event in events:
            if isinstance(event, ToolCallStart):
                steps += self._begin(CALL, event.name)
            elif isinstance(event, ToolCallArguments):
                steps += self._add(event.text)
            elif isinstance(event, (Content, Reasoning)):
                kind = TEXT if isinstance(event, Content) else REASONING
                if self._open is None or self._open.kind != kind:
                    steps += self._begin(kind)
                steps += self._add(event.text)
        return steps

    def finish(self) -> list[BlockStep]:
        """The end of the last block."""
        block, self._open = self._open, None
        return [] if block is None else [BlockStep("stop", block)]

    def _begin(self, kind: str, name: str = "") -> list[BlockStep]:
        ended = self.finish()
        self._open = Block(len(self.all), kind, name)
        self.all.append(self._open)
        return [*ended, BlockStep("start", self._open)]

    def _add(self, text: str) -> list[BlockStep]:
        assert self._open is not None
        self._open.text += text
        return [BlockStep("delta", self._open, text)]
