"""What execution contexts without a GPU compute: the network that TensorRT's parser makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from hybridge.runtime.engines.torch.tensors import array_from_tensor, tensor_from_array


def network_compute(network: NetworkInterpreter) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """One run of ``network`` on copies of its inputs; all its outputs."""
    tensors = network.description.tensors

    def compute(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert set(values) == set(network.description.inputs), "inputs of another network"
        inputs = {name: tensor_from_array(value, tensors[name].dtype) for name, value in values.items()}
        found = network.run({name: value.to(network.input_type(name)) for name, value in inputs.items()})
        return {name: array_from_tensor(value, tensors[name].dtype) for name, value in found.items()}

    return compute
