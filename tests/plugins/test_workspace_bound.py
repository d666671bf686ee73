"""No call that a profile admits needs more workspace than was requested, on any GPU of the target."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.architectures import CHECKED
from hybridge.trt_plugins.kernels.call import DeviceTraits
from hybridge.trt_plugins.kernels.catalog import dense_operators, plan
from hybridge.trt_plugins.plugins.calls import CallRange, largest_workspace
from hybridge.trt_plugins.plugins.targets import traits_from_capability
from hybridge.trt_plugins.specs.packed import PACKED_VERSION
from hybridge.trt_plugins.specs.speculative import SPECULATIVE_VERSION
from tests.support.effort import examples
from tests.support.kernel_calls import capability_from_architecture

MOST = {"batch": 6, "time": 700, "tokens": 300, "rows": 40, "row_bounds": 41}
SIZES = {
    "heads": 12,
    "head_dim": 32,
    "groups": 2,
    "state_size": 64,
    "conv_dim": 640,
    "inner": 384,
    "channels": 384,
    "kernel": 4,
    "key_heads": 6,
    "value_heads": 12,
    "key_size": 64,
    "value_size": 32,
    "decay_size": 1,
    "num_slots": 50,
    "draft_slots": 4,
}
BF16, F32 = DType.BFLOAT16, DType.FLOAT32


def call_range(op: str, version: int = 1) -> CallRange:
    """bfloat16 data, float32 for other type variables, 1 to MOST rows and tokens."""
    spec = spec_of(op, version)
    used = {dim for tensor in spec.inputs for dim in tensor.dims_for(True) if isinstance(dim, str)}
    known = {name: (size, size) for name, size in SIZES.items()} | {name: (1, most) for name, most in MOST.items()}
    types = tuple((variable.name, BF16 if variable.name == "T" else F32) for variable in spec.type_variables)
    dims = tuple((name, known[name]) for name in sorted(used))
    return CallRange(spec, tuple(spec.complete_attributes({}).items()), types, dims, has_time=True)


@pytest.mark.parametrize("op", dense_operators())
@given(
    batch=st.integers(1, MOST["batch"]),
    time=st.integers(1, MOST["time"]),
    multiprocessors=st.integers(1, 200),
    architecture=st.sampled_from(CHECKED),
)
@settings(max_examples=examples(60), deadline=None)
def test_workspace_is_enough(op: str, batch: int, time: int, multiprocessors: int, architecture: str) -> None:
    capability = capability_from_architecture(architecture)
    known = traits_from_capability(capability)[0]
    device = DeviceTraits(capability, multiprocessors, known.shared_bytes, known.l2_bytes)
    calls = call_range(op)
    requested = largest_workspace(calls, (f"{capability[0]}.{capability[1]}",), plan)
    needed = plan(calls.call({**SIZES, "batch": batch, "time": time}), device).workspace_bytes
    assert needed <= requested


@pytest.mark.parametrize(
    ("op", "version"),
    [
        *((op, PACKED_VERSION) for op in dense_operators()),
        # No kernel has snapshots of a joined mixer's states.
        *((op, SPECULATIVE_VERSION) for op in dense_operators() if op != "mamba2_conv_scan"),
    ],
)
@given(
    tokens=st.integers(1, MOST["tokens"]),
    rows=st.integers(1, MOST["rows"]),
    multiprocessors=st.integers(1, 192),
    architecture=st.sampled_from(CHECKED),
)
@settings(max_examples=examples(25), deadline=None)
def test_workspace_of_packed_rows_is_enough(
    op: str, version: int, tokens: int, rows: int, multiprocessors: int, architecture: str
) -> None:
    capability = capability_from_architecture(architecture)
    known = traits_from_capability(capability)[0]
    device = DeviceTraits(capability, multiprocessors, known.shared_bytes, known.l2_bytes)
    calls, rows = call_range(op, version), min(rows, tokens)
    requested = largest_workspace(calls, (f"{capability[0]}.{capability[1]}",), plan)
    call = calls.call({**SIZES, "tokens": tokens, "rows": rows, "row_bounds": rows + 1})
    assert call.packed is not None and call.packed.rows == rows and call.packed.max_row_tokens == tokens - rows + 1
    assert plan(call, device).workspace_bytes <= requested


@given(
    tokens=st.integers(1, 300),
    rows=st.integers(1, 40),
    max_blocks=st.integers(1, 600),
    multiprocessors=st.integers(1, 192),
    architecture=st.sampled_from(CHECKED),
)
@settings(max_examples=examples(40), deadline=None)
def test_workspace_of_pages_is_enough(
    tokens: int, rows: int, max_blocks: int, multiprocessors: int, architecture: str
) -> None:
    capability = capability_from_architecture(architecture)
    known = traits_from_capability(capability)[0]
    device = DeviceTraits(capability, multiprocessors, known.shared_bytes, known.l2_bytes)
    spec = spec_of("paged_attention", PACKED_VERSION)
    sizes = {"heads": 16, "kv_heads": 4, "head_dim": 64, "block_size": 16, "num_blocks": 900, "parts": 2}
    most = {"tokens": 300, "rows": 40, "row_bounds": 41, "max_blocks": 600}
    dims = tuple({**{n: (s, s) for n, s in sizes.items()}, **{n: (1, size) for n, size in most.items()}}.items())
    calls = CallRange(spec, tuple(spec.complete_attributes({}).items()), (("T", BF16),), dims, has_time=False)
    requested = largest_workspace(calls, (f"{capability[0]}.{capability[1]}",), plan)
    call = calls.call({**sizes, "tokens": tokens, "rows": rows, "row_bounds": rows + 1, "max_blocks": max_blocks})
    assert plan(call, device).workspace_bytes <= requested
