"""Answers with tags: reasoning between <think> and </think>, tool calls between the tags of their format."""

from __future__ import annotations

from hybridge.runtime.chat_output.format import ChatFormat, ToolFormat
from hybridge.runtime.chat_output.schemas import Schemas
from hybridge.runtime.chat_output.text_stream import Parsing, TextStream
from hybridge.runtime.chat_output.writer import AnswerWriter

THINK, THINK_END = "<think>", "</think>"


def tagged_answer(
    stream: TextStream, answer: AnswerWriter, chat: ChatFormat, schemas: Schemas, in_reasoning: bool
) -> Parsing[None]:
    """Read a whole answer. in_reasoning: the prompt has opened the reasoning already."""
    if in_reasoning:
        yield from _reasoning(stream, answer)
    tools = chat.tools
    markers = [*([THINK] if chat.reasons else []), *([tools.begin] if tools else [])]
    while marker := (yield from stream.until(markers, answer.content.push)):
        if tools is not None and marker == tools.begin:
            yield from _calls(stream, answer, tools, schemas)
        else:
            answer.content.end()
            yield from _reasoning(stream, answer)
    answer.content.flush()


def _reasoning(stream: TextStream, answer: AnswerWriter) -> Parsing[None]:
    answer.in_reasoning = True
    answer.reasoning.begin()
    closed = yield from stream.until((THINK_END,), answer.reasoning.push)
    answer.in_reasoning = False
    if closed:
        answer.reasoning.end()
        answer.content.begin()
    else:
        answer.reasoning.flush()


def _calls(stream: TextStream, answer: AnswerWriter, tools: ToolFormat, schemas: Schemas) -> Parsing[None]:
    """The calls after ``tools.begin``. Text between the tags that is not a call becomes content, with its tag."""
    before = answer.calls.count
    stream.record()
    complete = yield from tools.body(stream, answer.calls, schemas)
    if complete and tools.end:
        yield from stream.skip_space()
        # A complete call counts even without its closing tag.
        yield from stream.literal(tools.end)
    text = stream.recorded()
    if answer.calls.count == before:
        answer.content.push(tools.begin + text)
    else:
        answer.content.end()
        answer.content.begin()
