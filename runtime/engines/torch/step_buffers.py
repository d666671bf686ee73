"""The tokens and lengths of a decode step, in pinned host memory and on the device."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.torch.cache_blocks import room_of
from hybridge.runtime.engines.torch.device import TorchDevice

# (name, type): one after another in one buffer, so that one copy takes all of them.
_LENGTHS, _SLOTS = "lengths", "slots"
_PARTS = (
    (INPUT_IDS, torch.int64),
    (CONTEXT_LENGTHS, torch.int32),
    (PAST_LENGTHS, torch.int32),
    (_LENGTHS, torch.int32),
    (_SLOTS, torch.int32),
)
_WORD = 4


class StepBuffers:
    """``tensors`` are the program's inputs; ``lengths`` and ``slots`` [batch] int32 are those of ``CacheBlocks``."""

    def __init__(self, device: TorchDevice, batch: int, max_seq: int) -> None:
        words = batch * sum(kind.itemsize for _, kind in _PARTS) // _WORD
        host, self._shared = device.mapped(words, dtype=torch.int32)
        self._there = device.zeros(words, dtype=torch.int32) if device.is_gpu else host
        self._here, self._form = host.numpy().data, struct.Struct(f"={batch}q{4 * batch}i")
        parts, start = {}, 0
        for name, kind in _PARTS:
            part = slice(start, start + batch * kind.itemsize // _WORD)
            parts[name] = self._there[part].view(kind)
            start = part.stop
        self._first = [row * room_of(max_seq) for row in range(batch)]
        self.lengths, self.slots = parts.pop(_LENGTHS), parts.pop(_SLOTS)
        self.tensors = {**parts, INPUT_IDS: parts[INPUT_IDS][:, None]}

    def fill(self, ids: Sequence[int], context: Sequence[int], past: Sequence[int]) -> None:
        """The step's tokens, and how many new (0 or 1) and cached ones every row has."""
        lengths = [cached + new for cached, new in zip(past, context, strict=True)]
        slots = [first + cached if new else -1 for first, cached, new in zip(self._first, past, context, strict=True)]
        # One call of C, where arrays would take one for each part: nothing else happens on the way to the GPU.
        self._form.pack_into(self._here, 0, *ids, *context, *past, *lengths, *slots)

    def upload(self) -> None:
        """Enqueue the copy to the device, by a kernel: it reads a few bytes sooner than the copy engine starts."""
        if self._there is not self._shared:
            torch.add(self._shared, 0, out=self._there)
