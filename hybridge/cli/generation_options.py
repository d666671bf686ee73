"""Options of a command that generates text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from hybridge.artifact.errors import RequestError
from hybridge.artifact.limits import CONVERSATION_BYTES
from hybridge.artifact.untrusted_file import read_given
from hybridge.cli.options import flag, setting

_PROMPT, _SAMPLING, _DRAFTS = "Prompt", "Sampling", "Speculative decoding"

Prompt = Annotated[
    str | None,
    setting(metavar="TEXT", help="Text to continue; - reads standard input.", panel=_PROMPT, show_default=False),
]
PromptFile = Annotated[
    Path | None, setting(metavar="FILE", help="File with the text to continue.", panel=_PROMPT, show_default=False)
]
Chat = Annotated[
    str | None,
    setting(
        metavar="TEXT",
        help="Message to answer, in the chat template; - reads standard input.",
        panel=_PROMPT,
        show_default=False,
    ),
]
System = Annotated[
    str | None, setting(metavar="TEXT", help="System message of a chat.", panel=_PROMPT, show_default=False)
]
PromptIds = Annotated[
    str | None, setting(metavar="N,...", help="Token ids to continue.", panel=_PROMPT, show_default=False)
]

MaxNewTokens = Annotated[
    int, setting(metavar="N", help="Stop after this many tokens, or at max_seq_len.", panel=_SAMPLING)
]
Recommended = Annotated[
    Literal["greedy", "recommended"],
    setting(
        metavar="NAME",
        help="greedy, or recommended: as the checkpoint's generation_config.json. The options below change it.",
        panel=_SAMPLING,
    ),
]
Temperature = Annotated[
    float | None, setting(metavar="X", help="0 is greedy.", panel=_SAMPLING, show_default="0 if greedy")
]
TopK = Annotated[int | None, setting(metavar="K", help="Keep the k most likely tokens; 0 is off.", panel=_SAMPLING)]
TopP = Annotated[
    float | None,
    setting(metavar="P", help="Keep the most likely tokens up to this probability; 1 is off.", panel=_SAMPLING),
]
MinP = Annotated[
    float | None,
    setting(metavar="P", help="Keep tokens this likely relative to the best; 0 is off.", panel=_SAMPLING),
]
RepetitionPenalty = Annotated[
    float | None, setting(metavar="X", help="Above 1 avoids repetition; 1 is off.", panel=_SAMPLING)
]
Seed = Annotated[
    int | None, setting(metavar="N", help="Sample the same tokens again.", panel=_SAMPLING, show_default="random")
]
Stop = Annotated[
    list[str] | None,
    setting(metavar="TEXT", help="Stop at this text (repeatable).", panel=_SAMPLING, show_default=False),
]

Draft = Annotated[
    str | None,
    setting(
        metavar="NAME",
        help="Source of draft tokens: ngram, mtp, or the folder of a draft model.",
        panel=_DRAFTS,
        show_default=False,
    ),
]
DraftTokens = Annotated[
    int | None,
    setting(metavar="N", min=1, help="Draft tokens of a step.", panel=_DRAFTS, show_default="as many as fit"),
]
DraftDraws = Annotated[
    bool, flag("--draft-draws", help="A draft model samples its tokens where the model samples.", panel=_DRAFTS)
]
SpeculativeMode = Annotated[
    str,
    setting(
        metavar="MODE",
        help="States while draft tokens are verified: auto, replay, snapshot, or by operator as OP=MODE,...",
        panel=_DRAFTS,
    ),
]


def one_of(flags: dict[str, str | None]) -> str:
    """The one of ``flags`` that has a value; a usage error where none or several have."""
    given = [flag for flag, value in flags.items() if value is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        more = "" if given else " (without any, a chat starts on a terminal)"
        raise typer.BadParameter(f"expected one of {', '.join(flags)}, found {found}{more}")
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
