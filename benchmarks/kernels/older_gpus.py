"""Kernels for GPUs before Hopper, on this one, beside those that it runs: calls planned for another capability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.kernels import gated_delta_rule, paged_attention, products, update_ssm_state
from benchmarks.kernels.case import KernelCase
from benchmarks.kernels.peers import Peer
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.tensor_call import planned_for

PEER = "kernels of this GPU"
AT_LEAST = 1 / 1.5
# Multiprocessors and L2 are those of this GPU, which also runs the code: sm_86 stands for every GPU with 99 KiB.
GPUS: Mapping[str, Mapping[str, Any]] = {
    "sm_80": {"capability": (8, 0), "shared_bytes": 163 << 10},
    "sm_86": {"capability": (8, 6), "shared_bytes": 99 << 10},
}
# Of all cases, those whose kernels are others there, without the ones that say the same again.
CASES: tuple[tuple[str, Callable[[], Iterator[KernelCase]], str, tuple[str, ...]], ...] = (
    ("gated_delta_rule", gated_delta_rule.prefill_cases, "sm_80", ("b1 L1024", "b1 L4096", "b1 L16384", "b8 L1024")),
    (
        "update_ssm_state",
        update_ssm_state.prefill_cases,
        "sm_80",
        tuple(f"{model} {size}" for model in update_ssm_state.MODELS for size in ("b1 L1024", "b1 L4096", "b8 L1024")),
    ),
    (
        "paged_attention",
        paged_attention.prefill_cases,
        "sm_80",
        (*paged_attention.PREFILLS, "e4m3 b1 L4096", "e4m3 b8 L512", "latents b1 L4096"),
    ),
    ("paged_attention", paged_attention.prefill_cases, "sm_86", ("b1 L4096", "b8 L512", "b1 L512 on 8192")),
    ("paged_attention", paged_attention.decode_cases, "sm_80", ("latents 8k b64",)),
    (
        "linear_decode",
        products.linear_cases,
        "sm_80",
        tuple(
            f"{name} m{rows}" for rows in (1, 8) for name in ("in_proj 4096x18560", "down 21504x4096", "all of a step")
        ),
    ),
)


def cases() -> Iterator[KernelCase]:
    """Prompts of each operator that has warpgroup products, and few-row products; the goal is the time on this GPU."""
    for operator, found, gpu, names in CASES:
        own = {case.name: case for case in found()}
        for name in names:
            yield _older(own[name], f"{operator} {name}, {gpu}", GPUS[gpu])


def _older(case: KernelCase, name: str, traits: Mapping[str, Any]) -> KernelCase:
    def prepare() -> Prepared:
        with planned_for(**traits):
            return case.prepare()

    return replace(
        case,
        name=name,
        prepare=prepare,
        at_least=AT_LEAST,
        bandwidth_share=None,
        peers=lambda: {PEER: Peer(case.prepare, case.tolerance)},
    )
