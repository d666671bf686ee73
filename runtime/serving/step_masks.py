"""Masks of allowed tokens that the choices of a step wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from hybridge.runtime.sampling import Sampler


class StepMasks:
    """Samplers of the sequences of a step whose tokens wait for masks, and what begins to compute these masks."""

    def __init__(self) -> None:
        self._samplers: list[Sampler] = []
        self._preparations: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        """Whether any token waits for a mask."""
        return bool(self._samplers)

    def of(self, samplers: Iterable[Sampler]) -> None:
        """From now on, of the step whose sequences have ``samplers``."""
        self._samplers = [sampler for sampler in samplers if sampler.waits_for_masks]

    def find_preparations(self) -> None:
        """To be called once the step has been launched. Neighbours may have a preparation in common."""
        self._preparations = []
        for sampler in self._samplers:
            prepare = sampler.mask_preparation()
            if prepare is not None and self._preparations[-1:] != [prepare]:
                self._preparations.append(prepare)

    def prepare(self) -> None:
        """Let the masks of the next tokens be computed in another thread."""
        for prepare in self._preparations:
            with suppress(Exception):
                prepare()
