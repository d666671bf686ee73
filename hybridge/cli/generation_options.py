"""Options of a command that generates text."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from hybridge.artifact.errors import RequestError
from hybridge.artifact.limits import CONVERSATION_BYTES
from hybridge.artifact.untrusted_file import read_given
from hybridge.cli.parser import INTEGER, INTEGERS, PATH, Option, Switch, Value, options_of
from hybridge.runtime.sampling.params import SamplingParams

_PROMPT, _SAMPLING, _DRAFTS = "Prompt", "Sampling", "Speculative decoding"
GREEDY, RECOMMENDED = "greedy", "recommended"


def _sampling(text: str) -> str:
    if text not in (GREEDY, RECOMMENDED):
        raise ValueError
    return text


PROMPTS = (
    Option("--prompt", help="Text to continue; - reads standard input.", metavar="TEXT", group=_PROMPT),
    Option("--prompt-file", help="File with the text to continue.", type=PATH, metavar="FILE", group=_PROMPT),
    Option(
        "--chat",
        help="Message to answer, in the chat template; - reads standard input.",
        metavar="TEXT",
        group=_PROMPT,
    ),
    Option("--prompt-ids", help="Token ids to continue.", type=INTEGERS, metavar="N,...", group=_PROMPT),
    Option("--system", help="System message of a chat.", metavar="TEXT", group=_PROMPT),
)
SAMPLING = (
    Option(
        "--sampling",
        help="greedy, or recommended (the checkpoint's generation_config.json). The options below override it.",
        type=Value(_sampling, f"{GREEDY} or {RECOMMENDED}", (GREEDY, RECOMMENDED)),
        metavar="NAME",
        default=GREEDY,
        group=_SAMPLING,
    ),
    *options_of(SamplingParams, group=_SAMPLING),
)
DRAFT = (
    Option(
        "--draft",
        help="Source of draft tokens: ngram, mtp, or the folder of a draft model.",
        metavar="NAME",
        group=_DRAFTS,
    ),
    Option(
        "--draft-tokens",
        help="Draft tokens per sequence and step.",
        type=INTEGER,
        metavar="N",
        default="the artifact's, or 4",
        group=_DRAFTS,
    ),
)
DRAFTS = (
    *DRAFT,
    Switch("--draft-sampling", help="Sample the tokens of a draft model for requests that sample.", group=_DRAFTS),
    Option(
        "--speculative-mode",
        help="How to roll back draft tokens: auto, replay, snapshot, or by operator as OP=MODE,...",
        metavar="MODE",
        default="auto",
        group=_DRAFTS,
    ),
)


def one_of(flags: Mapping[str, object]) -> str:
    """The one of ``flags`` that has a value; a usage error where none or several have."""
    given = [flag for flag, value in flags.items() if value is not None]
    if not given:
        raise click.BadParameter(f"expected one of {', '.join(flags)}, found none (on a terminal, that starts a chat)")
    if len(given) > 1:
        raise click.BadParameter(
            f"expected only one of {', '.join(flags)}, found {' and '.join(given)}: --prompt continues its text, "
            "--chat answers it as a message"
        )
    return given[0]


def text_of(text: str | None, file: Path | None = None) -> str | None:
    """``text``, of standard input where it is "-", or that of ``file``, without its last line break.

    RequestError: the input is too long, or not in UTF-8.
    """
    if file is not None:
        where, raw = str(file), read_given(file, CONVERSATION_BYTES, RequestError)
    elif text == "-":
        where, raw = "standard input", sys.stdin.buffer.read(CONVERSATION_BYTES + 1)
        if len(raw) > CONVERSATION_BYTES:
            raise RequestError(f"{where}: expected at most {CONVERSATION_BYTES} bytes, found more: shorten the prompt")
    else:
        return text
    try:
        return raw.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{where}: expected text in UTF-8, found the byte {raw[error.start]:#04x}: convert it"
        ) from None
