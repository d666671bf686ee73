"""Engines without a GPU: the execution context computes the parsed network over the memory of the fake device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE
from hybridge.artifact.engine_record import (
    ENGINE_FILE,
    HEAD_FOLDER,
    AdvanceRecord,
    EngineRecord,
    PluginsRecord,
    write_engine_record,
)
from hybridge.runtime.engines.tensorrt import engine as dense_engine
from hybridge.runtime.engines.tensorrt import opened_device
from hybridge.runtime.engines.tensorrt.library import PLUGIN_LAYER, RuntimeLibrary
from hybridge.runtime.engines.tensorrt.paged import engine
from hybridge.runtime.engines.tensorrt.paged.engine import TensorRTPagedEngine
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine
from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from hybridge.runtime.engines.tensorrt_network.parsed import ParsedArtifact, parse_artifact, tensor_summaries
from hybridge.trt_plugins.build.advance_engine import (
    ADVANCE_FILE,
    advance_bindings,
    advance_profile,
)
from hybridge.trt_plugins.build.build_plan import PLAN_FILE
from hybridge.trt_plugins.build.options import SNAPSHOT
from hybridge.trt_plugins.build.profiles import row_buckets
from hybridge.trt_plugins.build.record import engine_bindings
from hybridge.trt_plugins.build.target import Machine
from hybridge.trt_plugins.catalog import DOMAIN
from hybridge.trt_plugins.network.description import PLUGIN
from hybridge.trt_plugins.rewrites.hidden_states import HiddenForm
from tests.runtime.tensorrt.fake_memory import FakeMemory
from tests.runtime.tensorrt.network_double import network_compute
from tests.runtime.tensorrt.stand_in import CAPABILITY, StandIn

SCRATCH = 1000


class ParsedEngine:
    """What a build would record of the artifact in ``folder``, and the networks that its engines have."""

    def __init__(self, folder: Path, files: Path, **options: Any) -> None:
        """``files``: an empty folder for the engine's files. ``options``: of the build."""
        self.folder, self.files = folder, files
        self.parsed = parse_artifact(folder, **options)
        self.record = _record(self.parsed)
        for part in (self.record, self.record.advance):
            if part is not None:
                (files / part.engine).write_bytes(_content(part.engine))
        self.head: ParsedArtifact | None = None
        self.head_record: EngineRecord | None = None
        if self.parsed.plan.hidden is HiddenForm.SHOWN:
            head_options = {**options, "draft_states": SNAPSHOT}
            self.head = parse_artifact(folder, config_file=MTP_CONFIG_FILE, model_file=MTP_MODEL_FILE, **head_options)
            digest = sha256((folder / MTP_MODEL_FILE).read_bytes()).hexdigest()
            content = _content(f"{HEAD_FOLDER}/{PLAN_FILE}")
            self.head_record = replace(_record(self.head), model_sha256=digest, nbytes=len(content))
            place = files / HEAD_FOLDER
            place.mkdir()
            (place / PLAN_FILE).write_bytes(content)
            write_engine_record(place / ENGINE_FILE, self.head_record)

    @property
    def built(self) -> BuiltEngine:
        return BuiltEngine(self.files, self.record, "run hybridge build-engine")


@dataclass
class OpenedDouble:
    """An engine over a fake device. contexts: those of the step's engine, then of the advance engine."""

    engine: TensorRTPagedEngine
    memory: FakeMemory
    step: StandIn
    advance: StandIn | None

    def close(self) -> None:
        """Close the engine, twice, and check that nothing is left."""
        self.engine.close()
        self.engine.close()
        self.memory.check_nothing_left()


def open_double(parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch, **options: Any) -> OpenedDouble:
    """The engine of ``parsed``; ``options`` are the stand-in's, and the device's ``capacity``."""
    memory = FakeMemory(options.pop("capacity", 1 << 40))
    step, advance = install(parsed, memory, monkeypatch, **options)
    library = RuntimeLibrary("tensorrt_rtx", plugins=False)
    opened = TensorRTPagedEngine(parsed.folder, parsed.built, memory, library)
    return OpenedDouble(opened, memory, step, advance)


