"""Help, version and usage errors of every command."""

from __future__ import annotations

import click
import pytest

from hybridge.artifact.version import __version__
from hybridge.cli.main import app
from hybridge.cli.parser import command as command_of
from hybridge.runtime.engines.factory import AUTO, ENGINE_NAMES, ENGINES
from tests.cli.command import hybridge

FLAGS = {
    "export": "--dtype --state-dtype --layout --no-mtp --max-batch --max-seq-len --all-logits --weights --dry-run "
    "--quantize --overwrite --no-scan --full-hash --ignore-config-field --json --quiet",
    "verify": "--engine --prompt-lengths --decode-steps --tolerance --json --quiet",
    "build-engine": "--target --compute-capability --plugins --max-batch --max-seq-len --overwrite --json --quiet",
    "run": "--prompt --prompt-file --chat --system --prompt-ids --sampling "
    "--engine --max-new-tokens --temperature --top-k --top-p --min-p "
    "--repetition-penalty --seed --stop --draft --draft-tokens --draft-sampling --speculative-mode --engine-folder "
    "--threads --json --quiet",
    "inspect": "--check --onnx-check --json --quiet",
    "bench": "--engine --json --plot --quiet",
}
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("command", sorted(FLAGS))
def test_help_names_every_option(capfd: Capture, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    outcome = hybridge(capfd, command, "--help")
    assert outcome.code == 0 and not outcome.err
    missing = [flag for flag in FLAGS[command].split() if f"{flag} " not in outcome.out]
    assert not missing


def test_help_lists_the_commands(capfd: Capture) -> None:
    outcome = hybridge(capfd, "--help")
    assert outcome.code == 0
    assert all(command in outcome.out for command in FLAGS)


@pytest.mark.parametrize("command", ["", *sorted(FLAGS)])
def test_help_fits_80_columns(capfd: Capture, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer, no word of a help sentence is broken, and flags show no type."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = hybridge(capfd, *command.split(), "--help").out
    assert max(map(len, shown.splitlines())) <= 80 and "<bool>" not in shown
    words = set(shown.split())
    for parameter in (command_of(command) if command else app).params:
        text = parameter.help if isinstance(parameter, click.Option) else parameter.metavar
        broken = set((text or "").split()) - words
        assert not broken, (parameter.name, broken)


def test_a_shell_gets_its_completion(capfd: Capture) -> None:
    outcome = hybridge(capfd, "--completion", "bash")
    assert outcome.code == 0 and "complete" in outcome.out and "hybridge" in outcome.out


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(capfd: Capture, flag: str) -> None:
    outcome = hybridge(capfd, flag)
    assert outcome.code == 0 and outcome.out == f"hybridge {__version__}\n" and not outcome.err


def test_no_command_is_a_usage_error(capfd: Capture) -> None:
    outcome = hybridge(capfd)
    assert outcome.code == 2 and "Usage" in outcome.out and "build-engine" in outcome.out and not outcome.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("fly",), "fly"),
        (("export",), "CHECKPOINT"),
        (("export", "a"), "OUT"),
        (("export", "", "b"), "checkpoint: expected a path, found ''"),
        (("export", "a", "b", "--wings"), "--wings"),
        (
            ("export", "a", "b", "--dtype", "int8"),
            "--dtype: expected one of auto, float32, float16, bfloat16, fp32, fp16, half, bf16, found 'int8'",
        ),
        (("export", "a", "b", "--max-batch", "many"), "--max-batch: expected an integer, found 'many': see"),
        (("run", "a", "--prompt", "x", "--threads", "0"), "--threads: expected an integer from 1 to 1024, found 0"),
        (
            ("run", "a", "--prompt", "x", "--threads", "1025"),
            "--threads: expected an integer from 1 to 1024, found 1025",
        ),
        (("run", "a", "--prompt", "x", "--top-p", "most"), "--top-p: expected a number, found 'most': see"),
        (("run", "a", "--prompt"), "--prompt"),
        (("verify", "a", "b", "--prompt-lengths", "1,x"), "--prompt-lengths: expected integers such as 1,7,33, found"),
        (("run", "a", "--prompt-ids", "1;2"), "--prompt-ids: expected integers"),
        (
            ("run", "a"),
            "expected one of --prompt, --prompt-file, --chat, --prompt-ids, found none (on a t",
        ),
        (
            ("run", "a", "--prompt", "x", "--system", "y"),
            "--system: expected it with --chat or in a chat, found --",
        ),
        (("run", "a", "--prompt", "x", "--chat", "y"), "found --prompt and --chat"),
        (("run", "a", "--prompt", "x", "--engine", "abacus"), "found 'abacus'"),
    ],
)
def test_usage_error_is_one_sentence(capfd: Capture, arguments: tuple[str, ...], expected: str) -> None:
    outcome = hybridge(capfd, *arguments)
    assert outcome.code == 2 and not outcome.out
    assert expected in outcome.error and "Invalid value" not in outcome.error


def test_usage_error_as_json(capfd: Capture) -> None:
    outcome = hybridge(capfd, "run", "a", "--json")
    assert outcome.code == 2
    assert outcome.document == {"error": outcome.error, "exit_code": 2}


def test_json_after_the_separator_is_no_option(capfd: Capture) -> None:
    outcome = hybridge(capfd, "inspect", "--", "--json")
    assert outcome.code == 2 and not outcome.out and "--json: expected" in outcome.error


def test_every_engine_can_be_named() -> None:
    assert (AUTO, *ENGINES) == ENGINE_NAMES
