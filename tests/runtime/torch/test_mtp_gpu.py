"""A prediction head on a GPU, with recorded steps of its model: its proposals, and the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.engines.mtp_factory import open_mtp_head
from hybridge.runtime.engines.onnxruntime.mtp_head import MtpHeadEngine
from hybridge.runtime.engines.torch.mtp_head import TorchMtpHead
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from tests.runtime.serving.test_mtp_drafter import MOST, PROMPTS, Watched, check_proposals
from tests.runtime.torch.test_autoregressive_steps import Tried, random_hidden
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
    options = ExportOptions(layout="paged", max_batch_size=3, max_seq_len=64)
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
    assert any(step.repeated.is_replayed for step in head.autoregressive_steps.values())
    assert any(step.repeated.is_replayed for step in head.mixed_steps.values())
    assert any(step.repeated.is_replayed for step in engine.draft_steps.values())
    drafter.close()
    engine.close()


@pytest.mark.parametrize("further", [(4, 4, 4), (5, 0, 2)])
@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_draft_tokens_are_those_of_direct_steps(family: str, further: tuple[int, ...], tmp_path: Path) -> None:
    """All draft tokens of a proposal in one graph: tokens, hidden states, keys and values bit for bit."""
    save_with_mtp_head(tmp_path / "checkpoint", family, **FAMILIES[family])
    folder = tmp_path / "artifact"
    options = ExportOptions(layout="paged", max_batch_size=3, max_seq_len=64)
    export_checkpoint(tmp_path / "checkpoint", folder, options)
    engine = TorchPagedEngine(folder, "cuda")
    head = open_mtp_head(folder, engine)
    assert isinstance(head, TorchMtpHead)
    tried = Tried(head, random_hidden(head.config.hidden_size))
    answers, left = [], []
    for _ in range(3):  # directly, recorded, and as it was recorded
        head.fill_pools(np.nan)
        answers.append(head.run(tried.inputs(further)))
        left.append(tried.left())
    (own,) = head.autoregressive_steps.values()
    assert own.repeated.is_replayed and [len(tokens) - 1 for tokens in answers[0]] == list(further)
    assert answers[1] == answers[0] and answers[2] == answers[0]
    for later in left[1:]:
        for one, other in zip(left[0], later, strict=True):
            np.testing.assert_array_equal(one, other)
    assert Tried(head, random_hidden(head.config.hidden_size)).one_by_one(further) == answers[0]
    head.close()
    engine.close()
