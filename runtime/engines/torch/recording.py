"""CUDA graphs of work that repeats."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.recorded_graph import RecordedGraph


class RepeatedWork:
    """Work on the device's stream that is the same each time except for the content of its memory.

    The first run is an ordinary one: kernels are compiled and loaded by it. The second is recorded, which executes
    nothing, and the graph is launched at once. From then on a run is one launch. On a CPU every run is direct.
    """

    def __init__(self, device: TorchDevice, work: Callable[[], None], pool: Any = None) -> None:
        """``pool``: the memory of intermediate values; None: that of all steps."""
        self._device, self._work, self._pool = device, work, pool
        self._graph: RecordedGraph | None = None
        self._warm, self._recording, self.direct = False, False, not device.is_gpu

    @property
    def is_replayed(self) -> bool:
        """Whether the next run launches an existing graph."""
        return self._graph is not None

    @property
    def is_recording(self) -> bool:
        """Whether the work that runs now is being recorded: it must not depend on what host memory holds."""
        return self._recording

    def run(self) -> None:
        """Enqueue the work on the device's stream, which must be the current one unless the work ``is_replayed``."""
        if self._warm and self._graph is None and not self.direct:
            self._graph = self._recorded()
        if self._graph is not None:
            self._graph.launch()
        else:
            self._work()
            self._warm = True

    def _recorded(self) -> RecordedGraph | None:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._device.synchronize()
        try:
            with _nothing_collected():
                self._record(graph)
            assert self._device.stream is not None
            return RecordedGraph(graph, self._device.stream)
        except (EngineError, RuntimeError) as error:
            # The same step has run directly, so that only speed is lost.
            self.direct = True
            reason = " ".join(str(error).split())
            warnings.warn(f"running without a CUDA graph, which is slower: {reason}", RuntimeWarning, stacklevel=2)
            return None

    def _record(self, graph: torch.cuda.CUDAGraph) -> None:
        # Unsafe calls of this thread end the recording with an error instead of escaping from the graph.
        graph.capture_begin(pool=self._pool or self._device.graph_pool, capture_error_mode="thread_local")
        self._recording = True
        try:
            self._work()
        except BaseException:
            # Always end the capture, also after errors: the stream refuses other work until then.
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        finally:
            self._recording = False
        graph.capture_end()


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Cycles of Python objects stay. Where pinned memory is released during a recording, torch records an event with
    the work; when it asks for that event later, CUDA answers "invalid argument" (seen with torch 2.11 on an H200)."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
