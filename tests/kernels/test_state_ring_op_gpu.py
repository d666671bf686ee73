"""Kernels of the operators over states with rings on the GPU: calls one after another, against float64 step loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hybridge.trt_plugins.catalog import OPS, spec_of
from hybridge.trt_plugins.kernels.ops import ring_stream
from hybridge.trt_plugins.specs.packed import QUERY_START_LOC, STATE_INDICES
from hybridge.trt_plugins.specs.ring import RING
from tests.ops.cases import delta_case, in_dtypes, rounded_case, ssm_case
from tests.ops.oracle import delta_step_loop, relative_error, ssm_step_loop
from tests.ops.packed_calls import packed_call
from tests.ops.test_state_ring import Rows, flushed, rows_of, typed, with_ring
from tests.support.kernel_calls import run_op

pytestmark = pytest.mark.gpu

CASES: dict[str, tuple[str, Any, Any, dict[str, int]]] = {
    "ssm": ("update_ssm_state_ring", ssm_case, ssm_step_loop, {"head_dim": 24, "state_size": 40}),
    "delta": ("gated_delta_rule_ring", delta_case, delta_step_loop, {"key_size": 32, "value_size": 48}),
    "delta, stays": ("gated_delta_rule_ring", delta_case, delta_step_loop, {"key_size": 128, "value_size": 128}),
}
CALLS = ((70, 1, 0, 3), *[(1, 1, 1, 1)] * 3, (1, 0, 1, 0), *[(1, 1, 1, 1)] * 11, (2, 1, 0, 1), *[(1, 1, 1, 1)] * 17)
TOLERANCE = {"float32": 1e-5, "bfloat16": 6e-3}


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_calls_of_any_lengths_equal_the_step_loop(
    name: str, dtype: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_stream, "LEAST_HEADS", 0)
    op, make, loop, sizes = CASES[name]
    attributes: dict[str, Any] = {}
    spec, rows = spec_of(op, 2 if packed else 1), None
    for seed, lengths in enumerate(CALLS):
        case = make(lengths, max(lengths), seed=seed, **sizes)
        types = in_dtypes(case, dtype)
        case = rounded_case(case, types)
        rows = rows_of(op, case, 3) if rows is None else rows
        expected, exact = loop(replace(case, state=rows.exact))
        given = with_ring(case, rows)
        call = packed_call(op, given) if packed else None
        arrays = call.arrays if call is not None else {t.name: getattr(given, t.name) for t in spec.inputs}
        data = types["x" if "x" in types else "v"]
        kinds = types | {
            t.name: data if t.dtype == "T" else "float32" for t in spec.inputs if t.name.startswith("ring_")
        }
        tensors = {}
        for name, array in arrays.items():
            tensor = torch.from_numpy(typed(name, np.asarray(array), dtype)).cuda()
            tensors[name] = tensor.to(getattr(torch, kinds[name])) if tensor.is_floating_point() else tensor
        bounds, slots = (tensors.get(tensor.name) for tensor in (QUERY_START_LOC, STATE_INDICES))
        inputs = [tensors.get(tensor.name) for tensor in OPS[op].inputs]
        y = torch.full_like(tensors["x" if "x" in tensors else "v"], float("nan"))
        outputs = [y, *(tensors[output.name.removesuffix("_out")] for output in spec.outputs[1:])]
        run_op(op, inputs, outputs, attributes, bounds, slots)
        found = y.double().cpu().numpy()
        found = found if call is None else call.rows_of(found, expected)
        assert relative_error(found, expected) < TOLERANCE[dtype], f"call {seed}"
        own = slice(None) if call is None else call.slots
        held = {name: tensors[name].double().cpu().numpy()[own] for name in rows.held}
        held["ring_lengths"] = held["ring_lengths"].astype(np.int32)
        for row, count in enumerate(lengths):
            stored = int(rows.held["ring_lengths"][row, 0])
            adds = count == 1 and (packed or max(lengths) == 1) and stored < RING - 1
            assert held["ring_lengths"][row, 0] == (stored + 1 if adds else 0 if count else stored)
            if adds or not count:
                np.testing.assert_array_equal(held["state"][row], np.asarray(rows.held["state"][row], np.float32))
        assert relative_error(flushed(op, held), exact) < TOLERANCE[dtype], f"call {seed}"
        rows = Rows(held, exact)
