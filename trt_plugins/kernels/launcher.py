"""Launches of a bound plan. Parameters are packed in advance; a launch writes new addresses and calls the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels.call import CallPlan, KernelLaunch, Memory
from hybridge.trt_plugins.kernels.driver import cuda_driver, driver_function, result_name

_WORD = 8


class BoundPlan:
    """A plan with loaded kernels. It owns parameter memory, so each thread needs its own plan."""

    def __init__(self, plan: CallPlan, functions: Sequence[object], counters: int = 0) -> None:
        """counters: address of ``plan.counter_bytes`` zeroed bytes that no other bound plan uses."""
        self.plan = plan
        self._counters = (counters,)
        self._launches = [_BoundLaunch(*pair) for pair in zip(plan.launches, functions, strict=True)]
        enqueue = driver_function("cuLaunchKernelEx", 4)
        self._calls = [partial(enqueue, *launch.arguments) for launch in self._launches]
        self._given: tuple | None = None

    def launch(
        self,
        stream: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int = 0,
        packed: Sequence[int] = (0, 0),
    ) -> None:
        """Enqueue every kernel of the plan on ``stream`` without waiting.

        inputs, outputs: device addresses in the order of the call, 0 for an absent input. workspace: the address of
        ``plan.workspace_bytes`` bytes, 256-byte aligned. packed: query_start_loc, state_indices (or
        0) and, of a speculative call, num_accepted_tokens.
        EngineError when the driver refuses a launch.
        """
        # Consecutive calls mostly have the same addresses, which are then already written.
        if (stream, inputs, outputs, workspace, packed) != self._given:
            self._write(stream, inputs, outputs, workspace, packed)
        for call in self._calls:
            code = call()
            if code:
                label = self._launches[self._calls.index(call)].label
                raise EngineError(f"launching {label}: the CUDA driver returned {result_name(code)}")

    def _write(
        self, stream: int, inputs: Sequence[int], outputs: Sequence[int], workspace: int, packed: Sequence[int]
    ) -> None:
        addresses = {
            Memory.INPUT: inputs,
            Memory.OUTPUT: outputs,
            Memory.WORKSPACE: (workspace,),
            Memory.PACKED: packed,
            Memory.COUNTERS: self._counters,
        }
        self._given = None  # a missing address below leaves the parameters incomplete
        for launch in self._launches:
            launch.write(stream, addresses)
        # Copies, as the caller may write to its lists.
        self._given = (stream, copy(inputs), copy(outputs), workspace, copy(packed))


class _BoundLaunch:
    """One kernel with launch configuration and parameter struct; ``arguments`` go to the driver's launch function."""

    def __init__(self, launch: KernelLaunch, function: Any) -> None:
        self.label = launch.source.label
        self._params = type(launch.params).from_buffer_copy(launch.params)
        self._words = (ctypes.c_uint64 * (ctypes.sizeof(self._params) // _WORD)).from_buffer(self._params)
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self._params))
        self._patches = [
            (_word_index(launch.params, field), source.memory, source.index, source.offset)
            for field, source in launch.pointers.items()
        ]
        self._config = _launch_config(launch)
        self.arguments = (int(self._config.getPtr()), int(function), ctypes.addressof(self._pointers), None)

    def write(self, stream: int, addresses: dict[Memory, Sequence[int]]) -> None:
        """Put the addresses into the parameter struct, and the stream into the configuration."""
        words = self._words
        self._config.hStream = stream
        for word, memory, index, offset in self._patches:
            address = addresses[memory][index]
            words[word] = address + offset if address else 0


def _word_index(params: ctypes.Structure, path: str) -> int:
    """Index of a pointer field in 8-byte words; ``path`` may lead into a nested struct: "rows.context_lengths"."""
    offset: int = 0
    kind: Any = type(params)
    for name in path.split("."):
        offset += getattr(kind, name).offset
        kind = dict(kind._fields_)[name]
    return offset // _WORD


def _launch_config(launch: KernelLaunch) -> Any:
    driver = cuda_driver()
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    attributes = []
    if launch.cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = launch.cluster, 1, 1
        attributes.append(attribute)
    if launch.overlap:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config
