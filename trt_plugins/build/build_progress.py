"""TensorRT's nested build phases as one number that grows from 0 to ``TOTAL``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TOTAL = 1000


class PhaseTree:
    """Each phase fills one step of its parent; the result never decreases."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._done = 0
        # Open phases: where each starts and how much it spans (both of 1.0), and its number of steps.
        self._phases: dict[str, tuple[float, float, int]] = {}
        # Steps of each phase that are complete.
        self._steps: dict[str, int] = {}

    def start(self, name: str, parent: str | None, steps: int) -> None:
        """A phase of ``steps`` steps begins inside ``parent``."""
        begin, span = 0.0, 1.0
        if parent is not None and parent in self._phases:
            parent_begin, parent_span, parent_steps = self._phases[parent]
            span = parent_span / max(parent_steps, 1)
            begin = parent_begin + span * min(self._steps[parent], max(parent_steps - 1, 0))
        self._phases[name] = (begin, span, steps)
        self._steps[name] = 0

    def step(self, name: str, index: int) -> None:
        """Step ``index`` (from 0) of a phase is complete."""
        if name in self._phases:
            begin, span, steps = self._phases[name]
            self._steps[name] = index + 1
            self._report(begin + span * min((index + 1) / max(steps, 1), 1.0))

    def finish(self, name: str) -> None:
        """All of a phase is complete."""
        if name in self._phases:
            begin, span, _ = self._phases.pop(name)
            self._report(begin + span)

    def _report(self, fraction: float) -> None:
        done = int(fraction * TOTAL)
        if done > self._done:
            self._advance(done - self._done)
            self._done = done


def make_monitor(trt: Any, advance: Callable[[int], None]) -> Any:
    """A ``trt.IProgressMonitor`` that calls ``advance`` with the growth, ``TOTAL`` in sum."""
    tree = PhaseTree(advance)

    class BuildMonitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            tree.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            tree.step(phase_name, step)
            return True

        def phase_finish(self, phase_name: str) -> None:
            tree.finish(phase_name)

    return BuildMonitor()
