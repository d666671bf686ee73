"""A plugin's tensors, in the order of its operator's declaration, as a call of the operator's kernels.

Kernels know one operator, dense or packed: the arrays that locate packed rows are not among its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hybridge.trt_plugins.catalog import OPS
from hybridge.trt_plugins.kernels.call import CallPlan, Memory, OpCall, PackedRows, PointerSource
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.spec import AttributeValue, OpSpec
from hybridge.trt_plugins.specs.packed import QUERY_START_LOC, STATE_INDICES, is_packed
from hybridge.trt_plugins.specs.speculative import NUM_ACCEPTED_TOKENS

_ABOUT_ROWS = (QUERY_START_LOC.name, STATE_INDICES.name, NUM_ACCEPTED_TOKENS.name)


def has_slots(spec: OpSpec) -> bool:
    """Whether ``spec`` is packed with states in slots: an operator over pages has its own kernels' arguments."""
    return any(tensor.name == STATE_INDICES.name for tensor in spec.inputs)


def kernel_call(
    spec: OpSpec,
    attributes: Mapping[str, AttributeValue],
    inputs: Sequence[TensorLayout | None],
    outputs: Sequence[TensorLayout],
    variant: str = "",
) -> OpCall:
    """The call of these layouts. Every row has at least one token, so that none has more than tokens - rows + 1."""
    if not has_slots(spec):
        return OpCall(spec, tuple(inputs), tuple(outputs), attributes, variant=variant)
    begin, end = _about_rows(spec)
    slots = _known(inputs[spec.input_index(STATE_INDICES.name)]).shape
    tokens = next(
        _known(given).shape[0] for tensor, given in zip(spec.inputs, inputs, strict=True) if is_packed(tensor)
    )
    rows = PackedRows(slots[0], max(1, tokens - slots[0] + 1), draft_slots=slots[1] if len(slots) > 1 else 0)
    # Dense rows would have context_lengths there.
    return OpCall(OPS[spec.name], (*inputs[:begin], None, *inputs[end:]), tuple(outputs), attributes, rows, variant)


def plugin_plan(spec: OpSpec, plan: CallPlan) -> CallPlan:
    """``plan``, of a ``kernel_call``, with the pointers of a plugin's inputs as they come."""
    if not has_slots(spec):
        return plan
    begin, end = _about_rows(spec)

    def moved(source: PointerSource) -> PointerSource:
        if source.memory is Memory.PACKED:
            return replace(source, memory=Memory.INPUT, index=begin + source.index)
        if source.memory is Memory.INPUT and source.index > begin:
            return replace(source, index=source.index + end - begin - 1)
        return source

    launches = [
        replace(launch, pointers={field: moved(source) for field, source in launch.pointers.items()})
        for launch in plan.launches
    ]
    return replace(plan, launches=tuple(launches))


def _about_rows(spec: OpSpec) -> tuple[int, int]:
    """The first input about rows, and the one behind the last: they are neighbours."""
    indices = [index for index, tensor in enumerate(spec.inputs) if tensor.name in _ABOUT_ROWS]
    return indices[0], indices[-1] + 1


def _known(layout: TensorLayout | None) -> TensorLayout:
    assert layout is not None, "a plugin has all its inputs"
    return layout
