"""Recurrent operators over states with rings, in every form: prompts and single tokens, against float64 loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import OPS, PACKED_OPS, SPECULATIVE_OPS, spec_of
from hybridge.trt_plugins.reference.ring import flushed_state
from hybridge.trt_plugins.specs.packed import is_pool, packed_form
from hybridge.trt_plugins.specs.ring import RING, RINGS
from hybridge.trt_plugins.specs.state_forms import base_name
from hybridge.trt_plugins.specs.state_ring import ring_names
from tests.ops.cases import delta_case, in_dtypes, rounded_case, ssm_case
from tests.ops.oracle import delta_step_loop, relative_error, ssm_step_loop
from tests.ops.packed_calls import packed_call, packed_model, run_model
from tests.ops.speculative_calls import LENGTHS as DRAFT_LENGTHS
from tests.ops.speculative_calls import pools_after, speculative_call
from tests.support.effort import sample

CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], tuple[np.ndarray, ...]], dict[str, Any]]] = {
    "update_ssm_state_ring": (ssm_case, ssm_step_loop, {}),
    "gated_delta_rule_ring": (delta_case, delta_step_loop, {}),
    "gated_delta_rule_ring channels": (
        lambda lengths, time, seed: delta_case(lengths, time, decay="key_channel", seed=seed),
        delta_step_loop,
        {"decay": "key_channel"},
    ),
}  # fmt: skip
# Lengths of four rows, call by call: prompts, then more single tokens than a ring holds, with a prompt between them.
CALLS = ((19, 1, 0, 3), *[(1, 1, 1, 1)] * 3, (1, 0, 1, 0), *[(1, 1, 1, 1)] * 9, (2, 1, 0, 1), *[(1, 1, 1, 1)] * 17)
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
# The same in few calls, from rings of 13 tokens.
STORED, FEW_CALLS = 13, ((1, 1, 1, 0), (1, 1, 1, 1), (1, 1, 0, 1), (3, 1, 0, 1), (1, 1, 1, 1))
FORMS = [(name, form, packed) for name in CASES for form in ("eager", "function") for packed in (False, True)]
ON_PUSH = (
    ("update_ssm_state_ring", "function", True),
    ("gated_delta_rule_ring channels", "function", False),
    ("gated_delta_rule_ring", "eager", True),
)


@dataclass
class Rows:
    """States, rings and lengths of rows, as the operator has them, and the float64 states of the step loop."""

    held: dict[str, np.ndarray]
    exact: np.ndarray


def rows_of(op: str, case: Any, stored: int) -> Rows:
    """Rows with the states of ``case`` and rings of ``stored`` random tokens; what is behind these is no number."""
    spec, plain, rng = OPS[op], OPS[base_name(op)], np.random.default_rng(7)
    shapes = {t.name: getattr(case, t.name).shape for t in plain.inputs if hasattr(case, t.name)}
    held = {"state": case.state, "ring_lengths": np.full((len(case.state), 1), stored, np.int32)}
    for name, tensor in zip(ring_names(spec), RINGS[plain.name], strict=True):
        ring = rng.uniform(-1.0, 0.0, (len(case.state), *tensor.shape(plain, shapes)))
        ring[:, :, stored:] = np.nan
        held[name] = ring.astype(np.float16).astype(np.float64)
    return Rows(held, flushed(op, held))


def with_ring(case: Any, rows: Rows) -> Any:
    """``case`` with the states and rings of ``rows``."""
    made = make_dataclass("Ringed", [*(f.name for f in fields(case)), *rows.held.keys() - {"state"}])
    return made(**({f.name: getattr(case, f.name) for f in fields(case)} | rows.held))


def typed(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    if name == "ring_lengths":
        return np.nan_to_num(array, nan=85.0).astype(np.int32)
    return array.astype("float64" if dtype == "float64" else "float32") if array.dtype.kind == "f" else array


def run(op: str, form: str, packed: bool, case: Any, types: dict[str, str], dtype: str, attributes: Any) -> Any:
    """y [rows, time, ...] and what ``case`` holds after the call, by name; checks what no row owns."""
    spec, data = spec_of(op, 2 if packed else 1), types["x" if "x" in types else "v"]
    types = types | {t.name: data if t.dtype == "T" else "float32" for t in spec.inputs if t.name in ring_names(spec)}
    call = packed_call(op, case) if packed else None
    given = call.arrays if call is not None else {t.name: getattr(case, t.name) for t in spec.inputs}
    arrays = {n: typed(n, np.asarray(a), dtype) for n, a in given.items()}
    if form == "eager":
        torch_ops.register()
        kernel = getattr(torch.ops.trt_edgellm, op)
        kernel = kernel.packed if packed else kernel.default
        tensors = []
        for tensor in spec.inputs:
            value = torch.from_numpy(arrays[tensor.name])
            narrow = value.dtype.is_floating_point and dtype != "float64"
            tensors.append(value.to(getattr(torch, types[tensor.name])) if narrow else value)
        found = [v.double().numpy() for v in kernel(*tensors, *spec.complete_attributes(attributes).values())]
    else:
        pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
        model = packed_model(op, types, {}, attributes, spec.version)
        found = run_model(model, arrays)
    y, *states = found
    after = {}
    for output, value in zip(spec.outputs[1:], states, strict=True):
        source = output.name.removesuffix("_out")
        if call is not None:
            assert is_pool(output)
            free = np.delete(value, call.slots, axis=0)
            assert (free == 85).all() if source == "ring_lengths" else np.isnan(free).all(), output.name
            value = value[call.slots]
        after[source] = value
    return (y if call is None else call.rows_of(y, getattr(case, "x" if hasattr(case, "x") else "v"))), after


def flushed(op: str, held: dict[str, np.ndarray]) -> np.ndarray:
    ring = [torch.from_numpy(np.asarray(held[name], np.float64)) for name in ring_names(OPS[op])]
    state, lengths = (torch.from_numpy(np.asarray(held[name])) for name in ("state", "ring_lengths"))
    return flushed_state(base_name(op), state.double(), ring, lengths[:, 0].long()).numpy()


def check_calls(name: str, form: str, packed: bool, dtype: str, calls: Any, stored: int = 0) -> list[int]:
    """The calls one after another, from rings of ``stored`` tokens; returns the writes of each row's state."""
    op, (make, loop, attributes) = name.split()[0], CASES[name]
    rows, writes = None, np.zeros(len(calls[0]), int)
    for seed, lengths in enumerate(calls):
        case = make(lengths, max(lengths), seed=seed)
        types = in_dtypes(case, dtype)
        if dtype != "float64":
            case = rounded_case(case, types)
        rows = rows_of(op, case, stored) if rows is None else rows
        held, before = rows.held, replace(case, state=rows.exact)
        y, rows.exact = loop(before)
        found, after = run(op, form, packed, with_ring(case, rows), types, dtype, attributes)
        assert relative_error(found, y) < TOLERANCE[dtype], f"call {seed}"
        assert relative_error(flushed(op, after), rows.exact) < TOLERANCE[dtype], f"call {seed}"
        for row, count in enumerate(lengths):
            tokens = int(held["ring_lengths"][row, 0])
            alone = count == 1 and (packed or max(lengths) == 1)
            adds = alone and tokens < RING - 1
            assert after["ring_lengths"][row, 0] == (tokens + 1 if adds else 0 if count else tokens)
            if adds or not count:
                np.testing.assert_array_equal(after["state"][row], held["state"][row])
            if not adds:
                for tensor in ring_names(OPS[op]):
                    np.testing.assert_array_equal(after[tensor][row], held[tensor][row])
            writes[row] += bool(count) and not adds
        rows.held = {**after, "ring_lengths": after["ring_lengths"].astype(np.int32)}
    return writes.tolist()


