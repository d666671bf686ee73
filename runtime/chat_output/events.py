"""The parts of an answer, in the order of its text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text that the model wrote before its answer."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """index: of the call within the answer, from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """The next part of a call's arguments. The parts of a complete call together are one JSON object."""

    index: int
    text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """complete: False where the answer ended, or became malformed, within the call."""

    index: int
    complete: bool


Event = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallEnd
