"""Progress on standard error: a bar on a terminal, one line per stage elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from hybridge.artifact.progress import NoProgress, Progress

if TYPE_CHECKING:
    from rich import progress as bars


def progress_on(stream: TextIO, quiet: bool) -> Progress:
    """The progress display that suits ``stream``."""
    if quiet:
        return NoProgress()
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)


class LineProgress:
    """Names each stage on its own line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def start(self, stage: str, total: int | None = None, unit: str = "") -> None:
        """Print the stage."""
        print(f"{stage} ...", file=self._stream, flush=True)

    def advance(self, amount: int = 1) -> None:
        """Nothing is printed within a stage."""

    def finish(self) -> None:
        """Nothing is left open."""


class BarProgress:
    """One bar per stage; a finished stage shows its time, and all bars vanish at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._display: bars.Progress | None = None
        self._task: bars.TaskID | None = None

    def start(self, stage: str, total: int | None = None, unit: str = "") -> None:
        """Complete the previous stage and draw a bar for this one."""
        display = self._display or self._open()
        self._complete()
        self._task = display.add_task(stage, total=total, unit=unit)

    def advance(self, amount: int = 1) -> None:
        """Move the bar of the present stage."""
        if self._display is not None and self._task is not None:
            self._display.advance(self._task, amount)

    def finish(self) -> None:
        """Remove the bars; a later start draws new ones."""
        if self._display is not None:
            self._display.stop()
        self._display = self._task = None

    def _open(self) -> bars.Progress:
        from rich import progress as bars
        from rich.console import Console

        columns = (
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            amount_column(),
            bars.TimeElapsedColumn(),
        )
        display = bars.Progress(
            *columns, console=Console(file=self._stream), transient=True, redirect_stdout=False, redirect_stderr=True
        )
        display.start()
        self._display = display
        return display

    def _complete(self) -> None:
        if self._display is not None and self._task is not None:
            task = next(t for t in self._display.tasks if t.id == self._task)
            done = task.completed if task.total is None else task.total
            self._display.update(self._task, total=done or 1, completed=done or 1)


def amount_column() -> bars.ProgressColumn:
    """A column that counts bytes in binary units and anything else as done/total."""
    from rich import progress as bars
    from rich.text import Text

    from hybridge.cli.text import bytes_text

    class Amount(bars.ProgressColumn):
        def render(self, task: bars.Task) -> Text:
            if task.total is None:
                return Text("")
            if task.fields.get("unit") == "B":
                return Text(f"{bytes_text(int(task.completed))}/{bytes_text(int(task.total))}")
            return Text(f"{int(task.completed)}/{int(task.total)}")

    return Amount()
