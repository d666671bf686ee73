"""hybridge conformance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridge.artifact.errors import SettingError
from hybridge.artifact.limits import API_KEYS_BYTES
from hybridge.artifact.untrusted_file import read_given
from hybridge.cli.options import JSON, QUIET
from hybridge.cli.parser import PATH, TEXT, Argument, Command, Option, given, options_of
from hybridge.cli.terminal import Terminal
from hybridge.conformance.options import ConformanceOptions


def _run(url: str, api_key_file: Path | None, as_json: bool, quiet: bool, **settings: Any) -> int:
    with Terminal(as_json, quiet) as terminal:
        from hybridge.conformance.run import run_conformance

        options = ConformanceOptions(**given(settings))
        key = None if api_key_file is None else _key(api_key_file)
        report = run_conformance(url, key, options, terminal.progress)
        terminal.report(report)
    return 0 if report.passed else 1


def _key(path: Path) -> str:
    try:
        key = read_given(path, API_KEYS_BYTES, SettingError).decode("ascii").strip()
    except UnicodeDecodeError:
        key = ""
    if not key or not key.isprintable():
        raise SettingError("api_key_file: expected a key of printable ASCII characters, found other content")
    return key


COMMAND = Command(
    "conformance",
    "Ask a server with OpenAI's API for answers at temperature 0: in batches, with cached prefixes, in edited "
    "conversations and while clients disconnect. Compare each with the answer to the same prompt alone. Exit code 1 "
    "if they differ.",
    _run,
    Argument("url", "Address of the server, such as http://127.0.0.1:8000.", type=TEXT),
    *options_of(ConformanceOptions),
    Option("--api-key-file", help="File with the server's API key.", type=PATH, metavar="FILE"),
    JSON,
    QUIET,
)
