"""A head that fails, or has memory for few sequences, costs draft tokens and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.mtp_factory import open_mtp_head
from hybridge.runtime.engines.mtp_head import HeadInputs
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.mtp_drafter import MtpDrafter
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftRequest, Proposal, SpeculationSettings
from tests.runtime.serving.test_mtp_drafter import MOST, NEW
from tests.support.artifacts import ArtifactCache


@pytest.fixture(scope="module")
def artifact(artifacts: ArtifactCache) -> Path:
    return artifacts.get("qwen3_next", "float32", mtp_pattern="", layout="paged", max_seq_len=64).folder


def speculating(artifact: Path, llm: LLM, drafter: MtpDrafter) -> LLM:
    """Over the engine of ``llm``, with at most 40 tokens in a step."""
    speculation = SpeculationSettings(MOST, drafter, adaptive=False)
    serving = ServingSettings(prefix_cache="off", max_tokens=40, speculation=speculation)
    return LLM(artifact, llm.engine, serving=serving)


@pytest.mark.parametrize("when", ["proposing", "making way"])
def test_a_failing_head_only_costs_draft_tokens(artifact: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, for a proposal or before a step of the model, which overwrites what the head has not seen of a prompt."""
    prompts, params = [[9 + i % 7 for i in range(45)], [4, 5, 6]], SamplingParams(ignore_eos=True)
    with LLM(artifact, "onnxruntime") as llm:
        plain = [answer.token_ids for answer in llm.generate(prompts, params, NEW)]
        head = open_mtp_head(artifact, llm.engine)
        drafter, run, failed = MtpDrafter(head, llm.engine, 3, 60, MOST), head.run, list[HeadInputs]()
        propose, proposing = drafter.propose, list[bool]()

        def watched(requests: Sequence[DraftRequest]) -> list[Proposal]:
            proposing.append(True)
            try:
                return propose(requests)
            finally:
                proposing.pop()

        def failing(inputs: HeadInputs) -> list[list[int]]:
            if not failed and bool(proposing) == (when == "proposing"):
                failed.append(inputs)
                raise EngineError("out of memory")
            return run(inputs)

        monkeypatch.setattr(drafter, "propose", watched)
        monkeypatch.setattr(head, "run", failing)
        over = speculating(artifact, llm, drafter)
        with pytest.warns(RuntimeWarning, match="which is slower: out of memory") as caught:
            answers = over.generate(prompts, params, NEW)
        assert [answer.token_ids for answer in answers] == plain and failed and len(caught) == 1
        metrics = over.loop.speculation
        assert metrics is not None and metrics.failures == 1
        # Requests that come later have draft tokens again.
        proposed = metrics.proposed
        assert over.generate(prompts[1:], params, NEW)[0].token_ids == plain[1] and metrics.proposed > proposed
        assert not list(drafter._states) and len(drafter._states._free) == drafter._hidden.reserved - 3


def test_sequences_that_make_way_together_keep_their_blocks(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes two of three blocks at first: none takes those that the head is about to write for another."""
    prompts, params = [[9 + i % 7 for i in range(40)], [4 + i % 5 for i in range(40)]], SamplingParams(ignore_eos=True)
    with LLM(artifact, "onnxruntime") as llm:
        head = open_mtp_head(artifact, llm.engine)
        drafter, run, written = MtpDrafter(head, llm.engine, 3, 60, MOST), head.run, list[list[int]]()
        del drafter._caches._blocks[3:]

        def watched(inputs: HeadInputs) -> list[list[int]]:
            written.append(inputs.block_table[inputs.block_table >= 0].tolist())
            return run(inputs)

        monkeypatch.setattr(head, "run", watched)
        plain = [answer.token_ids for answer in llm.generate(prompts, params, NEW)]
        over = speculating(artifact, llm, drafter)
        assert [answer.token_ids for answer in over.generate(prompts, params, NEW)] == plain
        assert written and all(len(blocks) == len(set(blocks)) for blocks in written)
