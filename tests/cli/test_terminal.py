"""Standard output holds results only; progress goes to standard error."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from hybridge.cli.main import READER_LEFT, run_command
from hybridge.cli.progress import BarProgress, LineProgress, progress_on
from hybridge.cli.terminal import Terminal, json_text
from hybridge.cli.text import bytes_text, count_text, seconds_text
from tests.cli.command import ROOT

NOISY_PROGRAM = """
import ctypes, os, sys
sys.path.insert(0, {root!r})
sys.argv = ["hybridge", "inspect", "x", "--json"]
import hybridge.api
class Fine:
    def to_json(self):
        print("python noise")
        os.write(1, b"descriptor noise\\n")
        ctypes.CDLL(None).puts(b"stdio noise")
        return {{"text": "\\u00e9", "error": float("nan")}}
hybridge.api.inspect = lambda path, check: Fine()
import hybridge.cli.inspection_tables as tables
tables.tables_of = lambda inspection: []
from hybridge.cli.main import main
main()
"""


def test_libraries_cannot_spoil_the_document(tmp_path: Path) -> None:
    program = NOISY_PROGRAM.format(root=str(ROOT))
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"text": "é", "error": "nan"}
    for noise in ("python", "descriptor", "stdio"):
        assert f"{noise} noise" in result.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("inspect", "{checkpoint}"), ("inspect", "{checkpoint}", "--json")])
def test_a_reader_that_leaves_ends_the_command_quietly(checkpoint: Path, arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hybridge", *(a.format(checkpoint=checkpoint) for a in arguments)]
    with os.fdopen(writer, "w") as out:
        result = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (READER_LEFT, "")


def test_a_reader_of_the_progress_that_leaves_ends_the_export(checkpoint: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hybridge", "export", str(checkpoint), str(tmp_path / "out")]
    with os.fdopen(writer, "w") as out:
        result = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out)
    assert result.returncode == READER_LEFT and not list(tmp_path.iterdir())


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_outputs_are_no_error(closed: str) -> None:
    command = ["sh", "-c", f"{sys.executable} -m hybridge --version {closed}"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_an_error_that_cannot_be_written_keeps_its_exit_code() -> None:
    command = ["sh", "-c", f"{sys.executable} -m hybridge inspect nowhere --json 2>/dev/full"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert ended.returncode == 2 and json.loads(ended.stdout)["exit_code"] == 2


def test_a_closed_input_is_empty() -> None:
    """It asks for a prompt, as with an empty one, as no terminal is there to chat on."""
    command = ["sh", "-c", f"{sys.executable} -m hybridge run nowhere <&-"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("error: expected one of --prompt")


def test_json_is_strict() -> None:
    data = {"a": [float("inf"), -float("inf"), 1.5], "b": (None, True), "c": {"d": float("nan")}}
    assert json.loads(json_text(data)) == {"a": ["inf", "-inf", 1.5], "b": [None, True], "c": {"d": "nan"}}


def test_show_and_document_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json, expected in ((False, "shown [as it is]\nstreamed"), (True, '{\n  "a": 1\n}\n')):
        with Terminal(as_json) as terminal:
            terminal.show("shown [as it is]")
            terminal.write("streamed")
            terminal.document({"a": 1})
        assert capsys.readouterr().out == expected


def test_long_sentences_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal() as terminal:
        terminal.show("word " * 60)
    assert capsys.readouterr().out.count("\n") == 1


HOSTILE = "a\x1b[2J\x07\x9b31m\r\u202eb\x7f"
CLEAN = "a\ufffd[2J\ufffd\ufffd31m\ufffd\ufffdb\ufffd"


def test_names_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Titles and cells of tables too, remarks and the document."""
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    with Terminal() as terminal:
        terminal.show(HOSTILE, table)
        terminal.remark(HOSTILE)
    shown = capsys.readouterr()
    assert shown.out.startswith(CLEAN) and shown.out.count("[2J") == 4 and shown.err == CLEAN + "\n"
    assert not set(shown.out) & {"\x1b", "\x07", "\x9b", "\r", "\u202e", "\x7f"}
    with Terminal(as_json=True) as terminal:
        terminal.document({"name": HOSTILE})
    document = capsys.readouterr().out
    assert json.loads(document) == {"name": HOSTILE} and document.replace("\n", "").isprintable()


def test_generated_text_is_cleaned_only_for_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Terminal() as terminal:
        terminal.write(HOSTILE + "\t\n")
    assert capsys.readouterr().out == HOSTILE + "\t\n"
    stream = FakeTerminal()
    monkeypatch.setattr("sys.stdout", stream)
    with Terminal() as terminal:
        terminal.write(HOSTILE + "\t\n")
    assert stream.getvalue() == CLEAN + "\t\n"


def test_errors_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["inspect", str(tmp_path / HOSTILE)]) == 2
    error = capsys.readouterr().err
    assert "[2J" in error and "\x1b" not in error and "\x9b" not in error


def test_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    progress = progress_on(stream, quiet=False)
    progress.start("scan weights", 10, "B")
    progress.advance(4)
    progress.start("trace")
    progress.finish()
    assert isinstance(progress, LineProgress)
    assert stream.getvalue() == "scan weights ...\ntrace ...\n"


def test_quiet_prints_nothing() -> None:
    stream = io.StringIO()
    progress = progress_on(stream, quiet=True)
    progress.start("scan weights")
    progress.finish()
    assert not stream.getvalue()


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = FakeTerminal()
    progress = progress_on(stream, quiet=False)
    assert isinstance(progress, BarProgress)
    progress.start("scan [weights]", 3 << 20, "B")
    progress.advance(1 << 20)
    progress.start("trace")
    progress.start("layers", 7)
    progress.advance(7)
    progress.finish()
    progress.finish()
    shown = stream.getvalue()
    assert "scan [weights]" in shown and "3.0 MiB" in shown and "trace" in shown and "7/7" in shown


def test_numbers_for_people() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1024, 7 << 20, 3 << 40, 5000 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "7.0 MiB", "3.0 TiB", "5000.0 TiB",
    ]  # fmt: skip
    assert [count_text(n) for n in (0, 9999, 10_000, 3_456_789, 1_700_000_000)] == [
        "0", "9999", "10.0 K", "3.5 M", "1.7 B",
    ]  # fmt: skip
    assert [seconds_text(s) for s in (0.0025, 1.0, 119.94, 200)] == ["2.5 ms", "1.0 s", "119.9 s", "3 min 20 s"]


def test_brackets_and_colons_of_names_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    """rich would take [/x] for the end of a style, [batch, seq] for a style and :smile: for a picture."""
    table = Table(title="artifact out[/x]")
    table.add_row("[batch, seq]", "a[bold]b :smile:")
    with Terminal() as terminal:
        terminal.show(table, "note: [/y] [batch]")
    out = capsys.readouterr().out
    for text in ("artifact out[/x]", "[batch, seq]", "a[bold]b :smile:", "note: [/y] [batch]"):
        assert text in out
