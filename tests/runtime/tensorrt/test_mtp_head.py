"""Prediction heads on TensorRT: engines of model and head compute the networks that the parser makes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.mtp_factory import open_mtp_head
from hybridge.runtime.engines.mtp_head import HeadInputs
from hybridge.runtime.engines.onnxruntime.mtp_head import MtpHeadEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from tests.exporter.test_mtp_export import BLOCK, FAMILIES, HIDDEN, PARTS, Reference, arrays_of
from tests.runtime.serving.test_mtp_drafter import NEW, PROMPTS, Watched, check_proposals
from tests.support.artifacts import ArtifactCache
from tests.verify.test_verify_head import swap_head

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from hybridge.runtime.engines.tensorrt.paged.mtp_head import TensorRTMtpHead
from tests.runtime.tensorrt.paged_double import ParsedEngine, open_double, use_double

pytestmark = pytest.mark.slow
MOST = 3
# Head sizes that the plugins' kernels have.
LARGE = {"head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 64}


def exported(artifacts: ArtifactCache, case: str, **overrides: Any) -> Any:
    given = {**FAMILIES[case], **overrides}
    pattern = given.pop("pattern", "")
    return artifacts.get(case.split()[0], "float32", given, mtp_pattern=pattern, layout="paged", max_seq_len=64)


@pytest.mark.parametrize("case", FAMILIES)
@torch.no_grad()
def test_a_head_is_that_of_the_architecture(
    case: str, artifacts: ArtifactCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step's token and own state, against transformers' layers in float64."""
    made = exported(artifacts, case)
    (tmp_path / "engine").mkdir()
    parsed = ParsedEngine(made.folder, tmp_path / "engine", plugins="off", speculative_tokens=MOST)
    opened = open_double(parsed, monkeypatch)
    reference = Reference(made.checkpoint, FAMILIES[case].get("pattern", ""), tmp_path / "reference")
    torch.manual_seed(1)
    ids, hidden = torch.randint(0, 97, (21,)), torch.randn(21, HIDDEN, dtype=torch.float64)
    rows = opened.engine.show_hidden_states(30)
    head = TensorRTMtpHead(made.folder, opened.engine)
    head.allocate_pools(PoolSizes(3, BLOCK, 0))
    head.read_from(rows)
    states = hidden.float().numpy()
    opened.memory.copy(rows.address_of(1), states.ctypes.data, states.nbytes)
    opened.memory.synchronize()
    for own in (False, True):
        logits, after = reference.run(ids, hidden, own)
        head.fill_pools(np.nan)
        for begin, end in PARTS:
            step = {**arrays_of(ids[begin:end], begin, own), "logits_indices": np.array([end - begin - 1], np.int32)}
            slots = np.arange(1 + begin, 1 + end)
            inputs = HeadInputs(**step, hidden_slots=slots, own_slots=np.array([25]), further=np.zeros(1, np.int32))
            assert head.run(inputs) == [[int(logits[end - 1].argmax())]]
            np.testing.assert_allclose(rows.read([25])[0], after[end - 1].numpy(), rtol=1e-4, atol=1e-4)
    head.close()
    opened.close()


@pytest.mark.parametrize(
    ("case", "form"),
    [
        ("qwen3_next", {"plugins": "off"}),
        ("qwen3_5_moe_text", {"plugins": "off"}),
        ("nemotron_h *E", {"plugins": "off"}),
        ("qwen3_next", {"plugins": "on", "draft_states": "replay"}),
    ],
    ids=str,
)
def test_proposals_are_the_most_likely_tokens_of_the_head(
    case: str, form: dict[str, Any], artifacts: ArtifactCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head on ONNX Runtime computes each proposal again; with a prompt cut into chunks and beside decoding."""
    made = exported(artifacts, case, **(LARGE if form["plugins"] == "on" else {}))
    parsed = ParsedEngine(made.folder, tmp_path, speculative_tokens=MOST, **form)
    memory = use_double(parsed, monkeypatch)
    with LLM(made.folder, "tensorrt") as llm:
        plain = [a.token_ids for a in llm.generate(list(PROMPTS), SamplingParams(ignore_eos=True), NEW)]
        drafter = Watched(open_mtp_head(made.folder, llm.engine), llm.engine, 3, 60, MOST)
        speculation = SpeculationSettings(MOST, drafter, adaptive=False)
        serving = ServingSettings(prefix_cache="off", max_tokens=16, speculation=speculation)
        answers = LLM(made.folder, llm.engine, serving=serving).generate(
            list(PROMPTS), SamplingParams(ignore_eos=True), NEW
        )
        assert [a.token_ids for a in answers] == plain
        head = MtpHeadEngine(made.folder, 1)
        check_proposals(drafter, head)
        own = drafter._head
        assert isinstance(own, TensorRTMtpHead) and any(key.fed for key in own.steps.captured)
        drafter.close()
        head.close()
    memory.check_nothing_left()


def test_an_engine_without_its_head_says_how_to_build_one(
    artifacts: ArtifactCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(exported(artifacts, "nemotron_h *-").folder, tmp_path / "artifact"))
    for options, missing in (({"mtp": False}, "found tensorrt: .* with --speculative-tokens"), ({}, "found another")):
        files = tmp_path / str(len(options))
        files.mkdir()
        parsed = ParsedEngine(folder, files, plugins="off", speculative_tokens=1, **options)
        if not options:
            swap_head(folder)
        opened = open_double(parsed, monkeypatch)
        with pytest.raises(EngineError, match=missing):
            open_mtp_head(folder, opened.engine)
        opened.close()
