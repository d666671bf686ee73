"""Hand-made artifacts with the records of their engines, and the runtime's engine over the stand-in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.artifact.engine_record import ENGINE_FILE, EngineRecord, write_engine_record
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.runtime.engines.tensorrt import TensorRTEngine
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine
from hybridge.trt_plugins.build.builder import engine_folder
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.runtime.tensorrt.fake_memory import FakeMemory
from tests.runtime.tensorrt.network_double import network_compute
from tests.runtime.tensorrt.paged_double import ParsedEngine
from tests.runtime.tensorrt.stand_in import Compute, StandIn

PRESET = "rtx-ampere"
SMALL = Plan(max_seq_len=48, max_batch_size=3)


@dataclass(frozen=True)
class BuiltArtifact:
    """An artifact, its oracle, the record that a build of it writes, and what its engine computes.

    Shared between tests: not to be changed.
    """

    folder: Path
    made: HandMade
    record: EngineRecord
    compute: Compute

    @property
    def config(self) -> RuntimeConfig:
        return read_config(self.folder)

    @property
    def built(self) -> BuiltEngine:
        return BuiltEngine(engine_folder(self.folder, PRESET), self.record, "run hybridge build-engine")


class BuiltArtifacts:
    """Artifacts by plan, each made on first use; TensorRT parses them, but builds no engine."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[Plan, BuiltArtifact] = {}

    def get(self, plan: Plan) -> BuiltArtifact:
        """The artifact of ``plan`` with an engine of all its rows and positions."""
        if plan not in self._made:
            made = HandMade(plan)
            folder = made.write(self._root / str(len(self._made)))
            files = engine_folder(folder, PRESET)
            files.mkdir(parents=True)
            engine = ParsedEngine(folder, files, plugins="off")
            record = replace(engine.record, model_sha256=sha256((folder / MODEL_FILE).read_bytes()).hexdigest())
            write_engine_record(files / ENGINE_FILE, record)
            self._made[plan] = BuiltArtifact(folder, made, record, network_compute(engine.parsed.network))
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

    stand_in = StandIn(trt, artifact.record, memory, artifact.compute, **options)
    monkeypatch.setattr(trt, "Runtime", stand_in.runtime)
    return stand_in


def open_engine(artifact: BuiltArtifact, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Opened:
    """The engine of ``artifact`` over a fake device; ``options`` are the stand-in's."""
    memory, name = FakeMemory(options.pop("capacity", 1 << 40)), options.pop("library", "tensorrt_rtx")
    stand_in = stand_in_of(artifact, memory, monkeypatch, **options)
    library = RuntimeLibrary(name, plugins=False)
    return Opened(TensorRTEngine(artifact.config, artifact.built, memory, library), memory, stand_in)
