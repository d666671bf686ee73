"""Proposals of a checkpoint's own head: what the head says, whatever became of those before, and the same answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from artifact.errors import EngineError
from exporter.export import export_checkpoint
from exporter.options import ExportOptions
from runtime.engines.mtp_head import HeadInputs
from runtime.engines.onnxruntime.mtp_head import MtpHeadEngine
from runtime.engines.paged import PoolSizes
from runtime.llm import LLM
from runtime.sampling import SamplingParams
from runtime.serving.draft_rows import DraftedSequence, DraftRow, draft_inputs
from runtime.serving.hidden_states import HiddenStates
from runtime.serving.mtp_drafter import MtpDrafter
from runtime.serving.settings import ServingSettings
from runtime.speculation import Proposal, SpeculationSettings
from tests.support.artifacts import ArtifactCache
from tests.support.mtp_checkpoints import save_with_mtp_head

MOST, NEW = 3, 12
PROMPTS = ([4, 5, 6, 4, 5, 6, 4], [9] * 21, [1, 2], [7])


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mtp")
    save_with_mtp_head(folder / "checkpoint", "qwen3_next")
    options = ExportOptions(layout="paged", speculative_tokens=MOST, max_batch_size=3, max_seq_len=64)
    export_checkpoint(folder / "checkpoint", folder / "artifact", options)
    return folder / "artifact"


class Watched(MtpDrafter):
    """Remembers what was asked and proposed, and the hidden states of the model by sequence."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.asked: list[tuple[int, list[int], int, tuple[int, ...]]] = []
        self.seen: dict[int, dict[int, np.ndarray]] = {}

    def propose(self, wanted):  # type: ignore[no-untyped-def]
        for each in wanted:
            states = self._hidden.get(each.sequence)
            if states is not None:
                for position in range(states.begin, min(states.end, len(each.tokens) - 1)):
                    row = states.get(position, position + 1)[0].copy()
                    self.seen.setdefault(each.sequence, {})[position] = row
        found: list[Proposal] = super().propose(wanted)
        for each, proposal in zip(wanted, found, strict=True):
            self.asked.append((each.sequence, list(each.tokens), each.most, proposal.token_ids))
        return found


def from_scratch(head: MtpHeadEngine, tokens: list[int], hidden: np.ndarray, most: int) -> tuple[int, ...]:
    """The head's proposal for one sequence in pools of its own."""
    head.allocate_pools(PoolSizes(8, 16, 0))
    head.fill_pools(0.0)
    known, found, own = DraftedSequence([], list(range(8))), list[int](), 0
    row = DraftRow(known, tokens[1:], 0, -1)
    for _ in range(most):
        inputs = draft_inputs([row], 16)
        flags = np.full(len(hidden), own, np.int32)
        best, after = head.run(HeadInputs(**vars(inputs), hidden_states=hidden, is_own=flags))
        found.append(int(best[0] if best[0] is not None else -1))
        row, hidden, own = DraftRow(known, found[-1:], len(tokens) - 2 + len(found), -1), after[-1:], 1
    return tuple(found)


def test_proposals_are_what_the_head_says(artifact: Path) -> None:
    head = MtpHeadEngine(artifact)
    with LLM(artifact, "onnxruntime-portable") as llm:
        plain = [a.token_ids for a in llm.generate(list(PROMPTS), SamplingParams(ignore_eos=True), NEW)]
        drafter = Watched(head, llm.engine, 3, 60, MOST)
        serving = ServingSettings(
            prefix_cache="off", max_tokens=16, speculation=SpeculationSettings(MOST, drafter, adaptive=False)
        )
        speculating = LLM(artifact, llm.engine, serving=serving)
        answers = speculating.generate(list(PROMPTS), SamplingParams(ignore_eos=True), NEW)
        assert [answer.token_ids for answer in answers] == plain
        metrics = speculating.loop.speculation
        assert metrics is not None and metrics.proposed > 20
    checked, again = 0, MtpHeadEngine(artifact)
    for sequence, tokens, most, found in drafter.asked:
        if found and checked < 12:
            hidden = np.stack([drafter.seen[sequence][position] for position in range(len(tokens) - 1)])
            assert found == from_scratch(again, tokens, hidden, min(most, len(found)))
            checked += 1
    assert checked == 12 and not drafter._hidden


@pytest.mark.parametrize("engine", ["onnxruntime-portable", "torch"])
def test_the_setting_is_all_that_it_needs(engine: str, artifact: Path) -> None:
    if engine == "torch":
        pytest.importorskip("torch", reason="the torch engine needs torch")
    kinds = [
        SamplingParams(ignore_eos=True),
        SamplingParams(ignore_eos=True, temperature=0.8, seed=3, n=2),
        SamplingParams(ignore_eos=True, speculative_tokens=1),
        SamplingParams(ignore_eos=True, beam_width=2),
    ]
    answers = []
    for speculation in (None, SpeculationSettings(MOST, "mtp")):
        with LLM(artifact, engine, serving=ServingSettings(speculation=speculation)) as llm:
            found = llm.generate(list(PROMPTS), kinds, NEW)
            answers.append([(a.token_ids, [b.token_ids for b in a.alternatives]) for a in found])
            if speculation is not None:
                assert llm.loop.speculation.proposed > 0
    assert answers[0] == answers[1]


def test_what_cannot_be_is_refused(artifact: Path, artifacts: ArtifactCache) -> None:
    serving = ServingSettings(speculation=SpeculationSettings(MOST, "mtp"))
    with pytest.raises(EngineError, match="expected an engine that shows hidden states to drafter 'mtp', found onnx"):
        LLM(artifact, "onnxruntime", serving=serving)
    without = artifacts.get("nemotron_h", "float32", layout="paged", speculative_tokens=MOST).folder
    with pytest.raises(EngineError, match="expected an artifact with a multi-token prediction head, found none"):
        LLM(without, "onnxruntime-portable", serving=serving)


def test_hidden_states_of_a_sequence() -> None:
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    states = HiddenStates()
    states.put(1, rows[1:3])
    assert not states.has(1, 2)
    states.put(0, rows[:5])
    states.put(5, rows[5:9])
    states.put(7, -rows[7:12])  # the candidates from position 7 on were wrong
    assert states.has(0, 12) and not states.has(0, 13)
    np.testing.assert_array_equal(states.get(6, 8), [rows[6], -rows[7]])
    states.drop(9)
    assert not states.has(8, 10) and states.has(9, 12)
    states.put(0, rows[:4])  # computed again, after it had lost its place
    states.put(4, rows[4:11])
    assert states.has(9, 11) and not states.has(9, 12)
    np.testing.assert_array_equal(states.get(9, 11), rows[9:11])
