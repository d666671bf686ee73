"""Proposals of a checkpoint's own head: what the head says, whatever happened to those before, and the same answers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.config import MTP_CONFIG_FILE, read_config
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.hidden_rows import ArrayRows
from hybridge.runtime.engines.mtp_factory import open_mtp_head
from hybridge.runtime.engines.mtp_head import HeadInputs
from hybridge.runtime.engines.onnxruntime.mtp_head import MtpHeadEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import NO_SAMPLING, SamplingParams
from hybridge.runtime.serving.draft_rows import DraftedSequence, DraftRow, draft_inputs
from hybridge.runtime.serving.hidden_state_cache import HiddenStateCache
from hybridge.runtime.serving.mtp_drafter import MtpDrafter
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import Proposal, SpeculationSettings
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample
from tests.support.tiny_models import EXPERTS

MOST, NEW = 3, 12
PROMPTS = ([4, 5, 6, 4, 5, 6, 4], [9] * 21, [1, 2], [7])


@pytest.fixture(scope="module")
def artifact(artifacts: ArtifactCache) -> Path:
    return exported(artifacts, "auto")


def exported(artifacts: ArtifactCache, kv_dtype: str) -> Path:
    """An artifact whose caches, those of its head included, have the type ``kv_dtype``."""
    made = artifacts.get("qwen3_next", "float32", mtp_pattern="", layout="paged", max_seq_len=64, kv_dtype=kv_dtype)
    head = read_config(made.folder, MTP_CONFIG_FILE)
    assert made.config.has_kv_scales == head.has_kv_scales == (kv_dtype != "auto")
    return made.folder


class Watched(MtpDrafter):
    """Records calls and proposals, and the model's hidden states by sequence and position."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.calls: list[tuple[int, list[int], int, tuple[int, ...]]] = []
        self.seen: dict[int, dict[int, np.ndarray]] = {}
        self.origins: dict[int, int] = {}

    def launch(self, engine, inputs, rows, samplings=NO_SAMPLING):  # type: ignore[no-untyped-def]
        self._watch({sequence: self._states.of(sequence).certain for sequence in self._states})
        return super().launch(engine, inputs, rows, samplings)

    def propose(self, requests):  # type: ignore[no-untyped-def]
        self._watch({each.sequence: len(each.tokens) - 1 for each in requests})
        found: list[Proposal] = super().propose(requests)
        for each, proposal in zip(requests, found, strict=True):
            self.calls.append((each.sequence, list(each.tokens), each.most, proposal.token_ids))
            known = self._caches.find(each.sequence)
            if known is not None:
                self.origins[each.sequence] = known.origin
        return found

    def _watch(self, ends):  # type: ignore[no-untyped-def]
        for sequence, end in ends.items():
            states = self._states.of(sequence)
            if states is not None:
                for position in range(states.begin, min(states.end, end)):
                    row = self._hidden.read(states.get(position, position + 1))[0]
                    self.seen.setdefault(sequence, {})[position] = row


def from_scratch(head: MtpHeadEngine, tokens: list[int], hidden: np.ndarray, most: int) -> tuple[int, ...]:
    """The head's proposal for a sequence of which it sees the last positions, in pools of its own."""
    head.allocate_pools(PoolSizes(8, 16, 0))
    head.fill_pools(np.nan)
    rows = ArrayRows(1, len(hidden), hidden.shape[1])
    rows.of_step[...] = hidden
    head.read_from(rows)
    origin = len(tokens) - 1 - len(hidden)
    known, found = DraftedSequence([], list(range(8)), origin=origin), list[int]()
    row, indices, own = DraftRow(known, tokens[origin + 1 :], origin, -1), rows.first + np.arange(len(hidden)), 0
    for _ in range(most):
        inputs, flags = draft_inputs([row], 16), np.full(len(indices), own, np.int32)
        own_slots, none = np.array([1]), np.zeros(1, np.int32)
        best = head.run(
            HeadInputs(**vars(inputs), hidden_slots=indices, is_own=flags, own_slots=own_slots, further=none)
        )
        found += best[0]
        row = DraftRow(known, found[-1:], len(tokens) - 2 + len(found), -1)
        indices, own = np.array([1]), 1
    return tuple(found)


