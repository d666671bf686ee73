"""Recurrent operators over states of 8 bits on a GPU: their own kernel for rows of one token, where there is one.

All other calls run the kernels of float32 states on a copy of the states, which is then rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.node_context import NodeContext, Run
from hybridge.runtime.engines.torch.ops.packed import PackedCall, SpeculativeCall, packed_operator_of
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import PackedRows
from hybridge.trt_plugins.reference.quantized_state import quantized_state
from hybridge.trt_plugins.reference.state_8bit import STORED
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS
from hybridge.trt_plugins.specs.speculative import NUM_ACCEPTED_TOKENS, is_speculative
from hybridge.trt_plugins.specs.state_8bit import STATE, STATE_SCALES, scale_axis
from hybridge.trt_plugins.specs.state_forms import base_name


def dense_call(spec: OpSpec, wide: Callable[..., tuple[torch.Tensor, ...]]) -> Run:
    """``spec``, a dense operator, by ``wide``, the same over float32 states. Rows without tokens keep their bits."""
    state, scales, axis = spec.input_index(STATE), spec.input_index(STATE_SCALES), scale_axis(spec)
    lengths = spec.input_index(CONTEXT_LENGTHS.name)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = tensors[state], tensors[scales]
        y, last = wide(*tensors[:state], _widened(*before, axis), *tensors[scales + 1 :])
        return (y, *_rounded(last, *before, tensors[lengths] > 0, axis))

    return run


def packed_operator(context: NodeContext, spec: OpSpec) -> Run:
    """The runner of a node of ``spec``, the packed or the speculative form of an operator over states of 8 bits."""
    return packed_operator_of(context, spec, Packed8BitCall, Speculative8BitCall)


class _Call8Bit(PackedCall):
    """What both forms share."""

    def __init__(
        self, spec: OpSpec, attributes: dict, kernels: KernelRunner | None, in_place: tuple[bool, ...], *more: bool
    ) -> None:
        super().__init__(spec, attributes, kernels, in_place, *more)
        self._kernels = kernels
        wide = spec_of(base_name(spec.name), spec.version)
        self._state, self._scales = spec.input_index(STATE), spec.input_index(STATE_SCALES)
        self._axis = scale_axis(spec)
        form = SpeculativeCall if is_speculative(spec) else PackedCall
        self._wide = form(wide, attributes, kernels, in_place[:2], *more)

    def launched(self, tensors: list[torch.Tensor | None], outputs: list[torch.Tensor], rows: StepRows) -> bool:
        own = self._own_part(rows)
        calls = self._prepared(tensors, outputs, own) if own else None
        first = rows.split if calls else 0
        if first < rows.rows and not self._launched_wide(tensors, outputs, rows, first):
            return False
        self._run(calls or [])
        return True

    def _own_part(self, rows: StepRows) -> list[tuple[int, PackedRows]]:
        """The rows that a kernel over states of 8 bits may run."""
        return [(0, PackedRows(rows.split, 1))] if rows.split else []

    def _launched_wide(
        self, tensors: list[torch.Tensor | None], outputs: list[torch.Tensor], rows: StepRows, first: int
    ) -> bool:
        """Run the rows from ``first`` on over float32 states; False, and nothing was done, without kernels for them."""
        values, scales, slots = (tensors[index] for index in (self._state, self._scales, self._slots))
        assert values is not None and scales is not None and slots is not None
        slots, bounds = slots[first:], rows.bounds[first:]
        # Where there is no slot, the last one is read and written, which no sequence has.
        flat = slots.flatten()
        index = torch.where(flat < 0, values.shape[0] - 1, flat).long()
        before = values.index_select(0, index), scales.index_select(0, index)
        wide = _widened(*before, self._axis)
        inputs = list(tensors)
        inputs[self._state], inputs[self._bounds] = wide, bounds
        numbers = torch.arange(slots.numel(), dtype=slots.dtype, device=slots.device).view_as(slots)
        inputs[self._slots] = torch.where(slots < 0, -1, numbers)
        accepted = None
        if is_speculative(self._spec):
            place = self._spec.input_index(NUM_ACCEPTED_TOKENS.name)
            given = tensors[place]
            assert given is not None
            inputs[place] = accepted = given[first:]
        del inputs[self._scales]
        part = StepRows(bounds, None, None, 0, rows.longest)
        if not self._wide.launched(inputs, [outputs[0], wide], part):
            return False
        written = _written(bounds.diff(), slots, accepted)
        new, new_scales = _rounded(wide, *before, written, self._axis)
        values.index_copy_(0, index, new)
        scales.index_copy_(0, index, new_scales)
        return True


class Packed8BitCall(_Call8Bit):
    """The packed form."""


class Speculative8BitCall(_Call8Bit, SpeculativeCall):
    """The speculative form: all rows are one call, whose states are rounded where they are stored."""

    def _own_part(self, rows: StepRows) -> list[tuple[int, PackedRows]]:
        return []


def _written(counts: torch.Tensor, slots: torch.Tensor, accepted: torch.Tensor | None) -> torch.Tensor:
    """Which of the ``slots``, flattened, a call writes, from the numbers of new tokens of its rows."""
    if accepted is None:
        return counts > 0
    columns = torch.arange(slots.shape[1], device=slots.device)
    read = columns == (accepted.clamp(1, len(columns)) - 1)[:, None]
    written = torch.where((counts <= len(columns))[:, None], columns < counts[:, None], read)
    has_slot = ((slots >= 0) & read).any(1, keepdim=True)
    return (written & has_slot).flatten()


def _widened(values: torch.Tensor, scales: torch.Tensor, axis: int) -> torch.Tensor:
    return values.view(STORED[values.dtype]).float() * scales.unsqueeze(axis)


def _rounded(
    last: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, written: torch.Tensor, axis: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 states ``last`` and their scales where ``written`` [rows], else ``values`` and ``scales``."""
    new, new_scales = quantized_state(last, STORED[values.dtype], axis)
    mask = written[:, None, None]
    return torch.where(mask.unsqueeze(-1), new.view(values.dtype), values), torch.where(mask, new_scales, scales)
