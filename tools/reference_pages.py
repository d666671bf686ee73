"""Write the reference pages that follow from the code: ``python tools/reference_pages.py`` (``make docs``).

docs/reference/cli.md, which is kept in the repository: a table of options for each command.
build/docs/api.md: signature and docstring of every public name.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLI_PAGE = ROOT / "docs" / "reference" / "cli.md"
API_PAGE = ROOT / "build" / "docs" / "api.md"
_CLI_HEAD = """# Command line

Written by `make docs` from the code. Every command also takes `--help`; `hybridge` itself takes `--version` (`-V`) and
`--completion SHELL`, which prints a script for bash, zsh or fish: `eval "$(hybridge --completion bash)"`.

Exit codes: 0 success, 1 a failed check (`verify`, `conformance`), 2 bad input or usage, 3 a bug in Hybridge, 130
interrupted (Ctrl-C).
"""


def cli_page() -> str:
    """The page of all commands and their options; those that several commands have alike come first, once."""
    from hybridge.cli.main import COMMANDS
    from hybridge.cli.parser import command as command_of

    commands = {name: command_of(name) for name in COMMANDS}
    rows = {name: [_option(option) for option in _options(command)] for name, command in commands.items()}
    counts = Counter(row for of_command in rows.values() for row in of_command)
    shared = [row for row, count in counts.items() if count > 1]
    lines = [_CLI_HEAD, "## Shared options", "", "| option | default | meaning | commands |", "|---|---|---|---|"]
    for row in shared:
        lines.append(f"{row} {_names([name for name in rows if row in rows[name]], list(rows))} |")
    for name, command in commands.items():
        own = [row for row in rows[name] if row not in shared]
        lines += ["", f"## hybridge {_usage(name, command)}", "", str(command.help), ""]
        lines += ["| option | default | meaning |", "|---|---|---|", *own]
    return "\n".join(lines) + "\n"


def _names(some: list[str], every: list[str]) -> str:
    """The names in ``some``, or those of ``every`` that are missing, whichever are fewer."""
    missing = [name for name in every if name not in some]
    if len(missing) < len(some):
        return f"all but {', '.join(missing)}" if missing else "all"
    return ", ".join(some)


def _options(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name != "argument" and "--help" not in each.opts]


def _usage(name: str, command: Any) -> str:
    return " ".join([name, *(each.metavar for each in command.params if each.param_type_name == "argument")])


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    metavar = f" {option.metavar}" if option.metavar else ""
    return f"| {names}{_cell(metavar)} | {_cell(option.shown_default)} | {_cell(option.summary)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def api_page() -> str:
    """The page of all public names, with their public methods."""
    import hybridge

    parts = ["# Python API", "Written by `make docs` from the code."]
    for name, value in sorted((name, getattr(hybridge, name)) for name in hybridge.__all__):
        if not callable(value):  # the version, the module of errors
            continue
        parts.append(_entry(f"hybridge.{name}", value))
        if inspect.isclass(value) and not dataclasses.is_dataclass(value):
            parts += [_entry(f"hybridge.{name}.{method}", value.__dict__[method]) for method in _methods(value)]
    return "\n\n".join(parts) + "\n"


def _methods(cls: type) -> Iterable[str]:
    return [name for name, value in vars(cls).items() if not name.startswith("_") and inspect.isfunction(value)]


def _entry(name: str, value: Any) -> str:
    documentation = inspect.getdoc(value) or ""
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    signature = "" if is_error else inspect.signature(value)
    return f"## {name}\n\n```text\n{name}{signature}\n\n{documentation}\n```"


def main() -> int:
    """Write both pages."""
    CLI_PAGE.write_text(cli_page(), encoding="utf-8")
    API_PAGE.parent.mkdir(parents=True, exist_ok=True)
    API_PAGE.write_text(api_page(), encoding="utf-8")
    print(f"wrote {CLI_PAGE.relative_to(ROOT)} and {API_PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
