"""Lower the declared opset to one that the installed ONNX Runtime loads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime.kernels import ARTIFACT_OPSET, Kernels
from hybridge.runtime.engines.onnxruntime.older_operators import use_older_operators

# Operators that opset 24 added, and attributes that it added to operators whose meaning here does not depend on
# them (round_mode concerns float8 only). Everything else in the artifacts is older.
_NEW_OPERATORS = frozenset({"TensorScatter", "Swish"})
_NEW_ATTRIBUTES: Mapping[str, tuple[str, ...]] = MappingProxyType({"Cast": ("round_mode",)})


def lower_opset(model: ir.Model, kernels: Kernels) -> None:
    """Declare ``model`` and its functions in an opset that ``kernels`` load.

    EngineError when an operator of the model does not exist there.
    """
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    if kernels.opset < ARTIFACT_OPSET:
        for part in parts:
            use_older_operators(list(part.all_nodes()))
    if max(part.opset_imports.get("", 0) for part in parts) <= kernels.opset:
        return
    nodes = [node for part in parts for node in part.all_nodes() if not node.domain]
    newer = {node.op_type for node in nodes} & _NEW_OPERATORS
    if newer:
        raise EngineError(
            f"expected an ONNX Runtime with opset 24 for {', '.join(sorted(newer))}, found one that stops at "
            f"{kernels.opset}: install onnxruntime 1.24 or newer"
        )
    for node in nodes:
        for name in _NEW_ATTRIBUTES.get(node.op_type, ()):
            node.attributes.pop(name, None)
    for part in parts:
        if "" in part.opset_imports:
            part.opset_imports[""] = min(part.opset_imports[""], kernels.opset)
