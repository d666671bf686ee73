"""Small ONNX models through TensorRT's parser, in this process, and through ONNX Runtime."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import helper, numpy_helper

from hybridge.runtime.engines.tensorrt_network.constants import load_constants
from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from hybridge.trt_plugins.build.build_log import make_logger
from hybridge.trt_plugins.build.network import parse_network
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary
from hybridge.trt_plugins.network.description import NetworkDescription
from hybridge.trt_plugins.network.reader import read_network

OPSET = 24


@dataclass
class Small:
    """``nodes`` over ``inputs``, whose sizes the network does not know where ``dynamic``, and ``constants``."""

    nodes: list[onnx.NodeProto]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, int]
    constants: dict[str, np.ndarray | onnx.TensorProto] = field(default_factory=dict)
    dynamic: bool = False

    def model(self) -> onnx.ModelProto:
        """The model; every axis of a dynamic one has a name."""
        values = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(array.dtype),
                [f"{name}_{axis}" if self.dynamic else size for axis, size in enumerate(array.shape)],
            )
            for name, array in self.inputs.items()
        ]
        results = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in self.outputs.items()]
        weights = [
            value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, name)
            for name, value in self.constants.items()
        ]
        graph = helper.make_graph(self.nodes, "small", values, results, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)


class Parser:
    """One builder of TensorRT for many models."""

    def __init__(self) -> None:
        self._library = TensorRTLibrary("tensorrt_rtx")
        self._logger = make_logger(self._library.trt, io.StringIO())
        self._builder = self._library.create_builder(self._logger)

    def network(self, model: onnx.ModelProto, folder: Path, widen: bool = False) -> NetworkInterpreter:
        """The network of ``model``, whose constants are written to ``folder``."""
        file = folder / "constants"
        description = self.description(model, file)
        return NetworkInterpreter(description, load_constants(description, file, widen), widen)

    def description(self, model: onnx.ModelProto, constants: Path) -> NetworkDescription:
        """The described network; it is the same after a round trip through JSON."""
        parsed = parse_network(self._library, self._builder, self._logger, model.SerializeToString(), "")
        with constants.open("wb") as opened:
            found = read_network(self._library.trt, parsed.network, opened)
        assert NetworkDescription.from_json(found.as_json()) == found
        return found


def computed(network: NetworkInterpreter, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of ``network`` as arrays."""
    tensors = {
        name: torch.from_numpy(array.copy()) for name, array in inputs.items() if name in network.description.inputs
    }
    return {name: value.numpy() for name, value in network.run(tensors).items()}


def onnxruntime_outputs(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    """The outputs of ``model`` in ONNX Runtime, unoptimised."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))
