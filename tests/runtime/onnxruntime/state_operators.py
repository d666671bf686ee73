"""Operators over states of the library of CPU kernels, run on the cases of the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.oracle import ConvCase, DeltaCase, SsmCase
from tests.runtime.onnxruntime.own_operator import run_operator

# One row has no tokens, one is full.
LENGTHS = (3, 0, 5)

Lengths = np.ndarray | None


def checkpoint_shapes(checkpoints: Lengths, state: np.ndarray) -> dict[str, tuple[int, ...]]:
    """The output with as many states like ``state`` as ``checkpoints`` [n] has numbers of tokens; None: no output."""
    return {} if checkpoints is None else {"checkpoints": (len(checkpoints), *state.shape[1:])}


def updated(
    case: SsmCase,
    instructions: int,
    padded: bool = True,
    checkpoints: Lengths = None,
    writes_state: bool = True,
    **changes: Any,
) -> dict[str, np.ndarray]:
    """y, new_state, whose memory is that of state, and the states after ``checkpoints`` tokens; or y alone."""
    rows, time, heads = case.x.shape[:3]
    state = np.ascontiguousarray(case.state.swapaxes(2, 3), np.float32)
    flat = {name: getattr(case, name).reshape(rows, time, -1).astype(np.float32) for name in ("x", "B", "C", "dt")}
    per_head = {name: getattr(case, name).astype(np.float32) for name in ("A", "D", "dt_bias")}
    inputs = {**flat, **per_head, "state": state, "lengths": case.context_lengths if padded else None} | changes
    names = ("x", "A", "B", "C", "D", "dt", "dt_bias", "state", "lengths")
    shapes = {"y": inputs["x"].shape}
    if writes_state:
        shapes |= {"new_state": state.shape, **checkpoint_shapes(checkpoints, state)}
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
    return {"y": found["y"] if "x" in changes else found["y"].reshape(case.x.shape), **states}


def ruled(
    case: DeltaCase, instructions: int, normed: int = 1, checkpoints: Lengths = None, **changes: Any
) -> dict[str, np.ndarray]:
    """o, new_state, whose memory is that of state, and the states after ``checkpoints`` tokens."""
    rows, time, key_heads = case.q.shape[:3]
    tokens = {name: getattr(case, name).reshape(rows, time, -1) for name in ("q", "k", "v", "g", "beta")}
    arrays = {**tokens, "state": case.state} | changes
    inputs: dict[str, Any] = {name: array.astype(np.float32) for name, array in arrays.items() if name != "lengths"}
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
    return found if "v" in changes else {**found, "o": found["o"].reshape(case.v.shape)}


def convolved(
    case: ConvCase, instructions: int, silu: int, checkpoints: Lengths = None, lengths: Lengths = None, **changes: Any
) -> dict[str, np.ndarray]:
    """y, new_state, whose memory is that of state, and the states after ``checkpoints`` tokens."""
    arrays = {"x": case.x, "weight": case.weight, "state": case.conv_state, "bias": case.bias} | changes
    inputs = {name: None if array is None else array.astype(np.float32) for name, array in arrays.items()}
    return run_operator(
        "CausalConv1d",
        {
            **inputs,
            "lengths": case.context_lengths if lengths is None else lengths,
            "checkpoint_lengths": checkpoints,
        },
        {
            "y": np.shape(inputs["x"]),
            "new_state": case.conv_state.shape,
            **checkpoint_shapes(checkpoints, case.conv_state),
        },
        {"new_state": "state"},
        threads=2,
        silu=silu,
        instructions=instructions,
    )


def updated_8bit(
    case: SsmCase, before: dict[str, np.ndarray], instructions: int, **changes: np.ndarray
) -> dict[str, np.ndarray]:
    """y, values and scales, whose memory is that of ``before``."""
    rows, time, heads = case.x.shape[:3]
    flat = {name: getattr(case, name).reshape(rows, time, -1).astype(np.float32) for name in ("x", "B", "C", "dt")}
    per_head = {name: getattr(case, name).astype(np.float32) for name in ("A", "D", "dt_bias")}
    names = ("x", "A", "B", "C", "D", "dt", "dt_bias")
    inputs = {**{name: (flat | per_head)[name] for name in names}, "v": before["values"], "s": before["scales"]}
    inputs |= {"lengths": case.context_lengths, **changes}
    return run_operator(
        "UpdateSsmState8Bit",
        inputs,
        {"y": inputs["x"].shape, "values": before["values"].shape, "scales": before["scales"].shape},
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
