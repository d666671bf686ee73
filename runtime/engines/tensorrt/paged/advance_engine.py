"""The second engine of a build with replay: it advances deferred states by the accepted draft tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.engine_record import AdvanceRecord
from hybridge.artifact.names import NUM_ACCEPTED_TOKENS, QUERY_START_LOC, STATE_INDICES
from hybridge.runtime.engines.rollback.rollback import DeferredRows
from hybridge.runtime.engines.tensorrt.binding_check import check_bindings, checked_profiles
from hybridge.runtime.engines.tensorrt.bound_context import BoundContext
from hybridge.runtime.engines.tensorrt.decode_step import DecodeStep
from hybridge.runtime.engines.tensorrt.engine_tensors import EngineTensor
from hybridge.runtime.engines.tensorrt.memory import Allocation
from hybridge.runtime.engines.tensorrt.paged.loaded_engine import LoadedEngine
from hybridge.runtime.engines.tensorrt.paged.pools import DevicePools
from hybridge.runtime.engines.tensorrt.paged.step_arrays import ShapedArrays, StepArrays
from hybridge.runtime.engines.tensorrt.paged.step_bindings import FIXED, StepBindings
from hybridge.runtime.engines.tensorrt.paged.step_size import StepSize
from hybridge.trt_plugins.build.advance_engine import ADVANCE, advance_bindings

_ROW_INPUTS = (QUERY_START_LOC, STATE_INDICES, NUM_ACCEPTED_TOKENS)


def advance_profiles(
    config: RuntimeConfig, bindings: StepBindings, record: AdvanceRecord, tensors: Mapping[str, EngineTensor]
) -> Mapping[str, int]:
    """The profiles of the engine with ``tensors``; EngineError where it is not what the step's engine needs."""
    declared = advance_bindings(replace(config, bindings=bindings.graph), bindings.stored)
    outputs = {pool.output for pool in bindings.pools}
    inputs = tuple(b for b in declared if b.name not in outputs)
    check_bindings(inputs, tuple(b for b in declared if b.name in outputs), FIXED, record, tensors)
    return checked_profiles((ADVANCE,), record, tensors)


class AdvanceSteps:
    """Advances the states that the last step deferred; a ``RollbackMemory``.

    It runs on all tokens that the step stored, in the rows of the step: a row writes only its state after the last
    accepted token, over the one that it began with, and a row that does not advance is padding.
    """

    def __init__(self, loaded: LoadedEngine, bindings: StepBindings, stored: Mapping[str, Allocation]) -> None:
        """``stored``: memory that the step writes. OutOfDeviceMemory when there is too little memory."""
        self._loaded, self._bindings, self._stored = loaded, bindings, stored
        rows = [bindings.graph.input(name) for name in _ROW_INPUTS]
        self._arrays = StepArrays(loaded.memory, rows, [bindings.draft_size])
        self._captured: dict[StepSize, tuple[DecodeStep, ShapedArrays]] = {}
        self._deferred: DeferredRows | None = None

    @property
    def captured(self) -> Mapping[StepSize, tuple[DecodeStep, ShapedArrays]]:
        """The captured steps and their inputs, by size."""
        return self._captured

    def defer(self, deferred: DeferredRows, step: ShapedArrays, pools: DevicePools) -> None:
        """The rows of the last step that wait, and the step's inputs."""
        self._deferred, self._size, self._pools = deferred, step.size, pools
        self._bounds = step.arrays[QUERY_START_LOC].copy()

    def advance(self, accepted: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Enqueue it; the step and the advance before must be done."""
        deferred = self._deferred
        assert deferred is not None
        step, arrays = self._step(self._size)
        table, counts = arrays.arrays[STATE_INDICES], arrays.arrays[NUM_ACCEPTED_TOKENS]
        arrays.arrays[QUERY_START_LOC][...] = self._bounds
        table.fill(-1)
        counts.fill(1)
        for row, slot, count in zip(deferred.rows.tolist(), deferred.slots.tolist(), accepted, strict=True):
            if count:
                counts[row], table[row, count - 1] = count, slot
        step.run()

    def forget(self) -> None:
        """Release the captured steps, whose pools are about to be freed; no step may be pending."""
        for step, _ in self._captured.values():
            step.close()
        self._captured.clear()
        self._deferred = None

    def close(self) -> None:
        """Release everything; calling it twice is allowed."""
        self.forget()
        self._arrays.free()

    def _step(self, size: StepSize) -> tuple[DecodeStep, ShapedArrays]:
        if size not in self._captured:
            arrays = self._arrays.shaped(size)
            context = self._loaded.context(ADVANCE, fixed_shapes=True)
            self._bind(context, arrays)
            self._captured[size] = DecodeStep(self._loaded.memory, context, partial(_around, arrays)), arrays
        return self._captured[size]

    def _bind(self, context: BoundContext, arrays: ShapedArrays) -> None:
        states = [pool for pool in self._bindings.pools if not pool.spec.grows]
        pool_addresses, shapes = self._pools.addresses(), self._pools.shapes
        addresses = {name: pool_addresses[name] for pool in states for name in (pool.spec.name, pool.output)}
        addresses |= {name: allocation.address for name, allocation in self._stored.items()}
        axes = arrays.size.axes
        stored = {binding.name: binding.resolve(**axes) for binding in self._bindings.stored}
        given = {pool.spec.name: shapes[pool.spec.name] for pool in states}
        context.bind({**arrays.addresses, **addresses}, {**arrays.shapes, **stored, **given})


def _around(arrays: ShapedArrays, enqueue: Callable[[], None]) -> None:
    arrays.upload()
    enqueue()
