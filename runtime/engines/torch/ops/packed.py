"""Recurrent operators over packed rows, their pools changed in place: our CUDA kernels on a GPU, else torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.torch.graph import SNAPSHOT_SLOTS
from hybridge.runtime.engines.torch.kernels import KernelRunner, layout_of, signature_of
from hybridge.runtime.engines.torch.node_context import NodeContext, Run
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.kernels import catalog
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall, PackedRows
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.packed import QUERY_START_LOC, STATE_INDICES, is_packed, is_pool
from hybridge.trt_plugins.specs.speculative import NUM_ACCEPTED_TOKENS, is_speculative

Tensors = Sequence[torch.Tensor | None]
Plan = Callable[[DeviceTraits], CallPlan]
# The arguments of ``KernelRunner.launch``.
Launch = tuple[Hashable, Plan, Tensors, Tensors, Sequence[torch.Tensor]]


def packed_operator(context: NodeContext, spec: OpSpec) -> Run:
    """The runner of a node of ``spec``, the packed or the speculative form of a dense operator."""
    return packed_operator_of(context, spec, PackedCall, SpeculativeCall)


def packed_operator_of(
    context: NodeContext, spec: OpSpec, packed: type[PackedCall], speculative: type[SpeculativeCall]
) -> Run:
    """The same with the classes of the runners."""
    attributes = spec.complete_attributes(context.attributes.rest())
    in_place = tuple(context.is_in_place(i, spec.output_source(o)) for i, o in enumerate(spec.outputs))
    if not is_speculative(spec):
        return packed(spec, attributes, context.kernels, in_place)
    slots = context.node.inputs[spec.input_index(STATE_INDICES.name)]
    defers = slots is not None and slots.name != SNAPSHOT_SLOTS
    return speculative(spec, attributes, context.kernels, in_place, defers)


class PackedCall:
    """One operator. The rows up to the split are one call, which knows that they have at most one token; the others are
    a second one. Sizes that the kernels refuse run in torch, each of the other rows by itself."""

    def __init__(
        self, spec: OpSpec, attributes: dict, kernels: KernelRunner | None, in_place: tuple[bool, ...]
    ) -> None:
        self._spec, self._dense, self._attributes = spec, OPS[spec.name], attributes
        self._kernels = kernels if spec.name in catalog.operators() else None
        self._bounds, self._slots = (spec.input_index(name) for name in (QUERY_START_LOC.name, STATE_INDICES.name))
        # The first input after those that describe rows.
        self._behind = 1 + (spec.input_index(NUM_ACCEPTED_TOKENS.name) if is_speculative(spec) else self._slots)
        self._outputs = [
            (spec.output_source(output), is_pool(output), here)
            for output, here in zip(spec.outputs, in_place, strict=True)
        ]
        self._name = (spec.name, tuple(attributes.items()))
        self._refused: set = set()
        torch_ops.register()
        self._operator = getattr(getattr(torch.ops, spec.domain), spec.name)

    def __call__(self, *given: object) -> tuple[torch.Tensor, ...]:
        rows, slots = given[self._bounds], given[self._slots]
        assert isinstance(rows, StepRows) and isinstance(slots, torch.Tensor)
        tensors: list[torch.Tensor | None] = [*given, *(None for _ in range(len(self._spec.inputs) - len(given)))]  # type: ignore[list-item]
        tensors[self._bounds], tensors[self._slots] = rows.bounds, slots
        outputs = [self._output(tensors[source], pool, here) for source, pool, here in self._outputs]
        # The state before the step is read where the one after it is written.
        for (source, pool, _), output in zip(self._outputs, outputs, strict=True):
            if pool:
                tensors[source] = output
        if self._kernels is None or not self.launched(tensors, outputs, rows):
            self._computed(tensors, outputs, rows, slots)
        return tuple(outputs)

    def _output(self, source: torch.Tensor | None, pool: bool, here: bool) -> torch.Tensor:
        assert source is not None
        if pool:
            return source if here else source.clone()
        return torch.empty(source.shape, dtype=source.dtype, device=source.device)

    def launched(self, tensors: list[torch.Tensor | None], outputs: list[torch.Tensor], rows: StepRows) -> bool:
        """Run the kernels; False, and nothing was done, where they do not run these sizes."""
        slots = tensors[self._slots]
        assert slots is not None
        calls = self._prepared(tensors, outputs, self._parts(rows, slots))
        if calls is not None:
            self._run(calls)
        return calls is not None

    def _prepared(
        self, tensors: list[torch.Tensor | None], outputs: list[torch.Tensor], parts: list[tuple[int, PackedRows]]
    ) -> list[Launch] | None:
        """The launches for ``parts``; None where there are no kernels for one of them."""
        assert self._kernels is not None
        inputs = [*tensors[: self._bounds], None, *tensors[self._behind :]]
        about = [tensor for tensor in tensors[self._bounds : self._behind] if tensor is not None]
        signature = (*map(signature_of, inputs), *map(signature_of, outputs))
        keys = [(self._name, signature, own) for _, own in parts]
        if any(key in self._refused for key in keys):
            return None
        calls: list[Launch] = []
        for key, (first, own) in zip(keys, parts, strict=True):
            plan = self._plan(inputs, outputs, own)
            try:
                self._kernels.prepare(key, plan)
            except UnsupportedError:
                self._refused.add(key)
                return None
            calls.append((key, plan, inputs, outputs, [tensor[first:] for tensor in about]))
        return calls

    def _run(self, calls: list[Launch]) -> None:
        assert self._kernels is not None
        for call in calls:
            self._kernels.launch(*call)

    def _parts(self, rows: StepRows, slots: torch.Tensor) -> list[tuple[int, PackedRows]]:
        """The first row of each kernel call, and the facts about its rows."""
        parts = [(0, PackedRows(rows.split, 1)), (rows.split, PackedRows(rows.rows - rows.split, rows.longest))]
        return [(first, own) for first, own in parts if own.rows]

    def _plan(self, inputs: Tensors, outputs: Sequence[torch.Tensor], rows: PackedRows) -> Plan:
        def plan(traits: DeviceTraits) -> CallPlan:
            layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in inputs)
            results = tuple(layout_of(tensor) for tensor in outputs)
            return catalog.plan(OpCall(self._dense, layouts, results, self._attributes, rows), traits)

        return plan

    def _computed(
        self, tensors: list[torch.Tensor | None], outputs: list[torch.Tensor], rows: StepRows, slots: torch.Tensor
    ) -> None:
        """In torch. Padding rows use the last slot of a pool, which no sequence has."""
        if rows.singles:
            self._rows(tensors, outputs, slice(0, rows.singles), slots[: rows.singles], time=False)
        for row, begin, end in rows.others():
            self._rows(tensors, outputs, slice(begin, end), slots[row : row + 1], time=True)

    def _rows(
        self, tensors: Tensors, outputs: Sequence[torch.Tensor], tokens: slice, slots: torch.Tensor, time: bool
    ) -> None:
        """Rows of one token each, or with ``time`` one row of ``tokens``, as a call of the dense operator."""
        inputs: list[torch.Tensor | None] = []
        indices: dict[int, torch.Tensor] = {}
        for index, (tensor, value) in enumerate(zip(self._spec.inputs, tensors, strict=True)):
            if index == self._slots:
                continue
            if index == self._bounds:
                count = tokens.stop - tokens.start if time else 1
                inputs.append(torch.full((len(slots),), count, dtype=torch.int32, device=slots.device))
            elif value is not None and is_pool(tensor):
                indices[index] = torch.where(slots < 0, value.shape[0] - 1, slots.long())
                inputs.append(value.index_select(0, indices[index]))
            elif value is not None and is_packed(tensor):
                inputs.append(value[None, tokens] if time else value[tokens])
            else:
                inputs.append(value)
        found = self._operator(*inputs, *self._attributes.values())
        for (source, pool, _), output, new in zip(self._outputs, outputs, found, strict=True):
            if pool:
                output.index_copy_(0, indices[source], new)
            else:
                output[tokens] = new[0] if time else new


class SpeculativeCall(PackedCall):
    """An operator of the speculative form: one kernel call for all rows, however long.

    defers: it leaves states unchanged and stores its inputs, so that it can be called again over the accepted tokens.
    """

    def __init__(
        self, spec: OpSpec, attributes: dict, kernels: KernelRunner | None, in_place: tuple[bool, ...], defers: bool
    ) -> None:
        super().__init__(spec, attributes, kernels, in_place)
        self._defers = defers
        self._of_tokens = tuple(index for index, tensor in enumerate(spec.inputs) if is_packed(tensor))
        self._accepted = self._behind - 1

    @property
    def name(self) -> str:
        return self._spec.name

    def __call__(self, *given: object) -> tuple[torch.Tensor, ...]:
        found = super().__call__(*given)
        rows = given[self._bounds]
        if self._defers and isinstance(rows, StepRows) and rows.stored is not None:
            rows.stored.add(self, given, self._of_tokens, found)
        return found

    def advanced(self, given: Sequence[object], rows: StepRows, slots: torch.Tensor, accepted: torch.Tensor) -> tuple:
        """The call ``given`` again, over other rows of its tokens."""
        inputs = list(given)
        inputs[self._bounds], inputs[self._slots], inputs[self._accepted] = rows, slots, accepted
        return self(*inputs)

    def _parts(self, rows: StepRows, slots: torch.Tensor) -> list[tuple[int, PackedRows]]:
        return [(0, PackedRows(rows.rows, rows.longest, draft_slots=slots.shape[1]))]

    def _computed(
        self, tensors: list[torch.Tensor | None], outputs: list[torch.Tensor], rows: StepRows, slots: torch.Tensor
    ) -> None:
        """In torch, on copies of the rows' slots; a row without one uses the last slot, as above."""
        indices = slots.flatten().long()
        inputs = list(tensors)
        for index, (tensor, value) in enumerate(zip(self._spec.inputs, tensors, strict=True)):
            if value is not None and is_pool(tensor):
                inputs[index] = value.index_select(0, indices % value.shape[0])
        own = torch.arange(slots.numel(), dtype=slots.dtype, device=slots.device).view_as(slots)
        inputs[self._slots] = torch.where(slots < 0, -1, own)
        found = self._operator.speculative(*inputs, *self._attributes.values())
        for (_, pool, _), output, new in zip(self._outputs, outputs, found, strict=True):
            if pool:
                output.index_copy_(0, indices % output.shape[0], new)
            else:
                output.copy_(new)
