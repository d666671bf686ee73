"""Drafting on the command line: settings and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hybridge.artifact.errors import RequestError
from hybridge.artifact.settings import checked_int

if TYPE_CHECKING:
    from hybridge.runtime.serving.settings import ServingSettings
    from hybridge.runtime.speculation import SpeculationMetrics

# Values of --draft that are not folders.
NAMES = ("ngram", "mtp")
# Default number of draft tokens per step.
TOKENS = 4


def draft_settings(
    out: Path, draft: str | None, tokens: int | None, mode: str | None = None, samples: bool = False
) -> ServingSettings | None:
    """Settings for ``--draft``, ``--draft-tokens``, ``--speculative-mode`` and ``--draft-sampling`` of the artifact
    ``out``; None where neither of the first two is given.

    draft: "ngram", "mtp", or the folder of a draft model's artifact. tokens: None for TOKENS. RequestError: a mode
    without the others, or sampling without a draft model; a usage error: a mode that is not as in ``parsed_mode``.
    """
    modes = parsed_mode("auto" if mode is None else mode)
    if tokens is not None:
        checked_int("draft_tokens", tokens)
    if samples and (draft is None or draft in NAMES):
        raise RequestError(
            f"--draft-sampling: expected the folder of a draft model as --draft, found {draft or 'none'}"
        )
    if draft is None and tokens is None:
        if mode not in (None, "auto"):
            raise RequestError(f"--speculative-mode {mode}: expected --draft or --draft-tokens with it, found neither")
        return None
    from hybridge.artifact.path_kind import require_artifact
    from hybridge.runtime.serving.settings import ServingSettings
    from hybridge.runtime.speculation import DraftModel, SpeculationSettings

    require_artifact(out)
    named = NAMES[0] if draft is None else draft
    drafter = named if named in NAMES else DraftModel(named, samples=samples)
    return ServingSettings(speculation=SpeculationSettings(tokens or TOKENS, drafter, mode=modes))


def parsed_mode(text: str) -> str | Mapping[str, str]:
    """Parse the rollback mode: "auto", "replay" or "snapshot", or by operator as in "causal_conv1d=snapshot,...".

    A usage error names ``--speculative-mode``.
    """
    from hybridge.runtime.engines.rollback.modes import AUTO, REPLAY, SNAPSHOT

    if text in (AUTO, REPLAY, SNAPSHOT):
        return text
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, mode = (word.strip() for word in part.partition("="))
        if not name or mode not in (REPLAY, SNAPSHOT):
            raise _bad_mode(
                f"expected {AUTO}, {REPLAY}, {SNAPSHOT}, or one of the last two by operator such as "
                f"causal_conv1d={SNAPSHOT},update_ssm_state={REPLAY}, found {text!r}"
            )
        if name in found:
            raise _bad_mode(f"expected each operator once, found {name} twice in {text!r}")
        found[name] = mode
    return found


def _bad_mode(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--speculative-mode")


def draft_summary(metrics: SpeculationMetrics) -> str:
    """One line about the draft tokens of a whole run."""
    if metrics.acceptance is None:
        return "[drafts: none proposed]"
    return (
        f"[drafts: {metrics.acceptance:.0%} of {metrics.proposed} draft tokens accepted, "
        f"{metrics.tokens_per_row:.2f} tokens per step]"
    )
