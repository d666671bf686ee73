"""Decoding one token per row: run directly once, then captured in a CUDA graph and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import ClassVar

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.bound_context import BoundContext
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory, Graph


class DecodeStep:
    """The decode step of one state memory in one turn, bound once to its own context.

    The first run is an ordinary step, in which TensorRT does the initialisation that it leaves until
    the first enqueue of a shape. The second is captured, which executes nothing and so changes no state, and the
    graph is launched at once. From then on a step is one launch: no TensorRT and no plugin code runs on the host.
    """

    # False: all steps of the process run directly, for comparison with captured ones.
    captures: ClassVar[bool] = True

    def __init__(
        self, memory: DeviceMemory, context: BoundContext, around: Callable[[Callable[[], None]], None]
    ) -> None:
        """``around(enqueue)`` enqueues a whole step: tokens to the device, ``enqueue``, logits to the host."""
        self._memory, self._context, self._around = memory, context, around
        self._graph: Graph | None = None
        self._warm, self._direct = False, False

    @property
    def is_replayed(self) -> bool:
        """Whether the next run launches an existing graph."""
        return self._graph is not None

    def run(self) -> None:
        """Enqueue one step; EngineError when TensorRT, a plugin or the GPU refuses it."""
        if self._warm and self._graph is None and not self._direct:
            self._graph = self._captured()
        if self._graph is not None:
            self._graph.launch()
        else:
            self._enqueue()
            self._warm = True

    def close(self) -> None:
        """Release graph and context; calling it twice is allowed. No run may be pending."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        self._context.close()

    def _enqueue(self) -> None:
        self._around(self._context.enqueue)

    def _captured(self) -> Graph | None:
        if not self.captures or not self._context.capturable:
            return None
        try:
            return self._memory.capture(self._enqueue)
        except EngineError as error:
            # The same step has run directly, so that only speed is lost.
            self._direct = True
            warnings.warn(f"decoding without a CUDA graph, which is slower: {error}", RuntimeWarning, stacklevel=2)
            return None
