"""Kernels of ``update_ssm_state`` for several tokens per row: chunks of 64 tokens as matrices on tensor cores.

Every length runs in chunks; there is no loop over tokens. The measurements behind the choices:
docs/explanation/kernels/update_ssm_state_prefill.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill_call import Scan
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill_mma import mma_sources, plan_mma
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill_registers import (
    plan_registers,
    registers_sources,
    takes_registers,
)
from hybridge.trt_plugins.kernels.ops.update_ssm_state_prefill_wgmma import plan_wgmma, takes, wgmma_sources
from hybridge.trt_plugins.kernels.source import KernelSource

MMA = "mma"


def plan_prefill(call: OpCall, device: DeviceTraits, gate: TensorLayout | None = None) -> CallPlan:
    """The launches that run ``call`` with any number of tokens per row.

    gate: y is multiplied by SiLU of it; [..., heads * head_dim], the caller adds its pointer as "gate".
    UnsupportedError for sizes outside of the operator's limits, tensors whose last axes are not contiguous, or more
    than 65,535 rows.
    """
    scan = Scan.of(call, gate)
    if call.variant != MMA and takes(scan, device):
        return plan_wgmma(scan, device)
    return plan_registers(scan, device) if takes_registers(scan, device) else plan_mma(scan, device)


def prefill_sources() -> Iterator[KernelSource]:
    """A representative set of the variants that ``plan_prefill`` chooses from."""
    yield from mma_sources()
    yield from registers_sources()
    yield from wgmma_sources()
