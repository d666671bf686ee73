"""Eager form of the recurrent operators over states with rings, as exported graphs have them (specs/state_ring.py)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hybridge.artifact.state_rings import RING_LENGTHS
from hybridge.trt_plugins.reference.lengths import clamped_lengths
from hybridge.trt_plugins.reference.ring import flushed_state, ring_step
from hybridge.trt_plugins.reference.speculative import slots_of_rows, speculative_reference
from hybridge.trt_plugins.spec import OpSpec, TensorSpec
from hybridge.trt_plugins.specs.ring import RING
from hybridge.trt_plugins.specs.state_ring import STATE


def ring_reference(spec: OpSpec, plain: OpSpec, dense: Callable[..., tuple[Tensor, Tensor]]) -> Callable:
    """The eager form of ``spec``, the form of ``plain`` over states with rings, from ``dense``, that of ``plain``."""
    state, lengths_at = spec.input_index(STATE), spec.input_index(RING_LENGTHS)
    attributes_from = len(spec.inputs)

    def eager(*arguments: object) -> tuple[Tensor, ...]:
        tensors = [value for value in arguments[:attributes_from] if isinstance(value, Tensor)]
        before, ring, given = tensors[state], tensors[state + 1 : lengths_at], tensors[lengths_at]
        inputs, values = [*tensors[: state + 1], *tensors[lengths_at + 1 :]], arguments[attributes_from:]
        time = inputs[0].shape[1] if inputs[0].ndim == len(plain.inputs[0].dims) else 1
        counts = clamped_lengths(inputs[-1], time)
        stored = given[:, 0].clamp(0, RING - 1)
        if time == 1:
            attributes = dict(zip((a.name for a in spec.attributes), values, strict=True))
            one = [_without_time(value, tensor) for value, tensor in zip(inputs, plain.inputs, strict=True)]
            y, after, ring_after = ring_step(plain.name, dense, one, ring, stored, attributes)
            y = y.view(inputs[plain.output_source(plain.outputs[0])].shape)
        else:
            inputs[state] = flushed_state(plain.name, before, ring, stored)
            y, after = dense(*inputs, *values)
            ring_after = ring
        fed = (counts > 0)[:, None, None, None]
        new = torch.where((stored == RING - 1) | (time > 1), 0, stored + 1).to(given.dtype)
        return (
            y,
            torch.where(fed, after.to(before.dtype), before),
            *(torch.where(fed, grown, old) for grown, old in zip(ring_after, ring, strict=True)),
            torch.where(counts > 0, new, given[:, 0])[:, None],
        )

    return eager


def speculative_ring_reference(spec: OpSpec, plain: OpSpec, dense: Callable[..., tuple[Tensor, Tensor]]) -> Callable:
    """The eager form of ``spec``, a speculative declaration over states with rings.

    plain: that of the plain operator, and ``dense`` its dense eager form.
    """
    state, lengths_at = spec.input_index(STATE), spec.input_index(RING_LENGTHS)
    advance = speculative_reference(plain, dense)

    def speculative(*arguments: object) -> tuple[Tensor, ...]:
        inputs, values = arguments[: len(spec.inputs)], arguments[len(spec.inputs) :]
        before, *ring, lengths = (value for value in inputs[state : lengths_at + 1] if isinstance(value, Tensor))
        reads, writes = slots_of_rows(spec, inputs)
        pool, after = before.clone(), lengths.clone()
        own = torch.tensor(reads, dtype=torch.long, device=pool.device)
        stored = lengths[own, 0].clamp(0, RING - 1)
        pool[own] = flushed_state(plain.name, pool[own], [part[own] for part in ring], stored).to(pool.dtype)
        after[[*reads, *writes]] = 0
        y, new = advance(*inputs[:state], pool, *inputs[lengths_at + 1 :], *values)
        return (y, new, *(part.clone() for part in ring), after)

    return speculative


def _without_time(value: Tensor, tensor: TensorSpec) -> Tensor:
    """``value`` of one token without its token axis, if it has one."""
    return value.squeeze(1) if tensor.has_optional_dim and value.ndim == len(tensor.dims) else value
