"""Operators over states, convolutions and norms of the library of CPU kernels against float64, by instruction set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.gated_norms import use_gated_norms
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from tests.ops.cases import conv_case, delta_case, ssm_case
from tests.ops.oracle import (
    ConvCase,
    DeltaCase,
    SsmCase,
    conv_step_loop,
    delta_step_loop,
    relative_error,
    ssm_step_loop,
)
from tests.runtime.onnxruntime.own_operator import INSTRUCTIONS, run_operator
from tests.runtime.onnxruntime.steps import TOLERANCE

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")
EACH_SET = pytest.mark.parametrize("instructions", INSTRUCTIONS.values(), ids=INSTRUCTIONS)
# One row has no tokens, one is full.
LENGTHS = (3, 0, 5)


Lengths = np.ndarray | None


def checkpoint_shapes(checkpoints: Lengths, state: np.ndarray) -> dict[str, tuple[int, ...]]:
    """The output with as many states like ``state`` as ``checkpoints`` [n] has numbers of tokens; None: no output."""
    return {} if checkpoints is None else {"checkpoints": (len(checkpoints), *state.shape[1:])}


def updated(
    case: SsmCase, instructions: int, padded: bool = True, checkpoints: Lengths = None, **changes: Any
) -> dict[str, np.ndarray]:
    """y, new_state, whose memory is that of state, and the states after ``checkpoints`` tokens."""
    rows, time, heads = case.x.shape[:3]
    state = np.ascontiguousarray(case.state.swapaxes(2, 3), np.float32)
    flat = {name: getattr(case, name).reshape(rows, time, -1).astype(np.float32) for name in ("x", "B", "C", "dt")}
    per_head = {name: getattr(case, name).astype(np.float32) for name in ("A", "D", "dt_bias")}
    inputs = {**flat, **per_head, "state": state, "lengths": case.context_lengths if padded else None} | changes
    names = ("x", "A", "B", "C", "D", "dt", "dt_bias", "state", "lengths")
    shapes = {"y": flat["x"].shape, "new_state": state.shape, **checkpoint_shapes(checkpoints, state)}
    found = run_operator(
        "UpdateSsmState",
        {**{name: inputs[name] for name in names}, "checkpoint_lengths": checkpoints},
        shapes,
        {"new_state": "state"},
        threads=2,
        heads=heads,
        groups=case.B.shape[2],
        dt_softplus=1,
        time_step_min=0.0,
        time_step_max=float("inf"),
        instructions=instructions,
    )
    states = {name: found[name].swapaxes(2, 3) for name in shapes if name != "y"}
    return {"y": found["y"].reshape(case.x.shape), **states}


@EACH_SET
@pytest.mark.parametrize("sizes", [(6, 3, 5, 7), (4, 1, 64, 128), (2, 2, 83, 1), (1, 1, 1, 3)], ids=str)
def test_states_are_updated_in_place(sizes: tuple[int, ...], instructions: int) -> None:
    heads, groups, head_dim, state_size = sizes
    case = ssm_case(LENGTHS, 5, heads, groups, head_dim, state_size)
    found, (y, state) = updated(case, instructions), ssm_step_loop(case)
    assert relative_error(found["y"], y) < TOLERANCE and not found["y"][1].any()
    assert relative_error(found["new_state"], state) < TOLERANCE
    np.testing.assert_array_equal(found["new_state"][1], case.state[1].astype(np.float32))


@EACH_SET
def test_time_steps_of_any_size(instructions: int) -> None:
    case = ssm_case((2, 2), 2)
    dt = np.resize([-200.0, -30.0, 0.0, 20.0, 200.0, 3e38], case.dt.shape)
    found, (y, state) = updated(with_dt(case, dt), instructions, padded=False), ssm_step_loop(with_dt(case, dt))
    assert relative_error(found["new_state"], state) < TOLERANCE and relative_error(found["y"], y) < TOLERANCE


def with_dt(case: SsmCase, dt: np.ndarray) -> SsmCase:
    return SsmCase(**{**vars(case), "dt": dt, "x": case.x * 1e-3})


def test_a_time_step_of_nan_affects_its_head_only() -> None:
    case = ssm_case((2,), 2)
    case.dt[0, 0, 1] = np.nan
    found = updated(case, 0)["new_state"]
    assert np.isnan(found[0, 1]).all() and np.isfinite(np.delete(found[0], 1, 0)).all()


@pytest.mark.parametrize("name", ["x", "B", "C", "dt", "A", "D", "dt_bias", "state", "lengths"])
def test_sizes_that_disagree_are_refused(name: str) -> None:
    case = ssm_case((2, 2), 2)
    wrong = np.zeros((3, 3, 3, 3) if name == "state" else (2, 2, 4) if name in ("x", "B", "C", "dt") else (5,))
    with pytest.raises(Exception, match="UpdateSsmState: expected inputs whose sizes agree"):
        updated(case, 0, **{name: wrong.astype(np.int32 if name == "lengths" else np.float32)})


def ruled(
    case: DeltaCase, instructions: int, normed: int = 1, checkpoints: Lengths = None, **changes: Any
) -> dict[str, np.ndarray]:
    """o, new_state, whose memory is that of state, and the states after ``checkpoints`` tokens."""
    rows, time, key_heads = case.q.shape[:3]
    tokens = {name: getattr(case, name).reshape(rows, time, -1) for name in ("q", "k", "v", "g", "beta")}
    arrays = {**tokens, "state": case.state} | changes
    inputs: dict[str, Any] = {name: array.astype(np.float32) for name, array in arrays.items()}
    found = run_operator(
        "GatedDeltaRule",
        {**inputs, "lengths": changes.get("lengths", case.context_lengths), "checkpoint_lengths": checkpoints},
        {"o": inputs["v"].shape, "new_state": case.state.shape, **checkpoint_shapes(checkpoints, case.state)},
        {"new_state": "state"},
        threads=2,
        key_heads=key_heads,
        scale=0.5,
        normed=normed,
        instructions=instructions,
    )
    return {**found, "o": found["o"].reshape(case.v.shape)}


@EACH_SET
@pytest.mark.parametrize("decay", ["head", "key_channel"])
@pytest.mark.parametrize("sizes", [(2, 6, 7, 5), (1, 2, 64, 83), (3, 3, 1, 1), (1, 1, 130, 64)], ids=str)
def test_delta_rules_update_states_in_place(sizes: tuple[int, int, int, int], decay: str, instructions: int) -> None:
    for adversarial in (False, True):
        case = delta_case(LENGTHS, 5, *sizes, decay, adversarial)
        for normed in (0, 1):
            case.k[...] /= 1.0 if normed else sizes[2]
            found = ruled(case, instructions, normed)
            o, state = delta_step_loop(case, normed, 0.5)
            assert relative_error(found["o"], o) < TOLERANCE and not found["o"][1].any()
            assert relative_error(found["new_state"], state) < TOLERANCE
            np.testing.assert_array_equal(found["new_state"][1], case.state[1].astype(np.float32))


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "state", "lengths"])
def test_a_delta_rule_whose_sizes_disagree_is_refused(name: str) -> None:
    case = delta_case((2, 2), 2)
    wrong = np.zeros((3, 6, 7, 5) if name == "state" else (3,) if name == "lengths" else (2, 2, 4), np.int32)
    with pytest.raises(Exception, match="GatedDeltaRule: expected inputs whose sizes agree"):
        ruled(case, 0, **{name: wrong})


def convolved(
    case: ConvCase, instructions: int, silu: int, checkpoints: Lengths = None, **changes: Any
) -> dict[str, np.ndarray]:
    """y, new_state, whose memory is that of state, and the states after ``checkpoints`` tokens."""
    arrays = {"x": case.x, "weight": case.weight, "state": case.conv_state, "bias": case.bias} | changes
    inputs = {name: None if array is None else array.astype(np.float32) for name, array in arrays.items()}
    return run_operator(
        "CausalConv1d",
        {**inputs, "lengths": case.context_lengths, "checkpoint_lengths": checkpoints},
        {"y": case.x.shape, "new_state": case.conv_state.shape, **checkpoint_shapes(checkpoints, case.conv_state)},
        {"new_state": "state"},
        threads=2,
        silu=silu,
        instructions=instructions,
    )


@EACH_SET
@pytest.mark.parametrize("sizes", [(7, 4, True), (1, 1, False), (130, 3, True), (64, 16, False)], ids=str)
def test_columns_are_convolved_in_place(sizes: tuple[int, int, bool], instructions: int) -> None:
    channels, taps, bias = sizes
    case = conv_case(LENGTHS, 5, channels, taps, bias)
    for silu in (0, 1):
        found, (y, state) = convolved(case, instructions, silu), conv_step_loop(case, "silu" if silu else "none")
        assert relative_error(found["y"], y) < TOLERANCE and not found["y"][1].any()
        np.testing.assert_array_equal(found["new_state"], state.astype(np.float32))


@pytest.mark.parametrize(
    "changes", [{"weight": np.zeros((7, 1, 3))}, {"bias": np.zeros(6)}, {"state": np.zeros((3, 7, 17))}]
)
def test_a_convolution_whose_sizes_disagree_is_refused(changes: dict[str, np.ndarray]) -> None:
    with pytest.raises(Exception, match="CausalConv1d: expected inputs whose sizes agree, and at most 16 taps"):
        convolved(conv_case(LENGTHS, 5), 0, 0, **changes)


@EACH_SET
@pytest.mark.parametrize("time", [1, 8, 21])
def test_states_after_any_tokens_are_returned(time: int, instructions: int) -> None:
    after = np.unique(np.array([1, time // 3 + 1, max(1, time - 1), time], np.int32))
    ssm, delta, conv = ssm_case((time,), time), delta_case((time,), time), conv_case((time,), time)
    for counts in (after, after[:0]):
        found = (
            updated(ssm, instructions, False, counts),
            ruled(delta, instructions, checkpoints=counts),
            convolved(conv, instructions, 0, counts),
        )
        for place, state in enumerate(found):
            for tokens, found_state in zip(
                [*counts.tolist(), time], [*state["checkpoints"], state["new_state"][0]], strict=True
            ):
                oracle = (
                    ssm_step_loop(shortened(ssm, tokens)),
                    delta_step_loop(shortened(delta, tokens), 1, 0.5),
                    conv_step_loop(shortened(conv, tokens), "none"),
                )[place]
                assert relative_error(found_state[None], oracle[1]) < TOLERANCE, (place, tokens)
            y, *_ = state.values()
            assert relative_error(y, oracle[0]) < TOLERANCE


def shortened(case: Any, tokens: int) -> Any:
    """``case`` with only the first tokens of its row."""
    return replace(case, context_lengths=np.array([tokens], np.int32))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("after", [[0], [3, 3], [4, 2], [6]])
def test_lengths_of_checkpoints_that_do_not_ascend_are_refused(after: list[int], rows: int) -> None:
    lengths, counts = (5,) * rows, np.array(after if rows == 1 else [2], np.int32)
    with pytest.raises(Exception, match="UpdateSsmState: expected inputs whose sizes agree"):
        updated(ssm_case(lengths, 5), 0, False, counts)
    with pytest.raises(Exception, match="GatedDeltaRule: expected inputs whose sizes agree"):
        ruled(delta_case(lengths, 5), 0, checkpoints=counts)
    with pytest.raises(Exception, match="CausalConv1d: expected inputs whose sizes agree"):
        convolved(conv_case(lengths, 5), 0, 0, counts)


def normed(x: np.ndarray, gate: np.ndarray, weight: np.ndarray, size: int, norm_first: bool) -> np.ndarray:
    """The gated norm in float64, with an epsilon of 1e-5."""
    silu = gate * np.exp(-np.logaddexp(0.0, -gate))

    def norm(v: np.ndarray) -> np.ndarray:
        groups = v.reshape(*v.shape[:-1], -1, size)
        return (groups / np.sqrt((groups * groups).mean(-1, keepdims=True) + 1e-5)).reshape(v.shape)

    weights = np.tile(weight, x.shape[-1] // len(weight))
    return norm(x) * weights * silu if norm_first else norm(x * silu) * weights


@EACH_SET
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("groups", "size", "weights"), [(1, 384, 1), (3, 33, 3), (2, 5, 1), (4, 1, 4)])
def test_gated_norms(groups: int, size: int, weights: int, norm_first: bool, instructions: int) -> None:
    rng = np.random.default_rng(size)
    x, gate = rng.standard_normal((2, 2, 3, groups * size))
    # Of the last token, gates in both tails; the first one is zero.
    x[0, 0], gate[1, 2] = 0.0, np.resize([-100.0, -87.5, -20.0, 0.0, 20.0, 100.0], groups * size)
    weight = rng.standard_normal(weights * size)
    inputs = {"x": x, "gate": gate, "weight": weight}
    found = run_operator(
        "GatedNorm",
        {name: array.astype(np.float32) for name, array in inputs.items()},
        {"y": x.shape},
        threads=2,
        size=size,
        norm_first=int(norm_first),
        epsilon=1e-5,
        instructions=instructions,
    )["y"]
    x, gate, weight = (array.astype(np.float32).astype(np.float64) for array in inputs.values())
    expected = normed(x, gate, weight, size, norm_first)
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-42)
    assert not found[0, 0].any()


@pytest.mark.parametrize(("columns", "gates", "weights", "size"), [(12, 11, 4, 4), (12, 12, 5, 4), (12, 12, 5, 5)])
def test_a_norm_whose_sizes_disagree_is_refused(columns: int, gates: int, weights: int, size: int) -> None:
    inputs = {"x": np.zeros((1, columns)), "gate": np.zeros((1, gates)), "weight": np.zeros(weights)}
    with pytest.raises(Exception, match="GatedNorm: expected inputs whose sizes agree"):
        run_operator(
            "GatedNorm",
            {name: array.astype(np.float32) for name, array in inputs.items()},
            {"y": (1, columns)},
            size=size,
            norm_first=0,
            epsilon=1e-5,
            instructions=0,
        )


def norm_graph(norm_first: bool, scale: float, shown: bool) -> ir.Model:
    """A norm of groups of 4 of 8 columns with its gate; scale: of the norm itself. shown: the norm is an output too."""
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
    norms (float[b, t, 8] x, float[b, t, 8] gate) => (float[b, t, 8] y{", float[b, t, 2, 4] normed" if shown else ""})
    <float[8] weight = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[4] own = {{{scale}, {scale}, {scale}, {scale}}},
     int64[4] grouped = {{0, 0, 2, 4}}, int64[3] flat = {{0, 0, 8}}>
    {{
        sigmoid = Sigmoid(gate)
        silu = Mul(gate, sigmoid)
        gated = {"Identity(x)" if norm_first else "Mul(x, silu)"}
        groups = Reshape({"x" if norm_first else "gated"}, grouped)
        normed = RMSNormalization<axis = -1>(groups, own)
        joined = Reshape(normed, flat)
        weighted = Mul(joined, weight)
        y = {"Mul(weighted, silu)" if norm_first else "Identity(weighted)"}
    }}"""
    model = ir.from_onnx_text(text)
    shapes = {"sigmoid": 8, "silu": 8, "gated": 8, "joined": 8, "weighted": 8}
    for node in model.graph:
        for value in node.outputs:
            if value.name in shapes:
                value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["b", "t", 8])
    return model


