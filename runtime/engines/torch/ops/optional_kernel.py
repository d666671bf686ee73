"""Kernels that an operator launches where they support its sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits

P = TypeVar("P", bound=Hashable)


class OptionalKernel(Generic[P]):
    """The kernel of ``plan``, for the problems that it supports; one that it refuses is tried only once."""

    def __init__(self, kernels: KernelRunner, plan: Callable[[P, DeviceTraits], CallPlan]) -> None:
        self._kernels, self._plan = kernels, plan
        self._refused: set[P] = set()

    def problem(self, describe: Callable[[], P]) -> P | None:
        """The result of ``describe``; None if it raises UnsupportedError, or if ``launch`` refused it before."""
        try:
            problem = describe()
        except UnsupportedError:
            return None
        return None if problem in self._refused else problem

    def launch(self, problem: P, inputs: Sequence[torch.Tensor | None], outputs: Sequence[torch.Tensor | None]) -> bool:
        """Enqueue the kernel, as ``KernelRunner.launch``; False, and nothing enqueued, where it refuses ``problem``."""
        try:
            self._kernels.launch(problem, lambda traits: self._plan(problem, traits), inputs, outputs)
        except UnsupportedError:
            self._refused.add(problem)
            return False
        return True