def use_double(parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch) -> FakeMemory:
    """A machine on which everything that opens the artifact of ``parsed`` with TensorRT gets its doubles.

    One engine is open at a time.
    """
    memory = FakeMemory()
    install(parsed, memory, monkeypatch)

    def opened() -> FakeMemory:
        memory.closed = False
        return memory

    monkeypatch.setattr(opened_device, "CudaMemory", opened)
    for module in (dense_engine, engine):
        monkeypatch.setattr(module, "find_engine", lambda folder, requested: parsed.built)
    monkeypatch.setattr(opened_device, "has_plugins", lambda layers: False)
    selection = "hybridge.runtime.engines.tensorrt.selection"
    monkeypatch.setattr(f"{selection}.this_machine", lambda: Machine(("tensorrt_rtx",), CAPABILITY))
    monkeypatch.setattr(f"{selection}.cuda_core", lambda: None)
    return memory


def install(
    parsed: ParsedEngine, memory: FakeMemory, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[StandIn, StandIn | None]:
    """Doubles of ``parsed``'s engines instead of ``tensorrt_rtx.Runtime``: of the step's and of the second one."""
    import tensorrt_rtx as trt

    record, advance = parsed.record, None
    step = StandIn(trt, record, memory, network_compute(parsed.parsed.network), **options)
    if record.advance is not None:
        assert parsed.parsed.advance is not None
        advance = StandIn(trt, record.advance, memory, network_compute(parsed.parsed.advance))
        step.others = (advance,)
    if parsed.head is not None and parsed.head_record is not None:
        head = StandIn(trt, parsed.head_record, memory, network_compute(parsed.head.network))
        step.others = (*step.others, head)
    monkeypatch.setattr(trt, "Runtime", step.runtime)
    return step, advance


def _record(parsed: ParsedArtifact) -> EngineRecord:
    import tensorrt_rtx as trt

    plan, network = parsed.plan, parsed.network
    declared = [*plan.config.bindings.inputs, *plan.config.bindings.outputs, *parsed.stored]
    operators = [layer.attributes["operator"] for layer in network.description.layers if layer.kind == PLUGIN]
    plugins = PluginsRecord(DOMAIN, "1", {name: operators.count(name) for name in operators}, True, "")
    common = {"library": "tensorrt_rtx", "library_version": trt.__version__, "preset": plan.target.preset.name}
    return EngineRecord(
        engine=PLAN_FILE,
        nbytes=len(_content(PLAN_FILE)),
        sha256=sha256(_content(PLAN_FILE)).hexdigest(),
        compute_capabilities=[CAPABILITY],
        plugins=plugins,
        max_batch_size=plan.limits.max_batch_size,
        max_seq_len=plan.limits.max_seq_len,
        profiles=plan.profiles,
        bindings=engine_bindings(declared, plan.limits, tensor_summaries(network.description, network.aliases.shared)),
        layers={PLUGIN_LAYER: len(operators)} if operators else {},
        model_sha256="",
        build_seconds=0.0,
        scratch_bytes=SCRATCH,
        row_buckets=row_buckets(plan.config, plan.limits),
        speculative_tokens=plan.options.speculative_tokens,
        advance=None if parsed.advance is None else _advance(parsed, parsed.advance),
        **common,
    )


def _advance(parsed: ParsedArtifact, network: NetworkInterpreter) -> AdvanceRecord:
    plan = parsed.plan
    declared = advance_bindings(plan.config, parsed.stored)
    summaries = tensor_summaries(network.description, network.aliases.shared)
    content = _content(ADVANCE_FILE)
    return AdvanceRecord(
        ADVANCE_FILE,
        len(content),
        sha256(content).hexdigest(),
        [advance_profile(declared, plan.profiles)],
        engine_bindings(declared, plan.limits, summaries),
        {},
        SCRATCH,
    )


def _content(name: str) -> bytes:
    """The file of an engine: its length tells the two apart."""
    return name.encode() * 100
