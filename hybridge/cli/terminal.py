"""Output of a command: results to standard output, progress and remarks to standard error."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from hybridge.cli.flag_names import in_flags
from hybridge.cli.progress import progress_on
from hybridge.cli.text import printable, printable_json

if TYPE_CHECKING:
    from hybridge.artifact.progress import Progress

# Width of tables without a terminal.
PLAIN_WIDTH = 120


class Report(Protocol):
    """The result of a command."""

    @property
    def notes(self) -> Iterable[str]: ...

    def render(self) -> Any: ...

    def to_json(self) -> Any: ...


class _Printable:
    """A table or another renderable of rich, whose texts may come from untrusted files."""

    def __init__(self, renderable: Any) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for segment in console.render(self._renderable, options):
            yield Segment(printable(segment.text), segment.style, segment.control)


class Terminal:
    """Standard output of one command. With ``as_json`` only ``document`` reaches it, else only the other methods.

    Inside the ``with`` block, whatever a library prints goes to standard error.
    """

    progress: Progress

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Terminal:
        self._out: TextIO = sys.stdout
        self._stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        self.progress = progress_on(sys.stderr, self.quiet)
        self._stack.callback(self.progress.finish)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if error is None:
            self._out.flush()

    def show(self, *renderables: Any) -> None:
        """Print texts, tables or other rich renderables for a person."""
        if self.as_json:
            return
        if all(isinstance(renderable, str) for renderable in renderables):
            # rich takes long to import, and writes the same.
            self._out.writelines(f"{printable(text)}\n" for text in renderables)
            return
        from rich.console import Console

        # Also into a pipe, as wide as the terminal: "hybridge inspect OUT | less".
        width = shutil.get_terminal_size((PLAIN_WIDTH, 0)).columns
        # Names and shapes hold brackets and colons: neither is markup.
        console = Console(file=self._out, width=width, highlight=False, markup=False, emoji=False)
        # Written here because rich ends the program when its output pipe is closed.
        with console.capture() as captured:
            for renderable in renderables:
                if isinstance(renderable, str):
                    console.print(printable(renderable), soft_wrap=True)
                else:
                    console.print(_Printable(renderable))
        self._out.write(captured.get())

    def write(self, text: str) -> None:
        """Write ``text`` at once, for streaming: unchanged, except for what a terminal would execute as commands."""
        if not self.as_json:
            self._out.write(printable(text) if self._out.isatty() else text)
            self._out.flush()

    def remark(self, text: str) -> None:
        """A line on standard error, unless the user wants quiet."""
        if not self.quiet:
            print(printable(text), file=sys.stderr)

    def notes(self, notes: Iterable[str]) -> None:
        """Notes of the library, as remarks."""
        for note in () if self.quiet else notes:
            self.remark(f"note: {in_flags(note, {})}")

    def report(self, report: Report) -> None:
        """Print the result of a command: a table and notes, or one JSON document."""
        self.progress.finish()
        self.show(report.render())
        self.notes(report.notes)
        self.document(report.to_json())

    def document(self, data: Any) -> None:
        """The one JSON document of a command called with --json."""
        if self.as_json:
            self._out.write(json_text(data) + "\n")


def json_text(data: Any) -> str:
    """``data`` as strict JSON: numbers that are not finite become the strings "nan", "inf" and "-inf"."""
    return printable_json(json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
