"""TensorRT-RTX without a GPU: its real module, enumerations and logger, but engines that compute the parsed network.

Every object that the runtime gets is a ``CheckedDouble`` of the real class, so that a method, a property or an
argument that TensorRT does not have fails. The contexts refuse what TensorRT refuses: a tensor without address, a
shape outside the profile, too little scratch memory, a capture before the first enqueue of a shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import AdvanceRecord, EngineRecord
from hybridge.runtime.engines.tensorrt.memory import ALIGNMENT
from hybridge.trt_plugins.plugins.data_types import trt_from_dtype
from tests.runtime.tensorrt.fake_memory import FakeMemory
from tests.support.checked_double import CheckedDouble

Compute = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
SCRATCH_BYTES = 1000
CAPABILITY = "8.6"


@dataclass
class StandIn:
    """What the stand-in of ``trt.Runtime`` makes engines from, and a record of its calls.

    refuse: TensorRT's log line for a failing deserialisation. invalid: diagnostics of an invalid engine.
    fail_enqueue: called in each enqueue, may log, raise, or answer False. others: of further files, each of another
    length, which the same runtime loads.
    """

    trt: Any
    record: EngineRecord | AdvanceRecord
    memory: FakeMemory
    compute: Compute
    refuse: str | None = None
    invalid: int = 0
    fail_enqueue: Callable[[Any], bool] | None = None
    capturable: bool = True
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    contexts: list[FakeContext] = field(default_factory=list)
    others: tuple[StandIn, ...] = ()

    def runtime(self, logger: Any) -> CheckedDouble:
        """Takes the place of the class ``trt.Runtime``."""
        return CheckedDouble(_real_runtime(), FakeRuntime(self, logger))


def _real_runtime() -> type:
    """The class itself: the module's attribute is what the stand-in takes the place of."""
    from tensorrt_rtx_bindings import tensorrt_rtx

    real: type = tensorrt_rtx.Runtime
    return real


class FakeRuntime:
    engine_header_size = 64

    def __init__(self, stand_in: StandIn, logger: Any) -> None:
        self._stand_in, self.logger = stand_in, logger

    def get_engine_validity(self, header: Any) -> tuple[Any, int]:
        assert len(header) == self.engine_header_size
        kinds = self._stand_in.trt.EngineValidity
        return (kinds.INVALID if self._stand_in.invalid else kinds.VALID), self._stand_in.invalid

    def deserialize_cuda_engine(self, plan: Any) -> CheckedDouble | None:
        stand_ins = (self._stand_in, *self._stand_in.others)
        stand_in = next((each for each in stand_ins if len(plan) == each.record.nbytes), self._stand_in)
        if stand_in.refuse is not None or len(plan) != stand_in.record.nbytes:
            severity = stand_in.trt.ILogger.Severity
            self.logger.log(severity.ERROR, stand_in.refuse or "the plan has another length")
            return None
        return CheckedDouble(stand_in.trt.ICudaEngine, FakeEngine(stand_in, self.logger))


class FakeEngine:
    device_memory_size_v2 = SCRATCH_BYTES

    def __init__(self, stand_in: StandIn, logger: Any) -> None:
        self.stand_in, self.logger, trt = stand_in, logger, stand_in.trt
        self.trt = trt
        self.entries = {e["name"]: {**e, **stand_in.changes.get(e["name"], {})} for e in stand_in.record.bindings}
        self.num_io_tensors = len(self.entries)
        self.num_optimization_profiles = len(stand_in.record.profiles)

    def get_tensor_name(self, index: int) -> str:
        return list(self.entries)[index]

    def get_tensor_location(self, name: str) -> Any:
        return getattr(self.trt.TensorLocation, self.entries[name].get("location", "DEVICE"))

    def get_tensor_mode(self, name: str) -> Any:
        return getattr(self.trt.TensorIOMode, self.entries[name]["mode"].upper())

    def get_tensor_dtype(self, name: str) -> Any:
        return trt_from_dtype(self.trt, DType(self.entries[name]["dtype"]))

    def get_tensor_shape(self, name: str) -> Any:
        return self.trt.Dims([size if isinstance(size, int) else -1 for size in self.entries[name]["shape"]])

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self.entries[name].get("engine_aliases", self.entries[name].get("aliases"))

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        shapes = self.entries[name].get("profiles", [p.shapes[name] for p in self.stand_in.record.profiles])
        return [self.trt.Dims(shape) for shape in shapes[profile_index]]

    def create_runtime_config(self) -> CheckedDouble:
        return CheckedDouble(self.trt.IRuntimeConfig, FakeConfig(self.trt))

    def create_execution_context(self, given: Any) -> CheckedDouble:
        """``given``: a runtime configuration (TensorRT-RTX), or the strategy alone (full TensorRT)."""
        config = given.behaviour if isinstance(given, CheckedDouble) else FakeConfig(self.trt, given)
        strategy = config.get_execution_context_allocation_strategy()
        assert strategy == self.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = FakeContext(self, config)
        self.stand_in.contexts.append(context)
        return CheckedDouble(self.trt.IExecutionContext, context)


