"""Settings of speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hybridge.artifact.call_arguments import known_arguments
from hybridge.artifact.errors import EngineError, SettingError
from hybridge.artifact.settings import checked_int
from hybridge.runtime.engines.rollback.modes import AUTO, REPLAY, SNAPSHOT
from hybridge.runtime.speculation.draft_length import USUAL_ACCEPTANCE, DraftLength
from hybridge.runtime.speculation.drafter import Drafter
from hybridge.runtime.speculation.ngram_drafter import NgramDrafter
from hybridge.runtime.speculation.step_cost import StepCost

NGRAM, MTP = "ngram", "mtp"


@known_arguments
@dataclass(frozen=True)
class DraftModel:
    """A draft model: any artifact with the same tokenizer as the model.

    engine: name of its engine; "auto": the model's. threads: CPU threads; None: the engine's choice. memory_bytes:
    size of its caches; None: enough for all rows, at most 1 GiB on a CPU or a tenth of a device's free memory. samples:
    for requests that sample, sample the draft tokens too, with the request's settings, instead of proposing the most
    likely ones. Answers keep their distribution, but a seed gives other answers than without drafting.
    """

    folder: str | Path
    engine: str = "auto"
    threads: int | None = None
    memory_bytes: int | None = None
    samples: bool = False


@known_arguments
@dataclass(frozen=True)
class SpeculationSettings:
    """tokens: maximum number of draft tokens per sequence and step; a request may ask for fewer (SamplingParams).

    drafter: "ngram" (what followed the same tokens before in the prompt or the output), "mtp" (the checkpoint's own
    multi-token prediction head), a DraftModel, or a Drafter. shortest and longest: how many last tokens "ngram" looks
    for. adaptive: choose the draft length from the measured acceptance of each sequence; a draft token adds the share
    draft_token_cost to the time of a step (None: as measured). mode: rollback of recurrent states by "snapshot" (one
    after each draft token, in slots of the sequence), "replay" (accepted tokens are computed again) or "auto" (replay
    where the engine can, with the cheaper way for each operator); or a mapping of operators to "replay" or "snapshot",
    with the cheaper way for the others. SettingError names a bad value.
    """

    tokens: int = 4
    drafter: str | DraftModel | Drafter = NGRAM
    shortest: int = 2
    longest: int = 4
    adaptive: bool = True
    draft_token_cost: float | None = None
    mode: str | Mapping[str, str] = AUTO

    def __post_init__(self) -> None:
        for name in ("tokens", "shortest", "longest"):
            checked_int(f"speculation: {name}", getattr(self, name))
        if self.longest < self.shortest:
            raise SettingError(
                f"speculation: longest: expected at least {self.shortest} (shortest), found {self.longest}"
            )
        if not isinstance(self.drafter, Drafter | DraftModel) and self.drafter not in (NGRAM, MTP):
            raise SettingError(
                f"speculation: drafter: expected {NGRAM!r}, {MTP!r}, a DraftModel or a Drafter, found {self.drafter!r}"
            )
        named = isinstance(self.mode, Mapping)
        for mode in self.mode.values() if isinstance(self.mode, Mapping) else (self.mode,):
            if mode not in (REPLAY, SNAPSHOT) and (named or mode != AUTO):
                known = f"{REPLAY!r} or {SNAPSHOT!r}"
                expected = f"{known} for each operator" if named else f"{AUTO!r}, {known}"
                raise SettingError(f"speculation: mode: expected {expected}, found {mode!r}")
        if self.draft_token_cost is not None and not 0 <= self.draft_token_cost <= 1:
            raise SettingError(
                "speculation: draft_token_cost: expected a share of a step from 0 to 1, found "
                f"{self.draft_token_cost!r}"
            )

    def make_drafter(self) -> Drafter:
        """The drafter of one serving loop; EngineError for a model that has not been opened."""
        if self.drafter == NGRAM:
            return NgramDrafter(self.shortest, self.longest)
        if isinstance(self.drafter, str | DraftModel):
            raise EngineError(
                f"speculation: expected an opened drafter, found {self.drafter!r}: use LLM or AsyncLLM, which open it"
            )
        return self.drafter

    @property
    def foresees(self) -> bool:
        """Whether the drafter tells what it would have proposed, without cost."""
        return self.drafter == NGRAM

    def make_count(self, limit: int | None, measured: StepCost, usual: float = USUAL_ACCEPTANCE) -> DraftLength:
        """The counter of one sequence, whose request allows at most ``limit`` draft tokens; ``usual``: as there."""
        most = self.tokens if limit is None else min(limit, self.tokens)
        cost = measured.relative_time if self.draft_token_cost is None else self.draft_token_cost
        return DraftLength(most, cost, self.adaptive, self.foresees, usual)
