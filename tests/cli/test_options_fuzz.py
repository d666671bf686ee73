"""Whatever stands on the command line, the answer is one sentence and the exit code of bad input."""

from __future__ import annotations

import contextlib
import io

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.cli import main
from hybridge.cli.drafts import parsed_mode
from hybridge.cli.failures import BAD_INPUT
from hybridge.cli.main import run_command
from hybridge.cli.parser import INTEGERS, command
from tests.support.effort import examples
from tests.support.fuzzing import RandomInput, fuzzed

COMMANDS = {
    name: sorted({flag for option in command(name).params for flag in option.opts if flag.startswith("-")})
    for name in main.COMMANDS
}
_PARTS = ["a=snapshot", "b=replay", "a=", "=replay", "1", "-2"]
_words = st.one_of(
    st.sampled_from(
        [
            "",
            "-",
            "--",
            "-1",
            "0",
            "1e999",
            "nan",
            "9" * 400,
            "1,7",
            "1,,7",
            "auto",
            "float16",
            "/dev/null/x",
            "\x00",
            "=",
            "é",
        ]
    ),
    # Not the name of a checkpoint on a hub.
    st.text(st.characters(exclude_characters="/"), max_size=8),
)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command, paths where there is nothing, and options with values of any kind."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    paths = ["/nowhere/a", "/nowhere/b"][: draw(st.integers(0, 2))]
    parts = draw(st.lists(st.tuples(st.sampled_from(COMMANDS[name]), _words), max_size=3))
    options = [
        word for flag, value in parts for word in draw(st.sampled_from([[flag, value], [f"{flag}={value}"], [flag]]))
    ]
    return [name, *draw(st.permutations(paths)), *options]


@pytest.mark.fuzz
@settings(max_examples=examples(200), deadline=None)
@given(arguments=command_lines() | st.lists(_words, min_size=1, max_size=3))
def test_any_command_line_is_an_error_in_one_sentence(arguments: list[str]) -> None:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = run_command(arguments)
    if code == 0:
        # Only the help and the version need no folder.
        assert {"--help", "-h", "--version", "-V"} & set(arguments), arguments
        return
    lines = [line for line in errors.getvalue().splitlines() if line.startswith("error: ")]
    assert code == BAD_INPUT and len(lines) == 1 and "Traceback" not in errors.getvalue(), (
        arguments,
        errors.getvalue(),
    )


@fuzzed(1500)
def test_values_of_options_are_parsed_or_refused(random: RandomInput) -> None:
    text = random.letters(20) if random.chance(0.5) else ",".join(random.choices(_PARTS, k=random.randrange(6)))
    for parse in (parsed_mode, lambda text: INTEGERS.convert(text, None, None)):
        with contextlib.suppress(click.BadParameter):
            parse(text)
