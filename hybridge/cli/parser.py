"""Commands, options and their help pages, over click. Settings of dataclasses become options of the same meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
from click.shell_completion import CompletionItem

from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.settings import SettingField, settings_of
from hybridge.cli.flag_names import in_flags

OPTIONS, OUTPUT, ENGINE = "Options", "Output", "Engine"
# Where a command puts the flags of parameters that it has no option for: ``ctx.meta[FLAGS]``.
FLAGS = "hybridge.flags"
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


class Value(click.ParamType):
    """A value that ``parse`` reads from a text; its ValueError becomes a usage error that names what is expected."""

    name = "value"

    def __init__(self, parse: Callable[[str], Any] = str, expected: str = "", choices: tuple[str, ...] = ()) -> None:
        self._parse, self._expected, self._choices = parse, expected, choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError:
            self.fail(f"expected {self._expected}, found {value!r}", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if not self._choices and self._parse is _path:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(choice) for choice in self._choices if choice.startswith(incomplete)]


def _path(text: str) -> Path:
    # An empty one is a shell's variable without a value, not the current folder.
    if not text or "\0" in text:
        raise ValueError
    return Path(text)


TEXT, PATH = Value(), Value(_path, "a path")
INTEGER, NUMBER = Value(int, "an integer"), Value(float, "a number")
INTEGERS = Value(lambda text: tuple(int(part) for part in text.split(",")), "integers such as 1,7,33")


class Argument(click.Argument):
    """A positional argument with a line of help."""

    def __init__(self, name: str, help: str, metavar: str | None = None, type: Value = PATH) -> None:
        super().__init__([name], type=type, metavar=metavar or name.upper())
        self._summary = help  # click prints an attribute "help" in its own section

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return str(self.metavar), self._summary


class Option(click.Option):
    """An option of a group of the help page. It is None, unless it is given."""

    def __init__(
        self,
        *names: str,
        help: str,
        type: Value = TEXT,
        metavar: str = "",
        default: str = "",
        group: str = OPTIONS,
        **more: Any,
    ) -> None:
        self.summary, self.shown_default = help, default
        shown = f"{help} [default: {default}]" if default else help
        # A default, even None, would be a value of a required option.
        more = more if more.get("required") else {"default": None, **more}
        super().__init__(names, help=shown, type=type, metavar=metavar, **more)
        self.group = group


class Switch(click.Option):
    """An option without a value: ``given`` if it is on the command line, else ``not_given``."""

    def __init__(
        self, *names: str, help: str, group: str = OPTIONS, given: bool = True, not_given: bool | None = False
    ) -> None:
        super().__init__(
            names,
            help=help,
            is_flag=True,
            default=False,
            callback=lambda context, option, value: given if value else not_given,
        )
        self.group, self.summary, self.shown_default = group, help, ""


def options_of(settings: type, *names: str, group: str | None = None) -> list[click.Option]:
    """Options for the settings of a dataclass, or for those called ``names``."""
    found = [each for each in settings_of(settings) if each.setting.flag != "" and (not names or each.name in names)]
    return [_option(each, group or each.setting.group or OPTIONS) for each in found]


def _option(each: SettingField, group: str) -> click.Option:
    declared = each.setting
    if each.kind is bool:
        return Switch(each.flag, each.name, help=declared.help, group=group, given=not each.default, not_given=None)
    default = declared.shown_default
    if default is None and each.default is not None and not each.several:
        default = f"{each.default:g}" if each.kind is float else str(each.default)
    kind = INTEGER if each.kind is int else NUMBER if each.kind is float else Value(choices=declared.choices)
    flags = [each.flag, *([declared.short] if declared.short else []), each.name]
    return Option(
        *flags,
        help=declared.help,
        type=kind,
        metavar=declared.metavar,
        default=default or "",
        group=group,
        multiple=each.several,
    )


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The ``values`` that were given on the command line."""
    return {name: value for name, value in values.items() if value is not None and value != ()}


class Command(click.Command):
    """A command whose help page shows its options in groups, and whose errors name flags."""

    def __init__(self, name: str, help: str, callback: Callable[..., int | None], *params: click.Parameter) -> None:
        super().__init__(name, callback=callback, help=help, params=list(params), context_settings=CONTEXT)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.group = OUTPUT  # type: ignore[attr-defined]
        return option

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            title = "Arguments" if isinstance(parameter, Argument) else getattr(parameter, "group", OPTIONS)
            if record is not None:
                groups.setdefault(title, []).append(record)
        for title in sorted(groups, key=(OUTPUT,).__contains__):
            with formatter.section(title):
                _write_rows(formatter, groups[title])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HybridgeError as error:
            own = {str(each.name): flag for each in self.params if (flag := max(each.opts, key=len)).startswith("-")}
            raise type(error)(in_flags(str(error), {**own, **ctx.meta.get(FLAGS, {})})) from error


def _write_rows(formatter: click.HelpFormatter, rows: Sequence[tuple[str, str]]) -> None:
    """Two columns; the second is wrapped at spaces only, not at hyphens as in onnxruntime-portable."""
    start = formatter.current_indent + max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        lines = wrap(text, formatter.width - start, break_on_hyphens=False, break_long_words=False)
        formatter.write(f"{' ' * formatter.current_indent}{name}".ljust(start) + f"\n{' ' * start}".join(lines) + "\n")


class Commands(click.Group):
    """The commands of modules ``hybridge.cli.NAME``, which are imported when they are named.

    summaries: a line of help for each.
    """

    def __init__(self, summaries: Mapping[str, str], **more: Any) -> None:
        super().__init__("hybridge", context_settings=CONTEXT, **more)
        self._summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command(cmd_name) if cmd_name in self._summaries else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))


def command(name: str) -> Command:
    """The command called ``name``."""
    found = import_module(f"hybridge.cli.{name.replace('-', '_')}").COMMAND
    assert isinstance(found, Command)
    return found
