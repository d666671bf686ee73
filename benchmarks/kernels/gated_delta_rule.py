"""Cases of ``gated_delta_rule``: bfloat16 data, with a state updated in place.

One decay a head at the shape of Qwen3-Next, one a key channel at that of Kimi Linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch

from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.packages import fla, flash_qla, flashinfer
from benchmarks.kernels.peers import Peer, package_peers
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import error_of_parts, normal, operator_call, poisoned, worst_error
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.ops.gated_delta_rule import LONGEST_WALK
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from hybridge.trt_plugins.reference.quantized_state import LARGEST, exact_state, quantized_state

KEY_HEADS, VALUE_HEADS, SIZE = 16, 32, 128
CHANNELS_SINCE, CHANNELS_SHARE = 64, 0.9
TOLERANCE = 3e-3  # o is bfloat16
AT_LEAST = {1: 1.2, 8: 1.2}
NORMALIZED = "(q, k already normalised)"
PREFILL_AT_LEAST = {"b1 L16384": 1 / 0.95}
BANDWIDTH_SINCE, BANDWIDTH_SHARE = 256, 0.92
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}
STATES_8BIT = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn}
# int8 is rounded to 1/254 of its column's largest magnitude, e4m3 to 1/16 of the value. With a decay for each key
# channel the rows of a state differ in size after many steps, and the largest sets the unit of all.
TOLERANCE_8BIT = {torch.int8: 1e-2, torch.float8_e4m3fn: 3.5e-2}
CHANNELS_TOLERANCE_8BIT = {**TOLERANCE_8BIT, torch.int8: 2.5e-2}
_CHECKED_TOKENS = 4096  # of the first row at a time, to limit the memory of the float64 reference
# From q, k, v, g, beta and the state: what enqueues a call and returns o and the state after it.
Call = Callable[..., Callable[[], Sequence[torch.Tensor]]]


def decode_cases() -> Iterator[KernelCase]:
    """One token in 1 to 256 rows, with states in float32, bfloat16, int8 and e4m3."""
    for rows in (1, 8, 64, 256):
        for name, dtype in STATES.items():
            case = f"b{rows} {name} state"
            share = BANDWIDTH_SHARE if rows >= BANDWIDTH_SINCE else None
            yield _case(case, [1] * rows, dtype, AT_LEAST.get(rows, 1.0), share)
        for name, dtype in STATES_8BIT.items():
            yield _case(f"b{rows} {name} state", [1] * rows, dtype)


def prefill_cases() -> Iterator[KernelCase]:
    """One row of 1,024 to 16,384 tokens, eight rows of 1,024; rows of 0 to 1,024; rows of 0 to 8, which are walked."""
    for rows, time in ((1, 1024), (1, 4096), (1, 16384), (8, 1024)):
        case = f"b{rows} L{time}"
        at_least = PREFILL_AT_LEAST.get(case, 1.0)
        yield _case(case, [time] * rows, torch.float32, partial(_prompt_goal, at_least))
    for rows, time, name in ((8, 1024, "f32"), (64, LONGEST_WALK, "f32"), (64, LONGEST_WALK, "bf16")):
        lengths = [time * row // (rows - 1) for row in range(rows)]
        yield _case(f"b{rows} L0-{time} {name} state", lengths, STATES[name])


def _prompt_goal(at_least: float, peers: Mapping[str, float]) -> float:
    """The goal for the fastest peer's time over ours: ``at_least`` for peers that normalise q and k, as ours does."""
    same = [us for name, us in peers.items() if NORMALIZED not in name]
    return at_least * min(peers.values()) / min(same or peers.values())


def channel_decode_cases() -> Iterator[KernelCase]:
    """As ``decode_cases``, with a decay for each key channel."""
    for rows in (1, 8, 64, 256):
        for name, dtype in STATES.items():
            share = CHANNELS_SHARE if rows >= CHANNELS_SINCE else None
            yield _case(f"b{rows} {name} state", [1] * rows, dtype, share=share, channels=True)
        for name, dtype in STATES_8BIT.items():
            yield _case(f"b{rows} {name} state", [1] * rows, dtype, channels=True)


def channel_prefill_cases() -> Iterator[KernelCase]:
    """One row of 1,024 and 4,096 tokens and eight of 1,024, with a decay for each key channel."""
    for rows, time in ((1, 1024), (1, 4096), (8, 1024)):
        yield _case(f"b{rows} L{time}", [time] * rows, torch.float32, at_least=1.0, channels=True)


def _case(
    case: str,
    lengths: list[int],
    state: torch.dtype,
    at_least: float | Callable[[Mapping[str, float]], float] | None = None,
    share: float | None = None,
    channels: bool = False,
) -> KernelCase:
    """q, k, v and o in bfloat16, g in float32 and beta in bfloat16; states of rows with tokens, both ways."""
    key_heads, decays = (VALUE_HEADS, SIZE) if channels else (KEY_HEADS, 1)
    tokens = sum(lengths) * (2 * SIZE * (2 * key_heads + 2 * VALUE_HEADS) + (2 + 4 * decays) * VALUE_HEADS)
    states = 2 * sum(length > 0 for length in lengths) * VALUE_HEADS * SIZE * SIZE * state.itemsize
    if state in LARGEST:  # and a scale a column
        states += 8 * len(lengths) * VALUE_HEADS * SIZE
    prepare = partial(_prepared, lengths, state, channels)
    tolerance = (CHANNELS_TOLERANCE_8BIT if channels else TOLERANCE_8BIT).get(state, TOLERANCE)
    return KernelCase(
        case,
        tokens + states,
        tolerance,
        prepare,
        at_least,
        share,
        partial(_peers, lengths, state, channels),
    )


