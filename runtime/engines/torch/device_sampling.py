"""Token sampling by CUDA kernels from a step's logits, which stay on the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from hybridge.runtime.engines.packed_sampling import PackedSampling
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.row_feeding import ChosenTokens
from hybridge.runtime.sampling import SampledToken, TokenSampling
from hybridge.trt_plugins.kernels.fused import sampling
from hybridge.trt_plugins.kernels.fused.sampling import (
    MOST_LISTED,
    SamplingProblem,
    edit_type,
    result_type,
    settings_type,
)

# Edited logits per row on average; the rows of a step share the space.
_EDITS = 1024


class DeviceSampling:
    """Sampling for steps with logits [rows, vocab] float32 on a GPU.

    Call ``fill`` before a step and ``enqueue`` in it (which may be recorded in a CUDA graph); read ``best`` and
    ``sampled`` once the stream is synchronised.
    """

    def __init__(self, device: TorchDevice, rows: int, vocab: int, lists: bool) -> None:
        """``lists``: also list likely tokens, for log-probabilities. UnsupportedError: vocabulary too large."""
        self._problem = SamplingProblem(rows, vocab, lists)
        self._device, problems, self.lists = device, self._problem.problems, lists
        self._settings = _Copied(device, problems * settings_type().itemsize)
        self._edits = _Copied(device, rows * _EDITS * edit_type().itemsize)
        self._masks = _Copied(device, rows * -(-vocab // 32) * 4)
        # The kernels write their results to mapped host memory.
        results, self._results = device.mapped(problems * result_type().itemsize, dtype=torch.uint8)
        tokens, self._tokens = device.mapped(problems, MOST_LISTED, dtype=torch.int32)
        logits, self._logits = device.mapped(problems, MOST_LISTED, dtype=torch.float32)
        self._found = results.numpy().view(result_type()), tokens.numpy(), logits.numpy()
        masks = self._masks.here.view(np.uint32).reshape(rows, -1)
        self._packed = PackedSampling(
            self._settings.here.view(settings_type()), self._edits.here.view(edit_type()), masks, vocab, lists
        )
        self._mask_bytes = masks.shape[1] * 4
        self._chosen = frozenset[int]()

    @property
    def tokens(self) -> ChosenTokens:
        """The rows' tokens; -1 where the logits are not finite."""
        # The addresses of mapped memory are the same on the GPU.
        found = self._found[0]["token"]
        return ChosenTokens(found.ctypes.data, found.strides[0])

    @property
    def fed_tokens(self) -> list[int]:
        """``tokens``, once the stream is synchronised."""
        found: list[int] = self._found[0]["token"][: self._problem.rows].tolist()
        return found

    @property
    def best(self) -> np.ndarray:
        """[rows] int32: the most likely token of each row, after its edits if it has any; -1 where it is not finite."""
        found: np.ndarray = self._found[0]["best"][: self._problem.rows]
        return found

    def fill(self, samplings: Mapping[int, TokenSampling]) -> None:
        """Set how the next step's tokens are chosen, by row of its logits; the previous step must have finished."""
        packed = self._packed
        self._chosen = packed.fill(samplings)
        with self._device.active():
            if packed.edited:
                self._edits.upload(0, packed.edited * edit_type().itemsize)
            for row in packed.masked:
                self._masks.upload(row * self._mask_bytes, (row + 1) * self._mask_bytes)

    def enqueue(self, logits: torch.Tensor) -> None:
        """Enqueue sampling from ``logits`` [rows, vocab] float32 on torch's current stream."""
        assert self._device.kernels is not None and logits.is_contiguous() and logits.dtype == torch.float32
        self._settings.upload()
        self._device.kernels.launch(
            self._problem,
            lambda traits: sampling.plan(self._problem, traits),
            (logits, self._settings.there, self._edits.there, self._masks.there),
            (self._results, self._tokens, self._logits),
        )

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken]:
        """The tokens by row of ``samplings``, which ``fill`` was given, without rows that the host has to sample."""
        return self._packed.sampled({row: draw for row, draw in samplings.items() if row in self._chosen}, *self._found)


class _Copied:
    """``here``: pinned host memory [n] of bytes; ``there``: its copy on the device, updated by ``upload``."""

    def __init__(self, device: TorchDevice, nbytes: int) -> None:
        self._host = device.pinned(nbytes, dtype=torch.uint8)
        self.here = self._host.numpy()
        self.there = torch.empty(nbytes, dtype=torch.uint8, device=device.torch)

    def upload(self, begin: int = 0, end: int | None = None) -> None:
        """Enqueue the copy of bytes ``begin`` to ``end``."""
        self.there[begin:end].copy_(self._host[begin:end], non_blocking=True)
