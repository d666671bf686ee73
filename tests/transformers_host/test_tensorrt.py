"""generate() over an engine that TensorRT-RTX really built, which a stand-in executes as if its GPU were here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge import accelerate
from tests.transformers_host.conftest import LoadModel
from tests.transformers_host.generations import BATCH, BATCH_MASK, BEAMS, SAMPLED, exactly, generated

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
import tensorrt_rtx

from hybridge.runtime.engines.tensorrt import opened_device
from hybridge.transformers_host.artifact_cache import cached_artifact
from hybridge.trt_plugins.build.builder import build_engine
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.target import Machine
from tests.runtime.tensorrt.built import CAPABILITY, PRESET, compute_of
from tests.runtime.tensorrt.fake_memory import FakeMemory
from tests.runtime.tensorrt.stand_in import StandIn

ROWS, TOKENS = 4, 96


def test_same_tokens_and_nothing_left(
    load_model: LoadModel, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model("nemotron_h", hybrid_override_pattern="M*-")
    greedy = {"input_ids": BATCH, "attention_mask": BATCH_MASK, "do_sample": False, **exactly(12)}
    ways = {"a padded batch, greedy": greedy, "sampled": SAMPLED, "beams": BEAMS}
    expected = {name: generated(model, **way) for name, way in ways.items()}

    artifact = cached_artifact(model, cache_folder, ROWS, TOKENS)
    record = build_engine(artifact, BuildOptions(target=PRESET, library="tensorrt_rtx", plugins="off"))
    memory = FakeMemory()
    monkeypatch.setattr(tensorrt_rtx, "Runtime", StandIn(tensorrt_rtx, record, memory, compute_of(artifact)).runtime)
    monkeypatch.setattr(opened_device, "CudaMemory", lambda: memory)
    selection = "hybridge.runtime.engines.tensorrt.selection"
    monkeypatch.setattr(f"{selection}.this_machine", lambda: Machine(("tensorrt_rtx",), CAPABILITY))
    monkeypatch.setattr(f"{selection}.cuda_core", lambda: None)

    limits = {"max_batch_size": ROWS, "max_cache_len": TOKENS}
    with accelerate(model, "tensorrt", cache_folder=cache_folder, **limits) as fast:
        for name, way in ways.items():
            assert generated(fast, **way) == expected[name], name
    memory.check_nothing_left()
    assert generated(model, **greedy) == expected["a padded batch, greedy"]
