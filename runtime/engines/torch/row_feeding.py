"""Rows of a step get the tokens that the step before it has chosen, on the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hybridge.artifact.names import INPUT_IDS, SEQ_LENS, SLOT_MAPPING, STATE_INDICES
from hybridge.runtime.engines.feeding_tables import FeedingTables
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.trt_plugins.kernels.fused import token_feeding
from hybridge.trt_plugins.kernels.fused.token_feeding import MOST_STOPS, FeedingProblem


class RowFeeding:
    """Fill ``tables`` before a step; ``enqueue`` in it."""

    def __init__(self, device: TorchDevice, rows: int) -> None:
        self._device, self._rows = device, rows
        # A few bytes that the kernel reads where they are.
        source, self._source = device.mapped(2, dtype=torch.int64)
        stops, self._stops = device.mapped(rows, MOST_STOPS, dtype=torch.int32)
        sources, self._sources = device.mapped(rows, dtype=torch.int32)
        self.tables = FeedingTables(source.numpy(), stops.numpy(), sources.numpy())

    def enqueue(self, inputs: Mapping[str, torch.Tensor], copies: tuple[torch.Tensor, ...] = ()) -> None:
        """Enqueue the kernel that changes the step's ``inputs`` on torch's current stream.

        copies: pinned host memory and the memory of all ``inputs``, which the kernel first copies from there.
        """
        assert self._device.kernels is not None
        problem = FeedingProblem(self._rows, copies[0].nbytes if copies else 0)
        self._device.kernels.launch(
            problem,
            lambda traits: token_feeding.plan(problem, traits),
            (self._source, self._stops, self._sources, *copies[:1]),
            [*(inputs[name] for name in (INPUT_IDS, SEQ_LENS, SLOT_MAPPING, STATE_INDICES)), *copies[1:]],
        )
