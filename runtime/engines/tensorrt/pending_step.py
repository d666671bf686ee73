"""A step that the GPU may still be running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.memory import Marker

T = TypeVar("T")


class PendingStep(Generic[T]):
    """The result of one step, which stays readable until the engine's next step."""

    def __init__(self, marker: Marker, read: Callable[[], T]) -> None:
        """``read``: gives the result once the step is done."""
        self._marker, self._read = marker, read
        self._done, self._stale = False, False

    @property
    def is_reached(self) -> bool:
        """Whether the step is done."""
        return self._done or self._marker.is_reached

    def read(self) -> T:
        """Wait for the result, which is valid until the next step.

        EngineError when the GPU failed, or when the engine has gone on or has been closed.
        """
        if self._stale:
            raise EngineError(
                "expected the logits of the last step, found that they are gone: read them before the next step"
            )
        self.wait()
        return self._read()

    def finish(self) -> None:
        """Wait, and give up the logits: the next step takes their place."""
        self._stale = True
        self.wait()

    def wait(self) -> None:
        """Return when the step is done; EngineError when the GPU failed."""
        if not self._done:
            self._marker.wait()
            self._done = True