def check_proposals(drafter: Watched, head: MtpHeadEngine, most_checked: int = 12) -> None:
    checked = 0
    for sequence, tokens, most, found in drafter.calls:
        if found and checked < most_checked:
            positions = range(drafter.origins[sequence], len(tokens) - 1)
            hidden = np.stack([drafter.seen[sequence][position] for position in positions])
            assert found == from_scratch(head, tokens, hidden, min(most, len(found)))
            checked += 1
    assert checked == most_checked


ENGINES = ("onnxruntime", "onnxruntime-portable", "torch")


def opened(artifact: Path, engine: str) -> LLM:
    if engine == "torch":
        pytest.importorskip("torch", reason="the torch engine needs torch")
    return LLM(artifact, engine)


@pytest.mark.parametrize(
    ("engine", "kv_dtype"),
    sample([*product(ENGINES, ("auto",)), *product(ENGINES, ("fp8_e4m3",))], on_push=[("onnxruntime", "auto")]),
)
def test_proposals_are_the_most_likely_tokens_of_the_head(engine: str, kv_dtype: str, artifacts: ArtifactCache) -> None:
    artifact = exported(artifacts, kv_dtype)
    with opened(artifact, engine) as llm:
        plain = [a.token_ids for a in llm.generate(list(PROMPTS), SamplingParams(ignore_eos=True), NEW)]
        drafter = Watched(open_mtp_head(artifact, llm.engine), llm.engine, 3, 60, MOST)
        serving = ServingSettings(
            prefix_cache="off", max_tokens=16, speculation=SpeculationSettings(MOST, drafter, adaptive=False)
        )
        speculating = LLM(artifact, llm.engine, serving=serving)
        answers = speculating.generate(list(PROMPTS), SamplingParams(ignore_eos=True), NEW)
        assert [answer.token_ids for answer in answers] == plain
        metrics = speculating.loop.speculation
        assert metrics is not None and metrics.proposed > 20
    assert set(drafter.origins.values()) == {0}
    check_proposals(drafter, MtpHeadEngine(artifact))
    assert not list(drafter._states) and len(drafter._states._free) == drafter._hidden.reserved - 3


@pytest.mark.slow
def test_a_sequence_that_others_began(artifact: Path) -> None:
    """The head does not see cached tokens; of a prompt that several sequences continue, it sees the last chunk."""
    prompt = [3 + i % 11 for i in range(24)]
    params, sampling = SamplingParams(ignore_eos=True), SamplingParams(ignore_eos=True, temperature=0.9, seed=5, n=2)
    with LLM(artifact, "onnxruntime") as llm:
        first = llm.generate([prompt], params, NEW)[0].token_ids
        history = [*prompt, *first, 8, 9]
        second = llm.generate([history], params, NEW)[0].token_ids
        several = llm.generate([prompt], sampling, NEW)[0]
        for cache in ("radix", "off"):
            drafter = Watched(open_mtp_head(artifact, llm.engine), llm.engine, 3, 60, MOST)
            speculation = SpeculationSettings(MOST, drafter, adaptive=False)
            serving = ServingSettings(prefix_cache=cache, max_tokens=16, speculation=speculation)
            speculating = LLM(artifact, llm.engine, serving=serving)
            if cache == "radix":
                assert speculating.generate([prompt], params, NEW)[0].token_ids == first
                resumed = speculating.generate([history], params, NEW)[0]
                assert resumed.token_ids == second and resumed.cached_tokens > 0
            else:
                again = speculating.generate([prompt], sampling, NEW)[0]
                assert [a.token_ids for a in again.alternatives] == [a.token_ids for a in several.alternatives]
                assert sorted(drafter.origins.values()) == [0, 16]
            begun = [sequence for sequence, origin in drafter.origins.items() if origin > 0]
            drafter.calls = [each for each in drafter.calls if each[0] in begun]
            check_proposals(drafter, MtpHeadEngine(artifact), 4)