@pytest.mark.parametrize("norm_first", [False, True])
def test_gated_norms_are_replaced_unless_scaled_or_shown(norm_first: bool) -> None:
    for scale, shown, count in ((1.0, False, 1), (2.0, False, 0), (1.0, True, 0)):
        model = norm_graph(norm_first, scale, shown)
        use_gated_norms(model, installed_kernels())
        found = [node for node in model.graph if node.op_type == "GatedNorm"]
        assert len(found) == count, (scale, shown)
        if count:
            assert [value.name for value in found[0].inputs if value] == ["x", "gate", "weight"]
            assert found[0].attributes.get_int("norm_first", -1) == int(norm_first)
            assert found[0].attributes.get_int("size", 0) == 4


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("rows", [1, "c"])
def test_a_gate_that_may_be_broadcast_is_not_replaced(rows: int | str, norm_first: bool) -> None:
    model = norm_graph(norm_first, scale=1.0, shown=False)
    next(value for value in model.graph.inputs if value.name == "gate").shape = ir.Shape([rows, "t", 8])
    use_gated_norms(model, installed_kernels())
    assert "GatedNorm" not in {node.op_type for node in model.graph}


@EACH_SET
@pytest.mark.parametrize("by_column", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 2, 64, 128), (2, 3, 5, 7), (1, 4, 1, 131), (0, 2, 3, 4)], ids=str)
def test_states_of_8_bits_are_the_nearest(sizes: tuple[int, ...], by_column: int, instructions: int) -> None:
    """Numbers between two, rows of zeros, and rows with numbers that are not finite among others."""
    axis, random = -2 if by_column else -1, np.random.default_rng(0)
    wide = random.standard_normal(sizes).astype(np.float32)
    rows = np.moveaxis(wide, axis, -1)
    if rows.size:
        rows[-1, 0, 0] = random.integers(-253, 254, rows.shape[-1]) / 2.0
        rows[-1, 0, 0, 0] = 127.0
        rows[0, 1, 0], rows[0, -1, -1, -1], rows[-1, 1, -1, 0] = 0.0, np.nan, -np.inf
    largest = np.abs(wide).max(axis)
    expected = np.where(np.isfinite(largest), largest / np.float32(127), np.nan).astype(np.float32)
    attributes = {"by_column": by_column, "instructions": instructions}
    shapes = {"values": sizes, "scales": expected.shape}
    found = run_operator("RoundState", {"wide": wide}, shapes, threads=2, dtypes={"values": np.int8}, **attributes)
    np.testing.assert_array_equal(found["scales"], expected)
    whole = np.expand_dims(expected, axis)
    with np.errstate(invalid="ignore"):
        nearest = np.rint(np.where(np.isnan(whole), 0, wide) / np.where(whole > 0, whole, np.float32(1)))
    finite = np.broadcast_to(np.isfinite(whole), sizes)
    np.testing.assert_array_equal(found["values"][finite], nearest[finite])
    again = run_operator("WidenState", found, {"wide": sizes}, threads=2, **attributes)["wide"]
    np.testing.assert_array_equal(again, found["values"].astype(np.float32) * whole)


