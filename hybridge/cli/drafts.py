"""Drafts on the command line: their settings, and what became of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from artifact.errors import RequestError

if TYPE_CHECKING:
    from runtime.serving.settings import ServingSettings
    from runtime.speculation import SpeculationMetrics

# Drafts that are no folder.
NAMES = ("ngram", "mtp")
# Candidates of a step where neither the command nor the artifact says how many.
TOKENS = 4


def draft_settings(out: Path, draft: str | None, tokens: int | None, mode: str = "auto") -> ServingSettings | None:
    """Settings for ``--draft``, ``--draft-tokens`` and ``--speculative-mode`` of the artifact ``out``; None where
    neither of the first two is given.

    draft: "ngram", "mtp", or the folder of a draft model's artifact. tokens: None for as many as the artifact keeps
    states of. RequestError: a mode without the others.
    """
    if draft is None and tokens is None:
        if mode != "auto":
            raise RequestError(
                f"--speculative-mode {mode}: expected --draft or --draft-tokens beside it, found neither"
            )
        return None
    from artifact.config import read_config
    from artifact.path_kind import require_artifact
    from runtime.serving.settings import ServingSettings
    from runtime.speculation import DraftModel, SpeculationSettings

    require_artifact(out)
    kept = read_config(out).speculative_tokens
    named = NAMES[0] if draft is None else draft
    drafter = named if named in NAMES else DraftModel(named)
    return ServingSettings(speculation=SpeculationSettings(tokens or kept or TOKENS, drafter, mode=mode))


def draft_summary(metrics: SpeculationMetrics) -> str:
    """One line about the candidates of a whole run."""
    if metrics.acceptance is None:
        return "[drafts: none was proposed]"
    return (
        f"[drafts: {metrics.acceptance:.0%} of {metrics.proposed} candidates accepted, "
        f"{metrics.tokens_per_row:.2f} tokens a step]"
    )