@pytest.mark.parametrize(("name", "form", "packed"), sample(FORMS, on_push=ON_PUSH))
def test_single_tokens_fill_a_ring_that_is_then_written(name: str, form: str, packed: bool) -> None:
    check_calls(name, form, packed, "float64" if form == "eager" else "float32", FEW_CALLS, STORED)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form", "packed"), FORMS)
def test_calls_of_any_lengths_equal_the_step_loop(name: str, form: str, packed: bool) -> None:
    writes = check_calls(name, form, packed, "float64" if form == "eager" else "float32", CALLS)
    assert max(writes) <= 4


@pytest.mark.slow
@pytest.mark.parametrize(("form", "dtype"), [("eager", "bfloat16"), ("function", "float16")])
def test_16_bit_data_in_the_ring(form: str, dtype: str) -> None:
    check_calls("update_ssm_state_ring", form, True, dtype, [(5, 2), *[(1, 1)] * 18])


@pytest.mark.parametrize(
    ("name", "form"),
    sample(
        ((name, form) for name in CASES for form in ("eager", "function")),
        on_push=(("update_ssm_state_ring", "function"), ("gated_delta_rule_ring channels", "eager")),
    ),
)
def test_draft_tokens_start_from_written_rings(name: str, form: str) -> None:
    """Slots that rows read hold the states after their rings, or those of the tokens; all of them have empty rings."""
    op, (make, loop, attributes) = name.split()[0], CASES[name]
    case = make(DRAFT_LENGTHS, max(DRAFT_LENGTHS), seed=3)
    dtype = "float64" if form == "eager" else "float32"
    types = in_dtypes(case, dtype)
    case = case if dtype == "float64" else rounded_case(case, types)
    rows = rows_of(op, case, STORED)
    call, exact = speculative_call(op, with_ring(case, rows)), replace(case, state=rows.exact)
    arrays = {n: typed(n, np.asarray(a), dtype) for n, a in call.arrays.items()}
    spec = spec_of(op, 3)
    if form == "eager":
        torch_ops.register()
        tensors = [torch.from_numpy(arrays[tensor.name]) for tensor in spec.inputs]
        kernel = getattr(torch.ops.trt_edgellm, op).speculative
        found = [value.numpy() for value in kernel(*tensors, *spec.complete_attributes(attributes).values())]
    else:
        pytest.importorskip("onnxruntime", reason="needs the onnxruntime package")
        given = types | {t.name: "float32" for t in spec.inputs if t.name in ring_names(spec)}
        found = run_model(packed_model(op, given, {}, attributes, 3), arrays)
    y, state, *ring, lengths = found
    expected, _ = loop(exact)
    assert relative_error(call.rows.rows_of(y, expected), expected) < TOLERANCE[dtype]
    pool = np.full(state.shape, np.nan)
    fed = [row for row, count in enumerate(DRAFT_LENGTHS) if count]
    pool[[call.reads[row] for row in fed]] = rows.exact[fed]
    (after,) = pools_after(call, exact, {"state": pool}, loop)
    touched = np.flatnonzero(np.isfinite(after.reshape(len(after), -1)).all(1))
    assert {call.reads[row] for row in fed} <= set(touched.tolist())
    for slot in touched:
        assert relative_error(state[slot], after[slot]) < TOLERANCE[dtype], slot
    others = np.setdiff1d(np.arange(len(state)), touched)
    assert (lengths[touched] == 0).all()
    np.testing.assert_array_equal(state[others], arrays["state"][others])
    np.testing.assert_array_equal(lengths[others], arrays["ring_lengths"][others])
    for tensor, value in zip(ring_names(spec), ring, strict=True):
        np.testing.assert_array_equal(value, arrays[tensor])


@pytest.mark.parametrize("op", ["update_ssm_state_ring", "gated_delta_rule_ring"])
def test_declarations_have_the_ring_behind_the_state(op: str) -> None:
    assert PACKED_OPS[op] == packed_form(OPS[op])
    for ops in (OPS, PACKED_OPS, SPECULATIVE_OPS):
        names = [tensor.name for tensor in ops[op].inputs]
        behind = names.index("state") + 1
        assert names[behind : behind + 4] == [*ring_names(ops[op]), "ring_lengths"]
        assert [t.name for t in ops[op].outputs][1:] == [f"{name}_out" for name in names[behind - 1 : behind + 4]]
        sources = [ops[op].inputs[ops[op].output_source(output)].name for output in ops[op].outputs[1:]]
        assert sources == names[behind - 1 : behind + 4]
