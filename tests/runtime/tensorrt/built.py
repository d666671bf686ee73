"""Hand-made artifacts with engines that TensorRT-RTX really built, and the runtime's engine over the stand-in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.artifact.engine_record import EngineRecord
from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from hybridge.runtime.engines.tensorrt import TensorRTEngine
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine
from hybridge.trt_plugins.build.builder import build_engine, engine_folder
from hybridge.trt_plugins.build.options import BuildOptions
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.runtime.tensorrt.fake_memory import FakeMemory
from tests.runtime.tensorrt.stand_in import StandIn

PRESET, CAPABILITY = "rtx-ampere", "8.6"


@dataclass(frozen=True)
class BuiltArtifact:
    """An artifact, its oracle, and the engine that was built of it. Shared between tests: not to be changed."""

    folder: Path
    made: HandMade
    record: EngineRecord

    @property
    def config(self) -> RuntimeConfig:
        return read_config(self.folder)

    @property
    def built(self) -> BuiltEngine:
        return BuiltEngine(engine_folder(self.folder, PRESET), self.record, "run hybridge build-engine")


class BuiltArtifacts:
    """Builds by plan, each made on first use."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[Plan, BuiltArtifact] = {}

    def get(self, plan: Plan) -> BuiltArtifact:
        """The artifact of ``plan`` with an engine of all its rows and positions."""
        if plan not in self._made:
            made = HandMade(plan)
            folder = made.write(self._root / str(len(self._made)))
            options = BuildOptions(target=PRESET, library="tensorrt_rtx", plugins="off")
            self._made[plan] = BuiltArtifact(folder, made, build_engine(folder, options))
        return self._made[plan]


@dataclass
class Opened:
    """An engine over a fake device and a stand-in of TensorRT."""

    engine: TensorRTEngine
    memory: FakeMemory
    stand_in: StandIn

    def close(self) -> None:
        """Close the engine, twice, and check that nothing is left."""
        self.engine.close()
        self.engine.close()
        self.memory.check_nothing_left()


def stand_in_of(
    artifact: BuiltArtifact, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> StandIn:
    """A stand-in of ``artifact``'s engine instead of ``tensorrt_rtx.Runtime``."""
    import tensorrt_rtx as trt

    stand_in = StandIn(trt, artifact.record, memory, compute_of(artifact.folder), **options)
    monkeypatch.setattr(trt, "Runtime", stand_in.runtime)
    return stand_in


def open_engine(artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Opened:
    """The engine of ``artifact`` over a fake device; ``options`` are the stand-in's."""
    memory, name = FakeMemory(options.pop("capacity", 1 << 40)), options.pop("library", "tensorrt_rtx")
    stand_in = stand_in_of(artifact, memory, monkeypatch, **options)
    library = RuntimeLibrary(name, plugins=False)
    return Opened(TensorRTEngine(artifact.config, artifact.built, memory, library), memory, stand_in)


def compute_of(folder: Path) -> Any:
    """One step of the artifact's own graph, in float32 on the CPU."""
    engine = OnnxRuntimeEngine(folder)

    def compute(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch = values[INPUT_IDS].shape[0]
        states = engine.allocate_states(batch, engine.max_seq_len)
        for name, buffer in states.buffers.items():
            for row in range(batch):
                buffer.write_row(row, values[name][row].astype(np.float32))
        inputs = StepInputs(values[INPUT_IDS], values[CONTEXT_LENGTHS], values[PAST_LENGTHS])
        outputs = {engine.config.result.name: engine.step(inputs, states)}
        for spec in engine.state_specs:
            outputs[str(spec.replaced_by)] = np.stack([states.buffers[spec.name].read_row(r) for r in range(batch)])
        return outputs

    return compute
