"""The parser of one answer."""

from __future__ import annotations

from hybridge.runtime.chat_output.events import Event
from hybridge.runtime.chat_output.format import ChatFormat
from hybridge.runtime.chat_output.harmony_answer import harmony_answer
from hybridge.runtime.chat_output.schemas import Schemas
from hybridge.runtime.chat_output.tagged_answer import THINK, tagged_answer
from hybridge.runtime.chat_output.text_stream import TextStream
from hybridge.runtime.chat_output.writer import AnswerWriter


class ChatOutputParser:
    """Text of an answer in, events out; their content does not depend on how the text is split into pieces.

    No text is lost: text that looks like a tool call but is not one becomes content.
    """

    def __init__(self, chat: ChatFormat, schemas: Schemas, prompt: str = "") -> None:
        """schemas: of the arguments of each tool, by name. prompt: the rendered conversation, or its end."""
        self._stream, self._answer = TextStream(), AnswerWriter()
        in_reasoning = chat.reasons and opens_reasoning(prompt)
        self._parsing = (
            harmony_answer(self._stream, self._answer)
            if chat.harmony
            else tagged_answer(self._stream, self._answer, chat, schemas, in_reasoning)
        )
        self._resume()

    @property
    def in_reasoning(self) -> bool:
        """Whether the text at the current position is reasoning."""
        return self._answer.in_reasoning

    def push(self, text: str) -> list[Event]:
        """The events that ``text`` completes."""
        self._stream.push(text)
        return self._resume()

    def finish(self) -> list[Event]:
        """The remaining events, when the answer has ended."""
        self._stream.ended = True
        return self._resume()

    def _resume(self) -> list[Event]:
        next(self._parsing, None)
        return self._answer.take()


def opens_reasoning(prompt: str) -> bool:
    """Whether the prompt ends with the tag that opens reasoning, so that the answer begins in it."""
    return prompt.rstrip().endswith(THINK)