def _peers(lengths: list[int], state: torch.dtype, channels: bool) -> Mapping[str, Peer]:
    """Of rows of equal lengths."""
    if min(lengths) != max(lengths) or state in LARGEST:
        return {}
    found: dict[str, Peer] = {}
    for package, calls in (_prompt_calls(channels) if max(lengths) > 1 else _step_calls(channels, state)).items():
        prepares = {name: partial(_prepared, lengths, state, channels, call) for name, call in calls.items()}
        found |= package_peers(package.DISTRIBUTION, prepares, package.NAME)
    # Those that do less than ours are not variants of those that do the same.
    return {name: replace(peer, package=NORMALIZED) if NORMALIZED in name else peer for name, peer in found.items()}


def _step_calls(channels: bool, state: torch.dtype) -> dict[ModuleType, dict[str, Call]]:
    """By package and variant: those that leave the state in its type."""
    wide = state is torch.float32
    if channels:
        calls = {fla: fla.channel_delta_step} | ({} if wide else {flashinfer: flashinfer.channel_delta_step})
    else:
        calls = {flashinfer: flashinfer.gated_delta_step} | ({fla: fla.gated_delta_step} if wide else {})
    return {package: {"": call} for package, call in calls.items()}


def _prompt_calls(channels: bool) -> dict[ModuleType, dict[str, Call]]:
    """By package and variant."""
    if channels:
        # Each of our decays is above exp(-5), which is what "safe gate" asks for.
        bounded = partial(fla.channel_delta_prompt, bounded=True)
        return {fla: {"": fla.channel_delta_prompt, "safe gate": bounded}}
    prompt = flashinfer.gated_delta_prompt
    variants: dict[str, Call] = {"": prompt, "whole rows": partial(prompt, use_cp=False)}
    normalized: dict[str, Call] = {
        f"{name} {NORMALIZED}".strip(): partial(call, normalized=True) for name, call in variants.items()
    }
    return {
        fla: {"": fla.gated_delta_prompt},
        flash_qla: {"": flash_qla.gated_delta_prompt},
        flashinfer: variants | normalized,
    }


def token_inputs(*lead: int, channels: bool = False) -> list[torch.Tensor]:
    """q, k, v, g and beta with these first axes; q, k and v are slices of one convolution's output.

    channels: a decay for each key channel, and as many key heads as value heads.
    """
    keys, values = (VALUE_HEADS if channels else KEY_HEADS) * SIZE, VALUE_HEADS * SIZE
    q, k, v = normal(*lead, 2 * keys + values, dtype=torch.bfloat16).split([keys, keys, values], -1)
    # Of 16-bit data, so that peers which compute g themselves can have the same.
    raw = (normal(*lead, VALUE_HEADS, SIZE if channels else 1) - 2.0).to(torch.bfloat16)
    g = -torch.nn.functional.softplus(raw.float())
    beta = torch.sigmoid(normal(*lead, VALUE_HEADS)).to(torch.bfloat16)
    return [*(tensor.unflatten(-1, (-1, SIZE)) for tensor in (q, k, v)), g, beta]


def _prepared(
    row_lengths: list[int], state_type: torch.dtype, channels: bool = False, call: Call | None = None
) -> Prepared:
    """The form without a token axis for one token. call: a peer's, None for ours."""
    rows, time = len(row_lengths), max(row_lengths)
    inputs = token_inputs(*((rows, time) if time > 1 else (rows,)), channels=channels)
    state = normal(rows, VALUE_HEADS, SIZE, SIZE)
    lengths = torch.tensor(row_lengths, dtype=torch.int32, device="cuda")
    scales: list[torch.Tensor] = []
    if state_type in LARGEST:
        state, *scales = quantized_state(state, state_type, -2)
    state = state.to(state_type)
    decay = "key_channel" if channels else "head"
    spec = spec_of("gated_delta_rule_8bit" if scales else "gated_delta_rule")
    if call:
        run = call(*inputs, state)
    else:
        o = poisoned(*inputs[2].shape)
        run = operator_call(spec, [*inputs, state, *scales, lengths], [o, state, *scales], {"decay": decay})
    # All rows, or only the first where all are equally long.
    checked = 1 if time > 1 and min(row_lengths) == time else rows

    def exact(state: torch.Tensor) -> torch.Tensor:
        return exact_state(state, scales[0], -2) if scales else state[:checked].double()

    def error() -> float:
        carried, parts = exact(state), []
        o, last = run()[:2]
        for begin in range(0, time, _CHECKED_TOKENS):
            part = (slice(checked), slice(begin, begin + _CHECKED_TOKENS)) if time > 1 else (slice(checked),)
            here = (lengths[:checked] - begin).clamp(0, _CHECKED_TOKENS)
            arguments: list[Any] = [*(each[part].double() for each in inputs), carried, here, decay, 1, 0.0, 64]
            expected, carried = gated_delta_rule(*arguments)
            # The values of o after the end of a row are unspecified.
            ended = torch.arange(expected.shape[1], device="cuda") >= here[:, None] if time > 1 else here == 0
            parts.append([each.masked_fill(ended[..., None, None], 0.0) for each in (o[part], expected)])
        return max(error_of_parts(parts), worst_error([exact(last)], [carried]))

    return Prepared(run, error)
