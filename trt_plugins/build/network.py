"""The network that TensorRT's parser makes of the model: parsing with typed errors, and reading what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build.build_log import explain, out_of_memory
from hybridge.trt_plugins.build.job import TensorSummary
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary
from hybridge.trt_plugins.plugins.data_types import dtype_from_trt

FLOAT32 = "float32"


def parse_network(library: TensorRTLibrary, builder: Any, logger: Any, model: bytes, model_path: str) -> Any:
    """A strongly typed network of ``model``; its external weights are read relative to ``model_path``.

    EngineError names the node, its operator and what the parser expected.
    """
    network = library.create_network(builder)
    parser = library.trt.OnnxParser(network, logger)
    if not parser.parse(model, model_path):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        reasons = "; ".join(_described(error) for error in errors[:3])
        if not reasons or out_of_memory(logger.errors):
            reasons = explain(logger.errors)
        raise EngineError(f"{library.name} {library.version} cannot read the graph: {reasons}")
    # The network's constants point into the parser's memory: it has to live as long as the network.
    return _NetworkAndParser(network, parser)


class _NetworkAndParser:
    """A network with the parser that owns its weights."""

    def __init__(self, network: Any, parser: Any) -> None:
        self.network = network
        self._parser = parser


def layers_of(network: Any) -> Iterator[Any]:
    """The layers in network order."""
    return (network.get_layer(index) for index in range(network.num_layers))


def layer_counts(network: Any) -> dict[str, int]:
    """Layer type, such as KV_CACHE_UPDATE, to the number of layers, most frequent first."""
    return dict(Counter(layer.type.name for layer in layers_of(network)).most_common())


def tensor_summaries(network: Any, plugin_aliases: Mapping[str, str]) -> list[TensorSummary]:
    """The inputs and outputs in order; an output of KV_CACHE_UPDATE shares the memory of the cache it updates.

    plugin_aliases: output to input of the states that plugins update in place.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    aliases = {
        layer.get_output(0).name: layer.get_input(0).name
        for layer in layers_of(network)
        if layer.type.name == "KV_CACHE_UPDATE" and layer.get_input(0).is_network_input
    } | dict(plugin_aliases)
    return [
        *(TensorSummary(tensor.name, "input", dtype_name(tensor), None) for tensor in inputs),
        *(TensorSummary(tensor.name, "output", dtype_name(tensor), aliases.get(tensor.name)) for tensor in outputs),
    ]


def value_dtypes(network: Any, names: Iterable[str]) -> dict[str, str]:
    """Types of those of the graph's values ``names`` that the network holds, initializers included."""
    # The parser names the output of the constant layer of initializer "x" either "x" or "x_output".
    requested = {spelling: name for name in names for spelling in (name, f"{name}_output")}
    tensors = (layer.get_output(index) for layer in layers_of(network) for index in range(layer.num_outputs))
    return {requested[tensor.name]: dtype_name(tensor) for tensor in tensors if tensor.name in requested}


def check_float32(network: Any, names: Iterable[str]) -> None:
    """EngineError naming the first of the values ``names`` that the network holds in another type than float32."""
    for name, dtype in value_dtypes(network, names).items():
        if dtype != FLOAT32:
            raise EngineError(
                f"expected {name} in float32 in the engine, found {dtype}: states would lose precision; "
                "export the checkpoint again"
            )


def dtype_name(tensor: Any) -> str:
    """The type of a tensor as artifact.dtypes.DType spells it."""
    dtype = dtype_from_trt(tensor.dtype)
    return dtype.value if dtype is not None else tensor.dtype.name.lower()


def _described(error: Any) -> str:
    stack = [name for name in error.local_function_stack() if name] if hasattr(error, "local_function_stack") else []
    where = f" inside {' in '.join(stack)}" if stack else ""
    node = error.node_name() or f"number {error.node()}"
    return f"node {node} ({error.node_operator()}){where}: {' '.join(error.desc().split())}"
