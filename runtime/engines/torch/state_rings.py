"""The rings of all states of a set of pools: their memory, and the slots whose rings may have tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from hybridge.artifact.bindings import Binding
from hybridge.artifact.names import STATE_INDICES
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.fusion.state_rings import RING_LENGTHS, RingLayer
from hybridge.runtime.engines.torch.program import StepProgram
from hybridge.runtime.engines.torch.ring_operator import RingOperator
from hybridge.trt_plugins.kernels.ops.state_ring import plan_count
from hybridge.trt_plugins.specs.ring import RING

# Sizes of a flush, in slots; a smaller number of slots is padded.
_AT_ONCE = (1, 8, 64)
_LENGTH_BYTES = 4


def ring_bytes(layers: Sequence[RingLayer]) -> int:
    """Memory of the rings of one slot."""
    return _LENGTH_BYTES + sum(layer.slot_bytes for layer in layers) if layers else 0


class StateRings:
    """Rings of ``slots`` slots of each of ``layers``; all of a slot's rings have the same length.

    The lengths are on the device, because a row may finish there before the host knows. The host knows which rings may
    have tokens; all others are empty.
    """

    def __init__(self, device: TorchDevice, layers: Sequence[RingLayer], slots: int) -> None:
        """RuntimeError when there is too little memory."""
        self._device, self._layers = device, tuple(layers)
        self._used: set[int] = set()
        self._tokens: dict[tuple[tuple[int, ...], torch.dtype], torch.Tensor] = {}
        self._operators = [RingOperator(layer.operator, layer.attributes, device.kernels) for layer in layers]
        self.lengths = device.zeros(slots, dtype=torch.int32)
        self._rings = [
            [torch.empty((slots, *shape), dtype=dtype, device=device.torch) for _, shape, dtype in layer.tensors]
            for layer in layers
        ]
        self.tensors: Mapping[str, torch.Tensor] = {
            RING_LENGTHS: self.lengths,
            **{
                name: tensor
                for layer, ring in zip(layers, self._rings, strict=True)
                for (name, _, _), tensor in zip(layer.tensors, ring, strict=True)
            },
        }

    @property
    def used(self) -> frozenset[int]:
        """The slots whose rings may have tokens."""
        return frozenset(self._used)

    def use(self, slots: Collection[int]) -> None:
        """A step adds a token to the rings of ``slots``; negative ones are padding."""
        self._used.update(slot for slot in slots if slot >= 0)

    def count(self, slots: torch.Tensor) -> None:
        """Enqueue the new lengths after a token of each of ``slots`` [rows] int32, -1: padding."""
        if self._device.kernels is not None:
            rows = len(slots)
            plan = partial(plan_count, rows)
            self._device.kernels.launch((plan_count, rows), plan, (slots,), (self.lengths,))
            return
        chosen = torch.where(slots < 0, len(self.lengths) - 1, slots.long())
        self.lengths.index_copy_(0, chosen, (self.lengths.index_select(0, chosen) + 1) % RING)

    def empty(self, slots: Collection[int]) -> None:
        """Drop the tokens in the rings of ``slots``, whose states are replaced."""
        if found := self._used.intersection(slots):
            self._used -= found
            with self._device.active():
                self.lengths.index_fill_(0, self._index(sorted(found)).long(), 0)

    def flush(self, pools: Mapping[str, torch.Tensor], slots: Collection[int] | None = None) -> None:
        """Write the rings of ``slots`` (None: all) into their states in ``pools``."""
        found = sorted(self._used if slots is None else self._used.intersection(slots))
        with self._device.active():
            while found:
                count = next((size for size in _AT_ONCE if size >= len(found)), _AT_ONCE[-1])
                part, found = found[:count], found[count:]
                chosen = self._index([*part, *(-1 for _ in range(count - len(part)))])
                for layer, operator, ring in zip(self._layers, self._operators, self._rings, strict=True):
                    inputs = [self._token(*each) for each in layer.inputs]
                    inputs[operator.state] = pools[layer.pool]
                    operator.flush(inputs, ring, self.lengths, chosen)
                self.empty(part)

    def _token(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor with the shape of an input; its contents are not read."""
        key = shape, dtype
        if key not in self._tokens:
            self._tokens[key] = torch.empty(shape, dtype=dtype, device=self._device.torch)
        return self._tokens[key]

    def _index(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.tensor(slots, dtype=torch.int32, device=self._device.torch)


class RingProgram:
    """A program of decode steps over states with rings, which also counts their tokens."""

    extra: tuple[Binding, ...] = ()

    def __init__(self, program: StepProgram, rings: StateRings) -> None:
        self._program, self._rings = program, rings

    def run(self, feeds: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        found = self._program.run({**feeds, **self._rings.tensors})
        self._rings.count(feeds[STATE_INDICES])
        return found
