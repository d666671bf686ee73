"""Operator calls as TensorRT makes them: contiguous, of every size that a profile admits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from hybridge.artifact.bindings import NUM_BLOCKS
from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.plugins.kernel_calls import kernel_call
from hybridge.trt_plugins.plugins.targets import capability_from_text, traits_from_capability
from hybridge.trt_plugins.spec import AttributeValue, OpSpec, TensorSpec
from hybridge.trt_plugins.specs.packed import NUM_SLOTS, ROW_BOUNDS, ROWS, TOKENS

Planner = Callable[[OpCall, DeviceTraits], CallPlan]


@dataclass(frozen=True)
class CallRange:
    """The calls of one node: ``dims`` gives the least and most of each symbolic dim, ``types`` the type variables.

    variant: of the operator's kernels, "": the planner's choice.
    """

    spec: OpSpec
    attributes: tuple[tuple[str, AttributeValue], ...]
    types: tuple[tuple[str, DType], ...]
    dims: tuple[tuple[str, tuple[int, int]], ...]
    has_time: bool
    variant: str = ""

    def calls(self) -> Iterator[OpCall]:
        """Calls of every combination of sizes: each dim's least, most, and the powers of two between.

        Bounds of rows follow from rows, no row is without tokens, and no kernel cares how large a pool is.
        """
        most = {name: bounds[1] for name, bounds in self.dims}
        free = {name: _steps(*bounds) for name, bounds in self.dims if name not in (ROW_BOUNDS, NUM_BLOCKS, NUM_SLOTS)}
        for values in itertools.product(*free.values()):
            sizes = {**most, **dict(zip(free, values, strict=True))}
            if ROW_BOUNDS in sizes:
                sizes[ROW_BOUNDS] = sizes[ROWS] + 1
            if sizes.get(ROWS, 0) <= sizes.get(TOKENS, sizes.get(ROWS, 0)):
                yield self.call(sizes)

    def call(self, dims: Mapping[str, int]) -> OpCall:
        """The call of these sizes."""
        types = dict(self.types)

        def layout(tensor: TensorSpec) -> TensorLayout:
            dtype = tensor.dtype if isinstance(tensor.dtype, DType) else types[tensor.dtype]
            shape = tuple(dim if isinstance(dim, int) else dims[dim] for dim in tensor.dims_for(self.has_time))
            return TensorLayout.contiguous(dtype, shape)

        inputs, outputs = (tuple(map(layout, tensors)) for tensors in (self.spec.inputs, self.spec.outputs))
        return kernel_call(self.spec, dict(self.attributes), inputs, outputs, self.variant)


@lru_cache(maxsize=256)
def largest_workspace(calls: CallRange, capabilities: tuple[str, ...], planner: Planner) -> int:
    """Most bytes of workspace that any of ``calls`` needs on a GPU of ``capabilities``.

    The largest call need not have the largest workspace: a planner may split small ones to fill the GPU.
    UnsupportedError where the kernels cannot run one of them.
    """
    return max((plan.workspace_bytes for plan in _plans(calls, capabilities, planner)), default=0)


@lru_cache(maxsize=256)
def kernels_of(
    calls: CallRange, capabilities: tuple[str, ...], planner: Planner
) -> tuple[tuple[KernelSource, ...], ...]:
    """The kernels of each of ``calls`` on each GPU of ``capabilities``; UnsupportedError as ``largest_workspace``."""
    plans = _plans(calls, capabilities, planner)
    return tuple(tuple(launch.source for launch in plan.launches) for plan in plans)


def _plans(calls: CallRange, capabilities: tuple[str, ...], planner: Planner) -> Iterator[CallPlan]:
    devices = [traits for text in capabilities for traits in traits_from_capability(capability_from_text(text))]
    return (planner(call, device) for call in calls.calls() for device in devices)


def _steps(least: int, most: int) -> list[int]:
    powers = (1 << exponent for exponent in range(most.bit_length()))
    return sorted({least, most, *(power for power in powers if least < power < most)})
