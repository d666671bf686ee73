"""A step between its launch and its end, and its time on host and device."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.sampling import CHOSEN_LATER, NO_SAMPLING, TokenSampling
from hybridge.runtime.scheduler import ScheduledSequence, StepPlan


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step.

    host: in which a device had nothing to do, because the step was planned and launched, or its tokens chosen; of an
    engine that runs on the host, its work too. device: from the end of the launch to the arrival of the tokens.
    """

    host: float
    device: float


class Continuation(NamedTuple):
    """How a sequence goes on after a step, unless it ends: index of the step's logits that give its token, the tokens
    that end it, and how the token after that one is chosen; None: it is the most likely one, or ``masked``, by a mask
    that is known once the step's token is."""

    source: int
    stops: frozenset[int]
    sampling: TokenSampling | None
    masked: bool = False


@dataclass(frozen=True)
class NextStep:
    """A step that was planned before the tokens of the one before it were known. result: None, it is not launched yet.

    continuations: how sequences go on after the step before. sampling, samplings: as in StepInFlight.
    """

    plan: StepPlan
    continuations: Mapping[ScheduledSequence, Continuation]
    sampling: Sequence[ScheduledSequence]
    samplings: Mapping[int, TokenSampling]
    result: StepResult | None

    def ended(self, fed: Sequence[int]) -> set[int]:
        """The sequences that end with their token of ``fed``, the tokens that the step before it has chosen."""
        return {
            sequence.id
            for sequence, (source, stops, *_) in self.continuations.items()
            if fed[source] < 0 or fed[source] in stops
        }


class StepInFlight:
    """``sampling``: the sequences that get a token each, in the order of ``result``, which is None without rows.

    samplings: as in ``PagedEngine.launch``. began: time.perf_counter before the step was planned. committed: whether
    the scheduler has committed it.
    """

    committed = False
    # What kept its tokens from being chosen.
    _error: BaseException | None = None

    def __init__(
        self,
        plan: StepPlan,
        sampling: Sequence[ScheduledSequence],
        result: StepResult | None,
        samplings: Mapping[int, TokenSampling],
        began: float,
    ) -> None:
        self.plan, self.sampling, self.result, self.samplings = plan, sampling, result, samplings
        self._launched = self._arrived = time.perf_counter()
        self._host, self._device = self._launched - began, 0.0
        self._ended = self._launched

    @property
    def waits_for_choice(self) -> bool:
        """Whether it was launched before the masks of its rows were known, and its tokens have not been chosen."""
        return self.samplings is CHOSEN_LATER and self.result is not None

    def choose(self, result: StepResult, samplings: Mapping[int, TokenSampling]) -> None:
        """Read ``result``, of the same step, whose tokens are chosen by ``samplings``."""
        self.result, self.samplings = result, samplings

    def fail(self, error: BaseException) -> None:
        """Its tokens cannot be chosen: ``best_tokens`` raises ``error`` once the step has ended."""
        self._error, self.samplings = error, NO_SAMPLING

    def waited(self) -> None:
        """Record that the step may go on only now, behind the part of it that was launched."""
        if self.result is not None and self.result.is_ready:
            now = time.perf_counter()
            self._host += now - self._launched
            self._launched = now

    def best_tokens(self) -> list[int | None]:
        """Wait for the step: the most likely token after each of its logits; errors are those of the result."""
        if self.result is None:
            return []
        if self._error is not None:
            with suppress(Exception):
                self.result.best_tokens()
            raise self._error
        since = self._launched
        if self.result.is_ready:
            # When it became ready is unknown: the host's work in between may have delayed the device.
            since = time.perf_counter()
            self._host += since - self._launched
        tokens = self.result.best_tokens()
        self._arrived = time.perf_counter()
        self._device = self._arrived - since
        return tokens

    def end(self, device_waits: bool) -> None:
        """Record that the tokens have been chosen while the device was idle (``device_waits``) or ran the next step."""
        self._ended = time.perf_counter() if device_waits else self._arrived

    @property
    def seconds(self) -> float:
        """Seconds on host and device, after the step's end."""
        return self._host + self._ended - self._arrived + self._device

    @property
    def times(self) -> StepTimes:
        """The times of the step, after its end."""
        return StepTimes(self._host + self._ended - self._arrived, self._device)


def sampled_rows(plan: StepPlan, sampling: Sequence[ScheduledSequence]) -> Iterable[tuple[ScheduledSequence, int]]:
    """The sequences without draft tokens, which get one token each, with the index of their logits."""
    pairs = zip(sampling, count(), strict=False)
    if plan.repeats:
        return pairs  # its rows are those of ``sampling``, and are not made for this
    if plan.is_plain:
        if len(plan.rows) == len(sampling):
            return pairs
        # Sequences that ended since it was launched have been left out of the plan.
        planned = {row.sequence for row in plan.rows}
        return [(sequence, index) for sequence, index in pairs if sequence.id in planned]
    starts = zip(plan.rows, plan.logits_starts(), strict=True)
    rows = zip(sampling, [place for place in starts if place[0].samples], strict=True)
    return [(sequence, begin + row.prompt_logits) for sequence, (row, begin) in rows if not row.draft_tokens]
