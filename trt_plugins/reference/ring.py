"""Eager form of the recurrent operators whose states have rings (specs/ring.py), over rows of at most one token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from hybridge.trt_plugins.reference.gated_delta_rule import NORM_EPSILON
from hybridge.trt_plugins.reference.precision import work_dtype
from hybridge.trt_plugins.reference.update_ssm_state import time_step
from hybridge.trt_plugins.specs.gated_delta_rule import GATED_DELTA_RULE
from hybridge.trt_plugins.specs.ring import RING
from hybridge.trt_plugins.specs.update_ssm_state import UPDATE_SSM_STATE


def ring_step(
    operator: str,
    dense: Callable[..., tuple[Tensor, Tensor]],
    inputs: Sequence[Tensor],
    ring: Sequence[Tensor],
    lengths: Tensor,
    attributes: Mapping[str, object],
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """One token a row.

    Args:
        dense: the eager form of the operator. inputs: its inputs [rows, ...] without a token axis.
        ring: [rows, ...], as RINGS says. lengths: [rows], tokens in each row's ring.

    Returns:
        The output of the tokens, the state, and the ring; the caller sets the length of a full ring (RING - 1) to 0,
        and adds 1 to that of the others.
    """
    name = "state"
    index = _SPECS[operator].input_index(name)
    given = list(inputs)
    state = given[index]
    given[index] = before = flushed_state(operator, state, ring, lengths)
    y, after = dense(*given, *attributes.values())
    entry = _ENTRIES[operator](given, before, attributes)
    full = lengths >= RING - 1
    rows = torch.arange(len(lengths), device=lengths.device)
    added = []
    for tensor, value in zip(ring, entry, strict=True):
        grown = tensor.clone()
        grown[rows, :, lengths.long()] = value.to(tensor.dtype)
        added.append(torch.where(full[:, None, None, None], tensor, grown))
    return y, torch.where(full[:, None, None, None], after.to(state.dtype), state), added


def flushed_state(operator: str, state: Tensor, ring: Sequence[Tensor], lengths: Tensor) -> Tensor:
    """The states [rows, ...] after the tokens of their rings, in the type that computes states."""
    left, right, log_decay = _UPDATES[operator](ring, state.shape[1])
    found = state.to(work_dtype(state))
    for token in range(RING):
        decayed = log_decay[:, :, token].to(found.dtype).exp().unsqueeze(-1) * found
        added = left[:, :, token].to(found.dtype).unsqueeze(-1) * right[:, :, token].to(found.dtype).unsqueeze(-2)
        found = torch.where((token < lengths)[:, None, None, None], decayed + added, found)
    return found


def _ssm_update(ring: Sequence[Tensor], heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The two vectors [rows, heads, RING, size] whose outer product each token adds, and the log decays."""
    x, B, steps = ring
    log_decay, step = steps.split(1, -1)
    return x * step, B.repeat_interleave(heads // B.shape[1], 1), log_decay


def _delta_update(ring: Sequence[Tensor], heads: int) -> tuple[Tensor, Tensor, Tensor]:
    k, written, decays = ring
    return k.repeat_interleave(heads // k.shape[1], 1), written, decays


def _ssm_entry(inputs: Sequence[Tensor], state: Tensor, attributes: Mapping[str, object]) -> tuple[Tensor, ...]:
    """The ring's entry for a token; ``state``: before the token."""
    x, A, B, _, _, dt, bias = inputs[:7]
    softplus, least, most = (attributes[name] for name in ("dt_softplus", "time_step_min", "time_step_max"))
    assert isinstance(softplus, int) and isinstance(least, float) and isinstance(most, float)
    step = time_step(dt.to(state.dtype) + bias.to(state.dtype), softplus, least, most)
    return x, B, torch.stack((step * A.to(state.dtype), step), -1)


def _delta_entry(inputs: Sequence[Tensor], state: Tensor, attributes: Mapping[str, object]) -> tuple[Tensor, ...]:
    _, k, v, g, beta = inputs[:5]
    keys = k.to(state.dtype).repeat_interleave(v.shape[1] // k.shape[1], 1)
    inverse = torch.rsqrt(keys.square().sum(-1, keepdim=True) + NORM_EPSILON)
    if not attributes["use_qk_l2norm"]:
        inverse = torch.ones_like(inverse)
    decayed = g.to(state.dtype).exp().unsqueeze(-1) * state
    read = (keys * inverse).unsqueeze(-2) @ decayed
    difference = v.to(state.dtype) - read.squeeze(-2)
    return k, beta.to(state.dtype).unsqueeze(-1) * difference * inverse, g


_SPECS = MappingProxyType({spec.name: spec for spec in (UPDATE_SSM_STATE, GATED_DELTA_RULE)})
_UPDATES = MappingProxyType({UPDATE_SSM_STATE.name: _ssm_update, GATED_DELTA_RULE.name: _delta_update})
_ENTRIES = MappingProxyType({UPDATE_SSM_STATE.name: _ssm_entry, GATED_DELTA_RULE.name: _delta_entry})
