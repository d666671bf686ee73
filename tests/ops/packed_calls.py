"""Dense cases packed: consecutive rows, a padding row among them, states in the slots of a poisoned pool."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import DOMAIN, OPS, PACKED_OPS, spec_of
from hybridge.trt_plugins.functions import attach_functions
from hybridge.trt_plugins.specs.packed import PACKED_VERSION, is_packed, is_pool

# A padding row of so many tokens is in front of the last row, and as many slots have no owner.
PADDING_TOKENS, FREE_SLOTS = 2, 3


@dataclass(frozen=True)
class PackedCall:
    """Arrays of a packed operator by input name (float64 and int32), and which token and slot each row has."""

    op: str
    arrays: dict[str, np.ndarray | None]
    bounds: list[tuple[int, int]]
    slots: list[int]

    def rows_of(self, tokens: np.ndarray, dense: np.ndarray) -> np.ndarray:
        """The rows of ``tokens`` [tokens, ...] where ``dense`` [batch, time, ...] has them, zero elsewhere."""
        rows = np.zeros(dense.shape, tokens.dtype)
        for row, (begin, end) in enumerate(self.bounds):
            rows[row, : end - begin] = tokens[begin:end]
        return rows


def packed_call(op: str, case: Any, seed: int = 5) -> PackedCall:
    """``case`` (attributes by the dense operator's input names) as a call of the packed operator."""
    lengths = [int(n) for n in case.context_lengths]
    order = np.random.default_rng(seed).permutation(len(lengths) + FREE_SLOTS)
    slots = [int(slot) for slot in order[: len(lengths)]]
    bounds = [0, *np.cumsum(lengths).tolist()]
    bounds[-1:] = [bounds[-2] + PADDING_TOKENS, bounds[-2] + PADDING_TOKENS + lengths[-1]]
    owned = list(itertools.pairwise(bounds))
    owned.pop(len(lengths) - 1)
    arrays: dict[str, np.ndarray | None] = {}
    for tensor in PACKED_OPS[op].inputs:
        if tensor.name == "query_start_loc":
            arrays[tensor.name] = np.array(bounds, np.int32)
        elif tensor.name == "state_indices":
            arrays[tensor.name] = np.array([*slots[:-1], -1, slots[-1]], np.int32)
        elif is_packed(tensor):
            arrays[tensor.name] = _packed(getattr(case, tensor.name), owned, bounds[-1])
        elif is_pool(tensor):
            arrays[tensor.name] = _pool(getattr(case, tensor.name), slots)
        else:
            arrays[tensor.name] = getattr(case, tensor.name)
    return PackedCall(op, arrays, owned, slots)


def _packed(rows: np.ndarray, bounds: list[tuple[int, int]], count: int) -> np.ndarray:
    tokens = np.full((count, *rows.shape[2:]), np.nan)
    for row, (begin, end) in zip(rows, bounds, strict=True):
        tokens[begin:end] = row[: end - begin]
    return tokens


def _pool(states: np.ndarray, slots: list[int]) -> np.ndarray:
    pool = np.full((len(slots) + FREE_SLOTS, *states.shape[1:]), np.nan)
    pool[slots] = states
    return pool


def packed_model(
    op: str,
    types: Mapping[str, str],
    sizes: Mapping[str, int],
    attributes: Mapping[str, object],
    version: int = PACKED_VERSION,
) -> onnx.ModelProto:
    """One packed node whose inputs and outputs are the model's; ``sizes`` are the static dims. Attached function.

    16-bit tensors cross the interface as float32, with casts: NumPy does not know all of them.
    """
    spec = spec_of(op, version)
    given = [tensor for tensor in spec.inputs if _given(tensor, types)]
    dtypes = {t.name: t.dtype if isinstance(t.dtype, DType) else DType(types[t.name]) for t in given}
    nodes, inputs, outputs, inner = [], [], [], []
    for tensor in given:
        dims, dtype = [sizes.get(str(d), d) for d in tensor.dims], dtypes[tensor.name]
        info = helper.make_tensor_value_info(tensor.name, dtype.onnx, dims)
        if dtype.is_floating and dtype is not DType.FLOAT32:
            inner.append(info)
            nodes.append(helper.make_node("Cast", [f"{tensor.name}_wide"], [tensor.name], to=dtype.onnx))
            info = helper.make_tensor_value_info(f"{tensor.name}_wide", DType.FLOAT32.onnx, dims)
        inputs.append(info)
    names = [tensor.name if tensor.name in dtypes else "" for tensor in spec.inputs]
    results = [output.name for output in spec.outputs]
    nodes.append(helper.make_node(op, names, results, name="node", domain=DOMAIN, **attributes))
    for output in spec.outputs:
        dims = [sizes.get(str(d), d) for d in output.dims]
        nodes.append(helper.make_node("Cast", [output.name], [f"{output.name}_wide"], to=DType.FLOAT32.onnx))
        outputs.append(helper.make_tensor_value_info(f"{output.name}_wide", DType.FLOAT32.onnx, dims))
    graph = helper.make_graph(nodes, "one_node", inputs, outputs, value_info=inner)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    attach_functions(model)
    return model


def _given(tensor: Any, types: Mapping[str, str]) -> bool:
    return (isinstance(tensor.dtype, DType) and not tensor.optional) or tensor.name in types


def run_model(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray | None]) -> list[np.ndarray]:
    """The outputs of ``model`` in ONNX Runtime, float32."""
    import onnxruntime as ort

    from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
    from hybridge.runtime.engines.onnxruntime.opset import lower_opset

    onnx.checker.check_model(model)
    lowered = ir.serde.deserialize_model(model)
    lower_opset(lowered, installed_kernels())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    raw = ir.to_proto(lowered).SerializeToString()
    session = ort.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
    feeds = {}
    for value in session.get_inputs():
        array = arrays[value.name.removesuffix("_wide")]
        assert array is not None
        feeds[value.name] = array.astype(np.float32) if array.dtype.kind == "f" else array
    return session.run(None, feeds)


def dense_names(op: str) -> list[str]:
    """Names of the inputs of the dense operator, without the lengths."""
    return [tensor.name for tensor in OPS[op].inputs if tensor.name != "context_lengths"]