class FakeConfig:
    def __init__(self, trt: Any, strategy: Any = None) -> None:
        self.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.LAZY
        self._strategy = strategy or trt.ExecutionContextAllocationStrategy.STATIC
        self.cache: object = None

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self._strategy = strategy

    def get_execution_context_allocation_strategy(self) -> Any:
        return self._strategy

    def create_runtime_cache(self) -> object:
        return object()

    def set_runtime_cache(self, cache: object) -> bool:
        self.cache = cache
        return True


class FakeContext:
    def __init__(self, engine: FakeEngine, config: FakeConfig) -> None:
        self.engine, self.config = engine, config
        self.profile: int | None = None
        self.has_scratch = False
        self.addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.address_calls = self.enqueues = 0
        self._settled: dict[str, tuple[int, ...]] | None = None

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        assert stream_handle == self.engine.stand_in.memory.stream
        self.profile = profile_index
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= SCRATCH_BYTES and memory % ALIGNMENT == 0
        self.has_scratch = True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.address_calls += 1
        assert memory % ALIGNMENT == 0
        self.addresses[name] = memory
        return name in self.engine.entries

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self.profile is not None
        least, _, most = (tuple(s) for s in self.engine.get_tensor_profile_shape(name, self.profile))
        self.shapes[name] = shape
        return all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))

    def infer_shapes(self) -> list[str]:
        inputs = [name for name, entry in self.engine.entries.items() if entry["mode"] == "input"]
        return [name for name in inputs if name not in self.shapes]

    def is_stream_capturable(self, stream: int) -> bool:
        assert stream == self.engine.stand_in.memory.stream
        return self.engine.stand_in.capturable

    def execute_async_v3(self, stream_handle: int) -> bool:
        stand_in = self.engine.stand_in
        memory, entries = stand_in.memory, self.engine.entries
        assert stream_handle == memory.stream and self.has_scratch and set(self.addresses) == set(entries)
        if memory.captured is not None:
            assert self._settled == self.shapes, "captured before the first enqueue of the shape"
        self._settled = dict(self.shapes)
        self.enqueues += 1
        if stand_in.fail_enqueue is not None and not stand_in.fail_enqueue(self.engine.logger):
            return False
        addresses, shapes = dict(self.addresses), dict(self.shapes)
        for name, entry in entries.items():
            if "aliases" in entry:
                assert addresses[name] == addresses[entry["aliases"]], f"{name} does not share its input's memory"
        inputs = {addresses[name] for name, entry in entries.items() if entry["mode"] == "input"}
        apart = [name for name, entry in entries.items() if entry["mode"] == "output" and "aliases" not in entry]
        assert not {addresses[name] for name in apart} & inputs, "an output shares the memory of an input"
        memory.enqueue(lambda: self._run(addresses, shapes))
        return True

    def _run(self, addresses: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> None:
        memory, entries = self.engine.stand_in.memory, self.engine.entries

        def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
            dtype = DType(entries[name]["dtype"]).numpy
            nbytes = int(np.prod(shape)) * dtype.itemsize
            return memory.bytes_at(addresses[name], nbytes).view(dtype).reshape(shape)

        outputs = self.engine.stand_in.compute({name: tensor(name, shape).copy() for name, shape in shapes.items()})
        for name, value in outputs.items():
            target = tensor(name, value.shape)
            target[...] = value.astype(target.dtype)