@pytest.mark.parametrize("engine", sample(ENGINES, on_push=("onnxruntime",)))
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


# exporter/test_mtp_export.py compares such heads with the architecture on push.
@pytest.mark.slow
def test_a_head_of_nemotron_h(artifacts: ArtifactCache) -> None:
    """Attention and experts in separate layers, no positions, with recurrent layers of another kind."""
    options = {"mtp_pattern": "*E", "layout": "paged", "max_seq_len": 64}
    folder = artifacts.get("nemotron_h", "float32", EXPERTS["nemotron_h"], **options).folder
    answers = []
    for speculation in (None, SpeculationSettings(MOST, "mtp", adaptive=False)):
        with LLM(folder, "onnxruntime", serving=ServingSettings(speculation=speculation)) as llm:
            found = llm.generate(list(PROMPTS), SamplingParams(ignore_eos=True), NEW)
            answers.append([answer.token_ids for answer in found])
            if speculation is not None:
                assert llm.loop.speculation.proposed > 20
    assert answers[0] == answers[1]


def test_what_cannot_be_is_refused(artifact: Path, artifacts: ArtifactCache) -> None:
    serving = ServingSettings(speculation=SpeculationSettings(MOST, "mtp"))
    toy = ToyPagedEngine(paged_config(["attention"]))
    with pytest.raises(EngineError, match="expected an engine that shows hidden states to drafter 'mtp', found toy"):
        open_mtp_head(artifact, toy)
    without = artifacts.get("nemotron_h", "float32", layout="paged").folder
    with pytest.raises(EngineError, match="expected an artifact with a multi-token prediction head, found none"):
        LLM(without, "onnxruntime-portable", serving=serving)


def test_places_of_hidden_states() -> None:
    rows = ArrayRows(12, 16, 1)  # 1 and 2 belong to others, steps begin at 13
    hidden = HiddenStateCache(rows, 3)

    def content(sequence: int) -> list[float]:
        states = hidden.of(sequence)
        assert states is not None and len(states.tokens) == len(states.indices)
        return rows.read(states.indices)[:, 0].tolist()

    def step(*parts: tuple[int, int, int, int]) -> None:
        """Sequence, first position, tokens, draft tokens among them; a hidden state is 100 * sequence + position."""
        hidden.keep()
        rows.array[rows.first :] = np.nan
        place = rows.first
        for sequence, start, count, draft_tokens in parts:
            rows.array[place : place + count, 0] = 100 * sequence + np.arange(start, start + count)
            hidden.put(sequence, start, list(range(start, start + count)), place, draft_tokens)
            place += count

    step((1, 0, 4, 0), (2, 7, 2, 0))
    assert content(1) == [100, 101, 102, 103] and content(2) == [207, 208]
    assert hidden.of(2).begin == 7 and hidden.of(1).certain == 4
    hidden.drop(1, 3)
    step((1, 4, 3, 2))
    assert content(1) == [103, 104, 105, 106] and content(2) == [207, 208] and hidden.of(1).certain == 5
    step((1, 5, 2, 1))  # the draft token of position 5 was wrong
    assert content(1) == [103, 104, 105, 106] and hidden.of(1).tokens == [3, 4, 5, 6]
    hidden.fork(1, 3)
    hidden.forget(1)
    step((3, 7, 1, 0))
    assert content(3) == [105, 106, 307] and hidden.of(3).begin == 5
    step((2, 0, 5, 0))  # computed again, after it had lost its place
    assert content(2) == [200, 201, 202, 203, 204] and hidden.of(2).begin == 0
    step((3, 9, 1, 0))  # behind a gap
    assert content(3) == [309] and content(2) == [200, 201, 202, 203, 204]
    step((4, 0, 5, 0))
    hidden.keep()  # six of ten places are taken
    assert list(hidden) == [2, 3, 4] and content(4) == [] and content(3) == [309]
    for sequence in hidden:
        hidden.forget(sequence)
    assert sorted(hidden._free) == list(range(3, 13))
