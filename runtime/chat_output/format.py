"""The format of a model's answers, found in its chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from hybridge.runtime.chat_output.call_writer import CallWriter
from hybridge.runtime.chat_output.json_calls import json_list_calls, json_object_call
from hybridge.runtime.chat_output.python_calls import python_list_calls
from hybridge.runtime.chat_output.schemas import Schemas
from hybridge.runtime.chat_output.text_stream import Parsing, TextStream
from hybridge.runtime.chat_output.xml_calls import xml_call


@dataclass(frozen=True)
class ToolFormat:
    """begin, end: the tags around calls; end is empty where calls end the answer. body: parses the text between."""

    name: str
    begin: str
    end: str
    body: Callable[[TextStream, CallWriter, Schemas], Parsing[bool]]


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", json_object_call)
QWEN3_XML = ToolFormat("qwen3_xml", "<tool_call>", "</tool_call>", xml_call)
NEMOTRON = ToolFormat("nemotron", "<TOOLCALL>", "</TOOLCALL>", json_list_calls)
GRANITE = ToolFormat("granite", "<|tool_call|>", "", json_list_calls)
LFM2 = ToolFormat("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", python_list_calls)


@dataclass(frozen=True)
class ChatFormat:
    """tools: how calls are written, None without tools. reasons: answers may contain reasoning.

    harmony: answers consist of messages with channels; the other fields are then unused.
    """

    tools: ToolFormat | None = None
    reasons: bool = False
    harmony: bool = False


def chat_format(template: str, tokens: Collection[str] = ()) -> ChatFormat:
    """The answer format of a chat template. tokens: the tokenizer's added tokens.

    The tags are those that the template writes into the prompt, as an example or for earlier calls.
    """
    if "<|channel|>" in template and "<|message|>" in template:
        return ChatFormat(harmony=True)
    return ChatFormat(_tool_format(template, tokens), "<think>" in template)


def _tool_format(template: str, tokens: Collection[str]) -> ToolFormat | None:
    if "tools" not in template:
        # The template would not show the tools to the model.
        return None
    if "<function=" in template:
        return QWEN3_XML
    named = [each for each in (NEMOTRON, LFM2, GRANITE, HERMES) if each.begin in template]
    if named:
        return named[0]
    # LFM2's templates leave the format of calls to the model.
    return LFM2 if LFM2.begin in tokens else None
