"""Answers in OpenAI's harmony format: messages with a channel and, for tool calls, a recipient.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...

The channel "analysis" is reasoning; a message to functions.NAME is a call; everything else is content
(https://cookbook.openai.com/articles/openai-harmony).
"""

from __future__ import annotations

import re

from hybridge.runtime.chat_output.text_stream import Parsing, TextStream
from hybridge.runtime.chat_output.trimmed_text import TrimmedText
from hybridge.runtime.chat_output.writer import AnswerWriter

MESSAGE, _START = "<|message|>", "<|start|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([a-z]+)")


def harmony_answer(stream: TextStream, answer: AnswerWriter) -> Parsing[None]:
    """Read a whole answer, which begins in the header of its first message; blank lines separate its messages."""
    begun: set[TrimmedText] = set()
    while True:
        parts: list[str] = []
        marker = yield from stream.until((MESSAGE,), parts.append)
        header = "".join(parts)
        if not marker:
            # Text without a message, except the role of one that has not begun.
            answer.content.push("" if header.startswith((_START, "<|channel|>")) else header)
            answer.content.flush()
            return
        yield from _message(stream, answer, header, begun)


def _message(stream: TextStream, answer: AnswerWriter, header: str, begun: set[TrimmedText]) -> Parsing[None]:
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    if recipient is not None:
        answer.calls.start(recipient[1])
        end = yield from stream.until(ENDS, answer.calls.arguments)
        # The end of a call ends the answer, so it is not in the text.
        answer.calls.end(bool(end) or stream.ended)
        return
    answer.in_reasoning = channel is not None and channel[1] == "analysis"
    text = answer.reasoning if answer.in_reasoning else answer.content
    if text in begun:
        text.push("\n\n")
    begun.add(text)
    yield from stream.until(ENDS, text.push)
    answer.in_reasoning = False
    text.flush()
