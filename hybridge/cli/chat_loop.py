"""The chat loop of hybridge run: one line per turn, until the user leaves."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from hybridge.artifact.errors import RequestError
from hybridge.cli.flag_names import in_flags
from hybridge.cli.generation_report import generation_summary
from hybridge.cli.terminal import Terminal

if TYPE_CHECKING:
    from hybridge.runtime.conversation import Conversation
    from hybridge.runtime.llm import LLM
    from hybridge.runtime.sampling import SamplingParams

PROMPT = "> "
HELP = (
    "/reset  start a new conversation\n"
    "/help   show this\n"
    "/exit   leave (Ctrl-D does too)\n"
    "Ctrl-C stops an answer. A line that begins with // is sent with one / less."
)


class StopRequest:
    """Ctrl-C: recorded while an answer is computed, else (and the second time) raised as KeyboardInterrupt."""

    def __init__(self) -> None:
        self.noted = False
        self._waits = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle Ctrl-C in this block."""
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """For a block that computes an answer and checks ``noted``."""
        self.noted, self._waits = False, True
        try:
            yield
        finally:
            self._waits = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._waits or self.noted:
            raise KeyboardInterrupt
        self.noted = True


def chat_loop(llm: LLM, conversation: Conversation, sampling: SamplingParams, terminal: Terminal) -> None:
    """Read lines from the terminal and stream the answers until /exit or Ctrl-D.

    A line that cannot be answered is explained, and the loop continues. Ctrl-C at the prompt drops the line; a second
    one while an answer is computed leaves the program.
    """
    mode = "chat template" if conversation.uses_template else "no chat template: the model continues what you type"
    terminal.remark(f"[{llm.engine.name}, {mode}; /help shows the commands, Ctrl-D leaves]")
    stop = StopRequest()
    with contextlib.suppress(ImportError):  # not on every system
        import readline  # noqa: F401 (makes input edit lines)
    with stop.installed():
        while (line := _line(terminal)) is not None:
            command = line.strip()
            if command == "/exit":
                return
            if command == "/reset":
                conversation.reset()
                terminal.remark("[new conversation]")
            elif command == "/help":
                terminal.remark(HELP)
            elif command.startswith("/") and not command.startswith("//"):
                terminal.remark(f"error: expected /reset, /help or /exit, found {command.split()[0]}")
            elif command:
                _answer(llm, conversation, line[1:] if line.startswith("//") else line, sampling, stop, terminal)


def _line(terminal: Terminal) -> str | None:
    """The next line; None when the user leaves."""
    while True:
        try:
            # input edits lines only on the interpreter's own standard output, which main redirects.
            with contextlib.redirect_stdout(sys.__stdout__):
                return input(PROMPT)
        except EOFError:
            terminal.write("\n")
            return None
        except KeyboardInterrupt:
            terminal.write("\n")
            terminal.remark("[Ctrl-D or /exit leaves]")


def _answer(
    llm: LLM, conversation: Conversation, line: str, sampling: SamplingParams, stop: StopRequest, terminal: Terminal
) -> None:
    generation = None
    pieces = conversation.ask(line, sampling)
    try:
        with stop.answering(), contextlib.closing(pieces):  # type: ignore[type-var]  # a generator
            for piece in pieces:
                terminal.write(piece.text)
                generation = piece.generation or generation
                if stop.noted:
                    break
    except RequestError as error:
        print(f"error: {in_flags(str(error), {})}: /reset starts a new conversation", file=sys.stderr)
        return
    terminal.write("\n")
    terminal.remark("[stopped]" if generation is None else generation_summary(generation, llm.engine.name))
