"""Parses a model's answer into reasoning, content and tool calls, while the text arrives."""

from hybridge.runtime.chat_output.events import (
    Content,
    Event,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from hybridge.runtime.chat_output.format import ChatFormat, chat_format
from hybridge.runtime.chat_output.parser import ChatOutputParser

__all__ = [
    "ChatFormat",
    "ChatOutputParser",
    "Content",
    "Event",
    "Reasoning",
    "ToolCallArguments",
    "ToolCallEnd",
    "ToolCallStart",
    "chat_format",
]
