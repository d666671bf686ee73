"""A prediction head on a GPU, beside the recorded steps of its model: its proposals, and the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from exporter.export import export_checkpoint
from exporter.options import ExportOptions
from runtime.engines.mtp_factory import open_mtp_head
from runtime.engines.onnxruntime.mtp_head import MtpHeadEngine
from runtime.engines.torch.mtp_head import TorchMtpHead
from runtime.engines.torch.paged_engine import TorchPagedEngine
from runtime.llm import LLM
from runtime.sampling import SamplingParams
from runtime.serving.settings import ServingSettings
from runtime.speculation import SpeculationSettings
from tests.runtime.serving.test_mtp_drafter import MOST, PROMPTS, Watched, check_proposals
from tests.runtime.torch.test_kernel_calls import QWEN
from tests.runtime.torch.test_paged_kernel_calls import PAGED
from tests.support.mtp_checkpoints import save_with_mtp_head

pytestmark = pytest.mark.gpu
NEW = 24
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": {**QWEN, "head_dim": 64},
    "nemotron_h": {**PAGED, "pattern": "*-"},
}


@pytest.mark.parametrize("mode", ["replay", "snapshot"])
@pytest.mark.parametrize("family", FAMILIES)
def test_proposals_of_recorded_steps(family: str, mode: str, tmp_path: Path) -> None:
    save_with_mtp_head(tmp_path / "checkpoint", family, **FAMILIES[family])
    folder = tmp_path / "artifact"
    options = ExportOptions(layout="paged", speculative_tokens=MOST, max_batch_size=3, max_seq_len=64)
    export_checkpoint(tmp_path / "checkpoint", folder, options)
    engine = TorchPagedEngine(folder, "cuda")
    params = SamplingParams(ignore_eos=True)
    plain = [a.token_ids for a in LLM(folder, engine).generate(list(PROMPTS), params, NEW)]
    head = open_mtp_head(folder, engine)
    assert isinstance(head, TorchMtpHead)
    drafter = Watched(head, engine, 3, 60, MOST)
    speculation = SpeculationSettings(MOST, drafter, adaptive=False, mode=mode)
    serving = ServingSettings(prefix_cache="off", max_tokens=16, speculation=speculation)
    speculating = LLM(folder, engine, serving=serving)
    for _ in range(3):  # directly, recorded, and as it was recorded
        answers = speculating.generate(list(PROMPTS), params, NEW)
        assert [answer.token_ids for answer in answers] == plain
    check_proposals(drafter, MtpHeadEngine(folder), 40)
    assert any(step.repeated.is_replayed for step in head.decode_steps.values())
    assert any(step.repeated.is_replayed for step in head.mixed_steps.values())
    assert any(step.repeated.is_replayed for step in engine.candidate_steps.values())
    drafter.close()
    engine.close()
