"""Recurrent operators over states of 8 bits, in every form, against float64 step loops from the exact states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, make_dataclass, replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import OPS, PACKED_OPS, SPECULATIVE_OPS, spec_of
from hybridge.trt_plugins.specs.packed import packed_form
from tests.ops.cases import delta_case, in_dtypes, rounded_case, ssm_case
from tests.ops.oracle import delta_step_loop, relative_error, ssm_step_loop
from tests.ops.packed_calls import packed_call, packed_model, run_model
from tests.ops.speculative_calls import LENGTHS as DRAFT_LENGTHS
from tests.ops.speculative_calls import pools_after, speculative_call
from tests.support.effort import sample

LENGTHS = (66, 1, 0, 7)
# Operator: its case, its step loop, its attributes, and the axis of a state [..., rows, columns] that shares a scale.
CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], tuple[np.ndarray, ...]], dict[str, Any], int]] = {
    "update_ssm_state_8bit": (ssm_case, ssm_step_loop, {}, -1),
    "gated_delta_rule_8bit": (delta_case, delta_step_loop, {}, -2),
    "gated_delta_rule_8bit channels": (
        lambda lengths, time: delta_case(lengths, time, decay="key_channel"),
        delta_step_loop,
        {"decay": "key_channel"},
        -2,
    ),
}  # fmt: skip
LARGEST = {"int8": 127.0, "uint8": 448.0}


def runs(names: Iterable[str]) -> list[Any]:
    """Operators, types and forms; on push one of each."""
    push = (("update_ssm_state_8bit", "int8", "function"), ("gated_delta_rule_8bit", "uint8", "eager"))
    return sample(product(names, LARGEST, ("eager", "function")), on_push=push)


def numbers(values: np.ndarray) -> np.ndarray:
    """The float64 numbers that stored ``values`` are: int8, or bytes of e4m3."""
    exact = values.view(ml_dtypes.float8_e4m3fn) if values.dtype == np.uint8 else values
    return exact.astype(np.float64)


def stored_case(name: str, kind: str, lengths: tuple[int, ...]) -> tuple[Any, Any, dict[str, str]]:
    """A float64 case with an exact state, the same with ``state`` as stored and ``state_scales``, and the types."""
    make, _, _, axis = CASES[name]
    case = make(lengths, max(lengths))
    types = in_dtypes(case, "float32")
    case = rounded_case(case, types)
    scales = (np.abs(case.state).max(axis) / LARGEST[kind]).astype(np.float32)
    units = case.state / np.expand_dims(scales, axis)
    stored = np.rint(units).astype(np.int8) if kind == "int8" else units.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    exact = replace(case, state=numbers(stored) * np.expand_dims(scales.astype(np.float64), axis))
    made = make_dataclass("Stored", [*(f.name for f in fields(case)), "state_scales"])
    given = {f.name: getattr(case, f.name) for f in fields(case)}
    return exact, made(**(given | {"state": stored, "state_scales": scales})), {**types, "state": kind}


def as_arrays(given: Mapping[str, Any], kind: str, poison: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The arrays of a call in their types; the slots ``poison`` hold a pattern under scales that are no numbers."""
    arrays = {}
    for name, value in given.items():
        if value is None:
            continue
        array = np.array(value)
        if name == "state":
            array[list(poison)] = 85
            array = array.astype(kind)
        arrays[name] = array.astype(np.float32) if array.dtype.kind == "f" else array
    return arrays


def run(form: str, op: str, arrays: dict[str, np.ndarray], version: int, attributes: dict[str, Any], types: Any) -> Any:
    """y, the state and its scales: of the eager form, or of the ONNX function in ONNX Runtime."""
    spec = spec_of(op, version)
    if form == "eager":
        torch_ops.register()
        kernel = getattr(torch.ops.trt_edgellm, op)
        kernel = {1: kernel.default, 2: kernel.packed, 3: kernel.speculative}[version]
        tensors = [torch.from_numpy(arrays[tensor.name]) for tensor in spec.inputs]
        return [value.numpy() for value in kernel(*tensors, *spec.complete_attributes(attributes).values())]
    pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
    model = packed_model(op, types, {}, attributes, version)
    casts = {node.input[0]: node for node in model.graph.node if node.op_type == "Cast"}
    for output in model.graph.output:  # a float32 would hide the bytes
        cast = casts[output.name.removesuffix("_wide")]
        if cast.input[0] == "state_out":
            dtype = {"int8": 3, "uint8": 2}[types["state"]]
            cast.attribute[0].i = output.type.tensor_type.elem_type = dtype
    return run_model(model, arrays)


