"""One node of the library of CPU kernels, run on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN, cpu_library

INSTRUCTIONS = {"portable": 1, "avx2": 2, "avx512": 3, "neon": 4}
EACH_SET = pytest.mark.parametrize("instructions", INSTRUCTIONS.values(), ids=INSTRUCTIONS)
_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint8): TensorProto.UINT8,
}


def run_operator(
    operator: str,
    inputs: Mapping[str, np.ndarray | None],
    outputs: Mapping[str, tuple[int, ...]],
    shared: Mapping[str, str] | None = None,
    threads: int = 1,
    dtypes: Mapping[str, type] = MappingProxyType({}),
    **attributes: float,
) -> dict[str, np.ndarray]:
    """The outputs, of the given shapes, written over NaN; inputs that are None are left out.

    shared: outputs that use the memory of an input. dtypes: of outputs that are not float32, which are written over
    -128. Skips where the processor lacks the instructions.
    """
    given = {name: array for name, array in inputs.items() if array is not None}
    names = [name if name in given else "" for name in inputs]
    node = helper.make_node(operator, names, list(outputs), domain=CPU_DOMAIN, **attributes)
    feeds = [helper.make_tensor_value_info(n, _TYPES[a.dtype], [None] * a.ndim) for n, a in given.items()]
    results = [
        helper.make_tensor_value_info(name, _TYPES[np.dtype(dtypes.get(name, np.float32))], [None] * len(shape))
        for name, shape in outputs.items()
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CPU_DOMAIN, 1)]
    graph = helper.make_graph([node], "operator", feeds, results)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.register_custom_ops_library(str(cpu_library().path))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "instructions that this processor has" in str(error):
            pytest.skip("this processor lacks the instructions")
        raise
    # Copies, so that a shared output does not overwrite the caller's input; ONNX Runtime does not keep them alive.
    arrays = {name: np.array(array) for name, array in given.items()}
    binding, found = session.io_binding(), {}
    for name, array in arrays.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    for name, shape in outputs.items():
        source = (shared or {}).get(name)
        poisoned = np.full(shape, -128, dtypes[name]) if name in dtypes else np.full(shape, np.nan, np.float32)
        found[name] = poisoned if source is None else arrays[source]
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(found[name]))
    session.run_with_iobinding(binding)
    return found
