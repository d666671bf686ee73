"""A recorded CUDA graph that the driver launches without a way through torch."""

from __future__ import annotations

import ctypes
import weakref

import torch

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels.driver import checked, cuda_driver, driver_function, result_name

_INVALID_CONTEXT = 201


class RecordedGraph:
    """The graph in ``recorded`` (created with keep_graph, recording finished), to be launched on one stream.

    torch launches on the stream that is current: to make it so and back takes longer than the launch.
    """

    def __init__(self, recorded: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
        """EngineError when the driver cannot make the graph executable."""
        driver = cuda_driver()
        made = driver.cuGraphInstantiate(driver.CUgraph(recorded.raw_cuda_graph()), 0)
        executable = checked(made, "making a CUDA graph executable")
        self._recorded, self._stream = recorded, stream  # which own the memory that it works on
        self._launch = driver_function("cuGraphLaunch", 2)
        self._arguments = ctypes.c_void_p(int(executable)), ctypes.c_void_p(stream.cuda_stream)
        weakref.finalize(self, driver.cuGraphExecDestroy, executable).atexit = False

    def launch(self) -> None:
        """Enqueue it; EngineError when the driver refuses."""
        code = self._launch(*self._arguments)
        if code == _INVALID_CONTEXT:
            # A thread that has not used the GPU yet.
            torch.cuda.set_device(self._stream.device)
            code = self._launch(*self._arguments)
        if code:
            raise EngineError(f"launching a CUDA graph: the CUDA driver returned {result_name(code)}")
