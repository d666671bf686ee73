"""Hand-made artifacts with engines that TensorRT-RTX really built, and the runtime's engine over the stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.artifact.engine_record import EngineRecord
from hybridge.runtime.engines.tensorrt import TensorRTEngine
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine
from hybridge.runtime.engines.tensorrt_network.parsed import parse_artifact
from hybridge.trt_plugins.build.builder import build_engine, engine_folder
from hybridge.trt_plugins.build.options import BuildOptions
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.runtime.tensorrt.fake_memory import FakeMemory
from tests.runtime.tensorrt.network_double import network_compute
from tests.runtime.tensorrt.stand_in import Compute, StandIn

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


@cache
def compute_of(folder: Path) -> Compute:
    """One step of the network that TensorRT's parser makes of the artifact."""
    return network_compute(parse_artifact(folder, plugins="off").network)
