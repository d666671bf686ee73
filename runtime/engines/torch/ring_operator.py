"""A recurrent operator over states with rings: one CUDA kernel, or torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.torch.kernels import KernelRunner, layout_of, signature_of
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import OPS, spec_of
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall, PackedRows
from hybridge.trt_plugins.kernels.ops.ring import plan_ring
from hybridge.trt_plugins.reference.ring import flushed_state, ring_step
from hybridge.trt_plugins.spec import AttributeValue
from hybridge.trt_plugins.specs.packed import PACKED_VERSION, QUERY_START_LOC, STATE_INDICES, is_packed, is_pool

Tensors = Sequence[torch.Tensor]


class RingOperator:
    """One operator over a pool and its rings. ``slots`` [rows] int32: the slot of each row; -1 marks a padding row.

    In torch, padding rows use the last slot of pools and rings, which no sequence owns.
    """

    def __init__(self, name: str, attributes: dict[str, AttributeValue], kernels: KernelRunner | None) -> None:
        self.name, self._spec, self._attributes = name, spec_of(name, PACKED_VERSION), attributes
        self._kernels = kernels
        self._bounds, self._slots = (self._spec.input_index(each.name) for each in (QUERY_START_LOC, STATE_INDICES))
        self.state, self._data = self._spec.input_index("state"), self._spec.output_source(self._spec.outputs[0])
        self._key = (name, tuple(attributes.items()))
        self._refused: set = set()
        torch_ops.register()
        self._operator = getattr(getattr(torch.ops, self._spec.domain), name)

    @property
    def inputs(self) -> int:
        """Number of inputs of the packed operator."""
        return len(self._spec.inputs)

    def step(
        self, inputs: Sequence[object], ring: Tensors, lengths: torch.Tensor, gate: torch.Tensor | None, singles: int
    ) -> torch.Tensor:
        """One token a row; the output [tokens, ...]. State and ring change in place, ``lengths`` do not.

        inputs: the packed operator's, with query_start_loc as a tensor. singles: number of rows with a token;
        these come first.
        """
        given = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor)]
        data = given[self._data]
        y = torch.empty(data.shape, dtype=data.dtype, device=data.device)
        if not self._launched(given, ring, lengths, gate, y):
            self._computed(given, ring, lengths, gate, y, singles)
        return y

    def flush(self, inputs: Tensors, ring: Tensors, lengths: torch.Tensor, slots: torch.Tensor) -> None:
        """Write the rings of ``slots`` into their states. inputs: as for ``step``, of one token, which is not read."""
        given = list(inputs)
        given[self._bounds] = torch.zeros(len(slots) + 1, dtype=torch.int32, device=slots.device)
        given[self._slots] = slots
        if self._launched(given, ring, lengths, None, torch.empty_like(given[self._data])):
            return
        pool = given[self.state]
        at, in_ring = _slots_in(slots, pool), _slots_in(slots, lengths)
        parts = [part.index_select(0, in_ring) for part in ring]
        found = flushed_state(self.name, pool.index_select(0, at), parts, lengths.index_select(0, in_ring))
        pool.index_copy_(0, at, found.to(pool.dtype))

    def _launched(
        self, given: Tensors, ring: Tensors, lengths: torch.Tensor, gate: torch.Tensor | None, y: torch.Tensor
    ) -> bool:
        """Launch the kernel; False, without any effect, if no kernel supports these sizes."""
        if self._kernels is None:
            return False
        own = [*given[: self._bounds], None, *given[self._slots + 1 :]]
        inputs, outputs = [*own, *ring, lengths, *(() if gate is None else (gate,))], [y, given[self.state]]
        about = [given[self._bounds], given[self._slots]]
        rows = PackedRows(len(about[1]), 1)
        key = (self._key, (*map(signature_of, inputs), *map(signature_of, outputs)), rows)
        if key in self._refused:
            return False

        def plan(traits: DeviceTraits) -> CallPlan:
            layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in own)
            results = tuple(map(layout_of, outputs))
            call = OpCall(OPS[self.name], layouts, results, self._attributes, rows)
            return plan_ring(call, traits, None if gate is None else layout_of(gate))

        try:
            self._kernels.launch(key, plan, inputs, outputs, about)
        except UnsupportedError:
            self._refused.add(key)
            return False
        return True

    def _computed(
        self,
        given: Tensors,
        ring: Tensors,
        lengths: torch.Tensor,
        gate: torch.Tensor | None,
        y: torch.Tensor,
        singles: int,
    ) -> None:
        slots, pool = given[self._slots][:singles], given[self.state]
        at, in_ring = _slots_in(slots, pool), _slots_in(slots, lengths)
        inputs = []
        for index, (tensor, value) in enumerate(zip(self._spec.inputs, given, strict=True)):
            if index == self._bounds:
                inputs.append(torch.ones(singles, dtype=torch.int32, device=slots.device))
            elif index != self._slots:
                inputs.append(
                    value.index_select(0, at) if is_pool(tensor) else value[:singles] if is_packed(tensor) else value
                )
        parts = [part.index_select(0, in_ring) for part in ring]
        found, state, added = ring_step(
            self.name, self._operator, inputs, parts, lengths.index_select(0, in_ring), self._attributes
        )
        if gate is not None:
            found = (found.float() * F.silu(gate[:singles].float()).view(found.shape)).to(y.dtype)
        y[:singles] = found
        pool.index_copy_(0, at, state)
        for part, new in zip(ring, added, strict=True):
            part.index_copy_(0, in_ring, new)


def _slots_in(slots: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
    return torch.where(slots < 0, pool.shape[0] - 1, slots.long())
