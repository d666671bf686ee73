"""Options of a command that generates text."""

from __future__ import annotations

from typing import Annotated

import typer

Prompt = Annotated[str | None, typer.Option(metavar="TEXT", help="Text to continue.", show_default=False)]
Chat = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Message to answer, in the chat template.", show_default=False)
]
PromptIds = Annotated[str | None, typer.Option(metavar="N,N,...", help="Token ids to continue.", show_default=False)]

MaxNewTokens = Annotated[int, typer.Option(help="Stop after this many tokens, or at max_seq_len.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability; 1 is off.")]
MinP = Annotated[float, typer.Option(help="Keep tokens this likely relative to the best; 0 is off.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1 avoids repetition; 1 is off.")]
Seed = Annotated[int | None, typer.Option(help="Draw the same tokens again.", show_default="random")]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Stop at this text (repeatable).", show_default=False)
]

Draft = Annotated[
    str | None,
    typer.Option(metavar="ngram|mtp|DIR", help="Who proposes what a step tries at once.", show_default=False),
]
DraftTokens = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Proposed tokens of a step.", show_default="as many as fit")
]
DraftDraws = Annotated[
    bool, typer.Option("--draft-draws", help="Let a draft model (DIR) draw its proposals where tokens are drawn.")
]
SpeculativeMode = Annotated[
    str,
    typer.Option(
        metavar="auto|replay|snapshot|OP=MODE,...",
        help="Let states wait while proposals are tried, or keep one after each of them; also by operator.",
    ),
]


def one_of(flags: dict[str, str | None]) -> str:
    """The one of ``flags`` that has a value; a usage error where none or several have."""
    given = [flag for flag, value in flags.items() if value is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise typer.BadParameter(f"expected one of {', '.join(flags)}, found {found}")
    return given[0]