def test_scales_of_other_rows_are_refused() -> None:
    given = {"values": np.zeros((2, 3, 4, 5), np.int8), "scales": np.zeros((2, 3, 5), np.float32)}
    with pytest.raises(Exception, match="state in 8 bits: expected inputs whose sizes agree"):
        run_operator("WidenState", given, {"wide": (2, 3, 4, 5)}, by_column=0, instructions=0)


@EACH_SET
@pytest.mark.parametrize("sizes", [(6, 3, 5, 7), (4, 1, 64, 128), (2, 2, 83, 1)], ids=str)
def test_states_of_8_bits_are_updated_in_place(sizes: tuple[int, ...], instructions: int) -> None:
    """As by UpdateSsmState between reading and rounding; a row without tokens keeps its state bit for bit."""
    heads, groups, head_dim, state_size = sizes
    case = ssm_case(LENGTHS, 5, heads, groups, head_dim, state_size)
    state = np.ascontiguousarray(case.state.swapaxes(2, 3), np.float32)
    shapes, by_column = {"values": state.shape, "scales": state.shape[:2] + state.shape[3:]}, {"by_column": 1}
    int8 = {"values": np.int8}
    before = run_operator("RoundState", {"wide": state}, shapes, dtypes=int8, instructions=instructions, **by_column)
    exact = before["values"].astype(np.float64) * before["scales"][:, :, None]
    plain = updated(replace(case, state=exact.swapaxes(2, 3)), instructions)
    wide = {"wide": np.ascontiguousarray(plain["new_state"].swapaxes(2, 3))}
    expected = run_operator("RoundState", wide, shapes, dtypes=int8, instructions=instructions, **by_column)
    found = updated_8bit(case, before, instructions)
    np.testing.assert_array_equal(found["y"].reshape(plain["y"].shape), plain["y"])
    for name, array in expected.items():
        own = np.where((np.array(LENGTHS) > 0).reshape(-1, *[1] * (array.ndim - 1)), array, before[name])
        np.testing.assert_array_equal(found[name], own)


