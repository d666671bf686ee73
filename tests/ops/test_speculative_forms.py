"""The speculative form of every recurrent operator: eager and as ONNX function, against float64 step loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import PACKED_OPS, SPECULATIVE_OPS, spec_of
from hybridge.trt_plugins.specs.packed import is_pool
from hybridge.trt_plugins.specs.speculative import speculative_form
from tests.ops.cases import conv_case, delta_case, scan_case, ssm_case
from tests.ops.oracle import conv_step_loop, delta_step_loop, relative_error, scan_step_loop, ssm_step_loop
from tests.ops.packed_calls import packed_call, packed_model, run_model
from tests.ops.speculative_calls import LENGTHS, SpeculativeCall, pools_after, speculative_call
from tests.ops.test_mamba2_conv_scan import case_of, expected
from tests.ops.test_packed_forms import TOLERANCE, typed_case

LONGEST = max(LENGTHS)
CHANNELS = {"decay": "key_channel"}
Loop = Callable[[Any], tuple[np.ndarray, ...]]
CASES: dict[str, tuple[Callable[[], Any], Loop, dict[str, Any]]] = {
    "causal_conv1d": (
        lambda: conv_case(LENGTHS, LONGEST), lambda case: conv_step_loop(case, "silu"), {"activation": "silu"}
    ),
    "update_ssm_state": (lambda: ssm_case(LENGTHS, LONGEST), ssm_step_loop, {}),
    "gated_delta_rule": (lambda: delta_case(LENGTHS, LONGEST), delta_step_loop, {}),
    "gated_delta_rule channels": (
        lambda: delta_case(LENGTHS, LONGEST, decay="key_channel"), delta_step_loop, CHANNELS
    ),
    "selective_scan": (lambda: scan_case(LENGTHS, LONGEST), scan_step_loop, {}),
    "mamba2_conv_scan": (lambda: case_of(LENGTHS, LONGEST), expected, {}),
}  # fmt: skip
OPERATORS = sorted({name.split()[0] for name in CASES})


def typed(name: str, dtype: str) -> tuple[Any, dict[str, str]]:
    return typed_case(CASES[name][0](), name.split()[0], dtype)


def check(name: str, call: SpeculativeCall, case: Any, found: list[np.ndarray], dtype: str) -> None:
    """Tokens as the step loop has them; every slot that a row writes too, all others bit for bit as they were."""
    spec, loop = SPECULATIVE_OPS[name.split()[0]], CASES[name][1]
    expected_y = loop(case)[0]
    assert relative_error(call.rows.rows_of(found[0], expected_y), expected_y) < TOLERANCE[dtype]
    pools = {tensor.name: call.arrays[tensor.name] for tensor in spec.inputs if is_pool(tensor)}
    written = sorted({slot for slots in call.writes for slot in slots if slot >= 0})
    for value, before, reference in zip(found[1:], pools.values(), pools_after(call, case, pools, loop), strict=True):
        assert before is not None
        for slot in written:
            assert relative_error(value[slot], reference[slot]) < TOLERANCE[dtype], f"slot {slot}"
        others = [slot for slot in range(len(value)) if slot not in written]
        np.testing.assert_array_equal(value[others], before[others].astype(value.dtype))


def tensors_of(call: SpeculativeCall, types: dict[str, str]) -> list[torch.Tensor | None]:
    return [
        None if a is None else torch.from_numpy(a).to(getattr(torch, types.get(name, "int32")))
        for name, a in call.arrays.items()
    ]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_eager_draft_tokens_equal_the_step_loop(name: str, dtype: str) -> None:
    torch_ops.register()
    op, (case, types) = name.split()[0], typed(name, dtype)
    call = speculative_call(op, case)
    attributes = SPECULATIVE_OPS[op].complete_attributes(CASES[name][2]).values()
    found = getattr(torch.ops.trt_edgellm, op).speculative(*tensors_of(call, types), *attributes)
    check(name, call, case, [value.to(torch.float64).numpy() for value in found], dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_onnx_function_equals_the_step_loop(name: str, dtype: str) -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    op, (case, types) = name.split()[0], typed(name, dtype)
    call = speculative_call(op, case)
    weights = [call.arrays[part] for part in ("weight", "conv_weight") if part in call.arrays]
    sizes = {"conv_dim": weights[0].shape[0], "kernel": weights[0].shape[2]} if weights else {}
    model = packed_model(op, types, sizes, CASES[name][2], version=3)
    check(name, call, case, run_model(model, call.arrays), dtype)


@pytest.mark.parametrize("op", OPERATORS)
def test_one_column_is_the_packed_form(op: str) -> None:
    torch_ops.register()
    case, types = typed(op, "float32")
    arrays = packed_call(op, case).arrays
    tensors = [
        None if a is None else torch.from_numpy(a).to(getattr(torch, types.get(name, "int32")))
        for name, a in arrays.items()
    ]
    attributes = PACKED_OPS[op].complete_attributes(CASES[op][2]).values()
    kernel, slots = getattr(torch.ops.trt_edgellm, op), tensors[-1]
    assert slots is not None
    packed = kernel.packed(*tensors, *attributes)
    one_column = kernel.speculative(*tensors[:-1], slots[:, None], torch.ones_like(slots), *attributes)
    for found, reference in zip(one_column, packed, strict=True):
        assert torch.equal(found.nan_to_num(7.0), reference.nan_to_num(7.0))


def test_a_16_bit_state_is_rounded_after_every_token() -> None:
    torch_ops.register()
    case = ssm_case((4,), 4)
    inputs = [torch.from_numpy(a).to(torch.bfloat16) for a in case.inputs()[:8] if a is not None]
    inputs[1] = torch.from_numpy(case.A).float()
    attributes = SPECULATIVE_OPS["update_ssm_state"].complete_attributes({}).values()
    kernel, bounds = torch.ops.trt_edgellm.update_ssm_state, torch.tensor([0, 4], dtype=torch.int32)
    packed = [tensor[0] if index in (0, 2, 3, 5) else tensor for index, tensor in enumerate(inputs)]
    packed[7] = packed[7].repeat(4, 1, 1, 1)
    slots, accepted = torch.tensor([[0, 1, 2, 3]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    _, pool = kernel.speculative(*packed, bounds, slots, accepted, *attributes)
    state, one = inputs[7], torch.ones(1, dtype=torch.int32)
    for t in range(4):
        tokens = [x[:, t : t + 1] if index in (0, 2, 3, 5) else x for index, x in enumerate(inputs[:7])]
        _, state = kernel(*tokens, state, one, *attributes)
        assert torch.equal(pool[t], state[0])


@pytest.mark.parametrize("op", OPERATORS)
def test_schema_and_fake_agree_with_the_eager_form(op: str) -> None:
    torch_ops.register()
    case, types = typed(op, "float32")
    tensors = [None if t is None else t.nan_to_num() for t in tensors_of(speculative_call(op, case), types)]
    attributes = SPECULATIVE_OPS[op].complete_attributes(CASES[op][2]).values()
    kernel = getattr(torch.ops.trt_edgellm, op).speculative
    torch.library.opcheck(kernel, (*tensors, *attributes), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("op", OPERATORS)
def test_declaration_differs_from_the_packed_one_in_slots_alone(op: str) -> None:
    packed, speculative = PACKED_OPS[op], spec_of(op, 3)
    assert speculative == speculative_form(packed) and speculative.version == 3
    assert (speculative.attributes, speculative.outputs) == (packed.attributes, packed.outputs)
    assert speculative.inputs[:-2] == packed.inputs[:-1]
    assert [t.name for t in speculative.inputs[-3:]] == ["query_start_loc", "state_indices", "num_accepted_tokens"]


def test_operators_without_pools_are_shared() -> None:
    for name in ("paged_attention", "reshape_and_cache", "routed_experts"):
        assert spec_of(name, 3) is spec_of(name, 2)


def test_counts_that_do_not_fit_the_rows_are_refused() -> None:
    torch_ops.register()
    case, types = typed("causal_conv1d", "float32")
    tensors = tensors_of(speculative_call("causal_conv1d", case), types)
    accepted = tensors[-1]
    assert accepted is not None
    with pytest.raises(UnsupportedError, match=r"expected num_accepted_tokens of shape \[7\], found \[6\]"):
        torch.ops.trt_edgellm.causal_conv1d.speculative(*tensors[:-1], accepted[:-1], "silu")
