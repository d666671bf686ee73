"""Heads of 576 of ``paged_attention``, which latent attention has, on the GPU, against the float64 reference.

Outputs are full of NaN before, and so is every place of the pool that no token of a row sees.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hybridge.trt_plugins.kernels.architectures import HOPPER
from hybridge.trt_plugins.kernels.call import OpCall, PackedRows
from hybridge.trt_plugins.kernels.ops.paged_attention import plan
from tests.kernels.test_paged_attention_decode_gpu import BF16, F16, NAN, TOLERANCE, Case, inputs_of, reference
from tests.support.kernel_calls import layout_of, run_plan

pytestmark = pytest.mark.gpu

LATENT = Case(kv_heads=1, group=32, head_dim=576, parts=1)


def check(case: Case, **planned_for: object) -> None:
    """planned_for: traits of another GPU that the launch is planned for."""
    inputs, spec = inputs_of(case), case.op
    assert inputs[0] is not None
    y = torch.full(inputs[0].shape, NAN, dtype=case.dtype, device="cuda")
    layouts = tuple(None if tensor is None else layout_of(tensor) for tensor in inputs)
    packed = PackedRows(len(case.lengths), 1, False) if case.one_token_rows else None
    call = OpCall(spec, layouts, (layout_of(y),), spec.complete_attributes(case.attributes), packed)
    planned = plan(call, replace(case.traits, **planned_for))  # type: ignore[arg-type]
    entry = "paged_attention_wide" if planned_for or case.traits.capability != HOPPER else "paged_attention_wide_wgmma"
    assert planned.launches[0].source.entry == entry
    run_plan(planned, inputs, [y])
    attends = [length > 0 for length, new in zip(case.lengths, case.tokens, strict=True) for _ in range(new)]
    found, expected = y[attends].double(), reference(case, inputs)[attends]
    error = float((found - expected).norm() / expected.norm())
    assert error <= TOLERANCE[case.dtype], f"relative error {error:.3g}"


@pytest.mark.parametrize("processors", [1, 15, 400])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("group", [1, 20, 32, 128])
def test_one_token_a_row(group, dtype, processors):
    """Positions are not split, or between a few or many blocks."""
    check(replace(LATENT, group=group, dtype=dtype, processors=processors, one_token_rows=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"sinks": True},
        {"softcap": 20.0},
        {"sliding_window": 33},
        {"sliding_window": 100, "sinks": True, "softcap": 5.0},
        {"kv_heads": 2, "group": 4},
        {"block_size": 64},
        {"gap": 64},
        {"scale": 0.07},
    ],
    ids=str,
)
@pytest.mark.parametrize("new", [(1, 1, 0, 1, 1), (70, 1, 0, 3, 40)], ids=["decode", "prompts"])
@pytest.mark.parametrize("processors", [1, 0])
def test_one_factor(changes, new, processors):
    lengths = (200, 1, 0, 65, 1030)
    check(replace(LATENT, **{"lengths": lengths, "new": new, "group": 20, "processors": processors, **changes}))


@pytest.mark.parametrize("length", [1, 15, 16, 31, 32, 33, 64, 65, 500])
def test_lengths_of_prompts(length):
    check(replace(LATENT, lengths=(length, length + 7), new=(length, 1)))


@pytest.mark.parametrize("new", [(2, 1, 0, 1, 0), (0, 0, 0, 5, 0), (1, 0, 0, 0, 4)], ids=str)
@pytest.mark.parametrize("group", [7, 40])
def test_no_more_tokens_than_rows(group, new):
    """They are planned as rows of one token each; some rows have several, others none."""
    check(replace(LATENT, lengths=(200, 1, 0, 65, 1030), new=new, group=group))


# An A100; shared memory of a block on an Orin, and on GPUs of sm_86, sm_89 and sm_120.
@pytest.mark.parametrize("traits", [{"capability": (8, 0)}, {"shared_bytes": 163 << 10}, {"shared_bytes": 99 << 10}])
@pytest.mark.parametrize("changes", [{}, {"new": (70, 1, 0, 3, 40), "softcap": 5.0}], ids=str)
def test_other_gpus(changes, traits):
    check(replace(LATENT, group=20, **changes), **traits)