def check_states(
    found: list[np.ndarray], before: dict[str, np.ndarray], exact: np.ndarray, own: Any, axis: int
) -> None:
    """``own`` rows or slots hold the nearest numbers of ``exact``; all others are bit for bit as ``before``."""
    _, state, scales = found
    assert (state.dtype, scales.dtype) == (before["state"].dtype, np.float32)
    kind = str(state.dtype)
    wide = np.expand_dims(scales[own].astype(np.float64), axis)
    expected = np.abs(exact[own]).max(axis) / LARGEST[kind]
    assert relative_error(scales[own], expected) < 1e-5
    # Half a unit of int8; e4m3 has 3 bits of mantissa, or multiples of 2^-9 below 2^-6.
    unit = 0.5 if kind == "int8" else np.maximum(np.abs(exact[own]) / wide / 16, 2.0**-10)
    assert (np.abs(numbers(state[own]) - exact[own] / wide) <= unit + 1e-3).all()
    others = np.setdiff1d(np.arange(len(state)), own)
    for value, name in ((state, "state"), (scales, "state_scales")):
        bits = np.dtype(f"u{value.dtype.itemsize}")
        np.testing.assert_array_equal(value[others].view(bits), before[name][others].view(bits))


@pytest.mark.parametrize(("name", "kind", "form"), runs(CASES))
def test_padded_rows_equal_the_step_loop(name: str, kind: str, form: str) -> None:
    op, (_, loop, attributes, axis) = name.split()[0], CASES[name]
    exact, stored, types = stored_case(name, kind, LENGTHS)
    arrays = as_arrays({t.name: getattr(stored, t.name) for t in OPS[op].inputs}, kind, ())
    found = run(form, op, arrays, 1, attributes, types)
    y, last = loop(exact)
    assert relative_error(found[0], y) < 1e-5
    check_states(found, arrays, last, np.flatnonzero(LENGTHS), axis)


@pytest.mark.parametrize(("name", "kind", "form"), runs(list(CASES)[:2]))
def test_packed_rows_equal_the_step_loop(name: str, kind: str, form: str) -> None:
    op, (_, loop, attributes, axis) = name.split()[0], CASES[name]
    exact, stored, types = stored_case(name, kind, LENGTHS)
    call = packed_call(op, stored)
    slots = np.array(call.slots)
    arrays = as_arrays(call.arrays, kind, tuple(np.setdiff1d(np.arange(len(call.arrays["state"])), slots)))
    found = run(form, op, arrays, 2, attributes, types)
    y, last = loop(exact)
    assert relative_error(call.rows_of(found[0], y), y) < 1e-5
    after = np.zeros((len(arrays["state"]), *last.shape[1:]))
    after[slots] = last
    check_states(found, arrays, after, slots[np.flatnonzero(LENGTHS)], axis)


@pytest.mark.parametrize(("name", "kind", "form"), runs(list(CASES)[:2]))
def test_draft_tokens_equal_the_step_loop_rounded_where_it_is_stored(name: str, kind: str, form: str) -> None:
    op, (_, loop, attributes, axis) = name.split()[0], CASES[name]
    exact, stored, types = stored_case(name, kind, DRAFT_LENGTHS)
    call = speculative_call(op, stored)
    written = sorted({slot for slots in call.writes for slot in slots if slot >= 0})
    free = np.setdiff1d(np.arange(len(call.arrays["state"])), call.reads)
    arrays = as_arrays(call.arrays, kind, tuple(free))
    found = run(form, op, arrays, 3, attributes, types)
    y, _ = loop(exact)
    assert relative_error(call.rows.rows_of(found[0], y), y) < 1e-5
    (after,) = pools_after(call, exact, {"state": np.zeros((len(arrays["state"]), *exact.state.shape[1:]))}, loop)
    check_states(found, arrays, after, written, axis)


@pytest.mark.parametrize("form", ["eager", "function"])
def test_a_number_that_is_not_finite_makes_its_row_no_number(form: str) -> None:
    exact, stored, types = stored_case("update_ssm_state_8bit", "int8", (1,))
    x = exact.x.copy()
    x[0, 0, 2, 3] = np.inf
    arrays = as_arrays({t.name: getattr(stored, t.name) for t in OPS["update_ssm_state_8bit"].inputs}, "int8", ())
    _, _, scales = run(form, "update_ssm_state_8bit", {**arrays, "x": x.astype(np.float32)}, 1, {}, types)
    assert np.argwhere(np.isnan(scales)).tolist() == [[0, 2, 3]]


@pytest.mark.parametrize("op", ["update_ssm_state_8bit", "gated_delta_rule_8bit"])
def test_declarations_of_all_forms_have_scales_behind_the_state(op: str) -> None:
    assert PACKED_OPS[op] == packed_form(OPS[op])
    for ops in (OPS, PACKED_OPS, SPECULATIVE_OPS):
        names = [tensor.name for tensor in ops[op].inputs]
        assert names.index("state_scales") == names.index("state") + 1
        assert [tensor.name for tensor in ops[op].outputs][1:] == ["state_out", "state_scales_out"]
        sources = [ops[op].inputs[ops[op].output_source(output)].name for output in ops[op].outputs[1:]]
        assert sources == ["state", "state_scales"]
