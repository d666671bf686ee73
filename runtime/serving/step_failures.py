"""Ends the requests of steps that fail."""

from __future__ import annotations

from contextlib import suppress

from hybridge.artifact.errors import EngineError
from hybridge.runtime.blocks.records import INTERRUPTED
from hybridge.runtime.scheduler import ScheduledSequence, Scheduler, StepPlan
from hybridge.runtime.serving.live_requests import LiveRequests, engine_error
from hybridge.runtime.serving.step_in_flight import NextStep

_IN_STEP = "the engine failed in a step"


class StepFailures:
    """All methods re-raise anything that is not an Exception, once the requests have ended."""

    def __init__(self, scheduler: Scheduler, requests: LiveRequests) -> None:
        self._scheduler, self._requests = scheduler, requests

    def end(self, plan: StepPlan, error: BaseException) -> None:
        """End the requests of the step; the scheduler gets back all memory that the step reserved."""
        self._requests.died(self._scheduler.fail(plan), _reason(error, _IN_STEP))
        _pass_on(error)

    def end_committed(self, plan: StepPlan, next_step: NextStep | None, error: BaseException) -> None:
        """As ``end``, for a step that was committed before it failed, and for the one after it."""
        reason = _reason(error, _IN_STEP)
        died = [] if next_step is None else self._fail_next(next_step)
        died += self._scheduler.fail_committed(plan)
        self._requests.died(died, reason)
        _pass_on(error)

    def end_without_tokens(
        self, plan: StepPlan, next_step: NextStep | None, error: BaseException, next_runs: bool
    ) -> None:
        """End the requests of a committed step in which an error left some sequence without its token.

        Their states are one token ahead of their text, or more if the next step has been launched, so they cannot
        continue. next_runs: whether ``next_step`` is the step in progress.
        """
        known = self._scheduler.sequences
        sequences = [known[row.sequence] for row in plan.rows if row.sequence in known]
        if next_step is not None:
            for sequence in sequences:
                self._scheduler.manager.set_exact(sequence.memory, False)
        reason = _reason(error, "a token could not be chosen")
        self._requests.end_with([*self._requests.ids_of(sequences), *self._requests.finished()], reason)
        if next_step is not None and not next_runs and not (next_step.result is None and isinstance(error, Exception)):
            # Nothing launches it any more, or reads it.
            self._requests.died(self._fail_next(next_step), reason)
        if next_step is None:
            # The error may have come before the commit.
            self.end_interrupted()
        _pass_on(error)

    def end_interrupted(self) -> None:
        """End the requests of steps that an interrupt between two statements has left unfinished."""
        if died := self._scheduler.abandon():
            self._requests.died(died, EngineError(INTERRUPTED))

    def end_torn(self) -> None:
        """End all requests, as the records are torn; nothing is raised. The engine runs no step."""
        error = self._scheduler.records.torn
        reason = EngineError(INTERRUPTED) if error is None else _reason(error, "the memory of requests was lost")
        self._requests.start_over(self._scheduler.start_over(), reason)

    def _fail_next(self, next_step: NextStep) -> list[ScheduledSequence]:
        """The sequences of a step that fails with the one before it."""
        died = self._scheduler.fail(next_step.plan)
        if next_step.result is not None:
            # Its result is not read, but it must end before another step begins.
            with suppress(Exception):
                next_step.result.best_tokens()
        return died


def _reason(error: BaseException, what: str) -> EngineError:
    if isinstance(error, Exception):
        return engine_error(error, what)
    return EngineError(INTERRUPTED)


def _pass_on(error: BaseException) -> None:
    if not isinstance(error, Exception):
        raise error