@EACH_SET
@pytest.mark.parametrize("sizes", [(4, 1, 64, 128), (2, 2, 80, 9), (2, 1, 16, 3), (6, 3, 5, 7)], ids=str)
def test_one_token_over_states_of_8_bits_rounds_the_exact_ones(sizes: tuple[int, ...], instructions: int) -> None:
    """Of whole vectors and of others, with columns of zeros, of tiny numbers, and one that is not finite."""
    heads, groups, head_dim, state_size = sizes
    case = ssm_case((1, 0, 1), 1, heads, groups, head_dim, state_size)
    case.x[:, :, 0, :2] = 0.0
    case.x[2, 0, 1, 3] = np.inf
    random = np.random.default_rng(1)
    values = random.integers(-127, 128, (3, heads, state_size, head_dim), np.int8)
    scales = random.uniform(0.001, 0.1, (3, heads, head_dim)).astype(np.float32)
    scales[:, 0, 0], scales[:, 0, 1] = 0.0, 1e-32
    names = ("x", "A", "B", "C", "D", "dt", "dt_bias")
    given = {name: getattr(case, name).astype(np.float32).astype(np.float64) for name in names}
    state = (values.astype(np.float64) * scales[:, :, None]).swapaxes(2, 3)
    with np.errstate(invalid="ignore"):
        y, last = ssm_step_loop(replace(case, **given, state=state))
    found = updated_8bit(case, {"values": values.copy(), "scales": scales.copy()}, instructions)
    assert np.isnan(found["scales"][2, 1, 3]) and found["scales"][0, 0, 0] == 0.0
    np.testing.assert_array_equal(found["values"][1], values[1])
    np.testing.assert_array_equal(found["scales"][1], scales[1])
    finite = np.isfinite(last).all(-1)
    finite[1] = False
    assert relative_error(found["y"].reshape(y.shape)[:, 0][finite], y[:, 0][finite]) < TOLERANCE
    np.testing.assert_allclose(found["scales"][finite], np.abs(last).max(-1)[finite] / 127, rtol=1e-5)
    units = np.where(found["scales"] > 0, found["scales"], 1.0).astype(np.float64)[..., None]
    off = np.abs(found["values"].swapaxes(2, 3) - last / units)
    assert off[finite].max() <= 0.5 + 1e-3


def updated_8bit(case: SsmCase, before: dict[str, np.ndarray], instructions: int) -> dict[str, np.ndarray]:
    """y, values and scales, whose memory is that of ``before``."""
    rows, time, heads = case.x.shape[:3]
    flat = {name: getattr(case, name).reshape(rows, time, -1).astype(np.float32) for name in ("x", "B", "C", "dt")}
    per_head = {name: getattr(case, name).astype(np.float32) for name in ("A", "D", "dt_bias")}
    names = ("x", "A", "B", "C", "D", "dt", "dt_bias")
    inputs = {**{name: (flat | per_head)[name] for name in names}, "v": before["values"], "s": before["scales"]}
    return run_operator(
        "UpdateSsmState8Bit",
        {**inputs, "lengths": case.context_lengths},
        {"y": flat["x"].shape, "values": before["values"].shape, "scales": before["scales"].shape},
        {"values": "v", "scales": "s"},
        threads=2,
        dtypes={"values": np.int8},
        heads=heads,
        groups=case.B.shape[2],
        dt_softplus=1,
        time_step_min=0.0,
        time_step_max=float("inf"),
        instructions=instructions,
    )
