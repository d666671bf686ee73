"""A draft model that samples: its draft tokens follow its own distribution, and the answers the model's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.runtime.serving.draft_model import ModelDrafter
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftModel, DraftRequest, Proposal, SpeculationSettings
from tests.runtime.serving.joint_draws import check_samples
from tests.runtime.serving.toy_loop import toy_loop
from tests.runtime.speculation.processed import processed
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config, toy_logits
from tests.support.artifacts import ArtifactCache
from tests.support.effort import examples, sample

VOCAB, MOST, NEW, RUNS = 5, 3, 3, examples(5_000)


def drawing(layers: list[str], vocab: int = VOCAB, rows: int = 12) -> ModelDrafter:
    engine = ToyPagedEngine(paged_config(layers, vocab=vocab), max_rows=5, max_tokens=24)
    return ModelDrafter(engine, VOCAB, rows, 40, MOST, samples=True)


@pytest.mark.parametrize("vocab", [VOCAB, VOCAB - 1, VOCAB + 2])
@pytest.mark.parametrize("kind", ["hybrid", "attention", "recurrent"])
def test_draft_tokens_carry_the_distribution_they_were_sampled_from(kind: str, vocab: int) -> None:
    """Distributions from scratch after every sampled token, over tokens that both models have."""
    layers = {"hybrid": HYBRID, "attention": ["attention"] * 2, "recurrent": ["mamba"] * 2}[kind]
    drafter, rng, both = drawing(layers, vocab, rows=3), np.random.default_rng(5), min(vocab, VOCAB)
    config = paged_config(layers, vocab=vocab)
    params = SamplingParams(temperature=1.2, top_p=0.95, seed=2)
    samplers = {id_: Sampler(params).sample_draft_token for id_ in range(3)}
    texts, found = {id_: rng.integers(0, both, 1 + 4 * id_).tolist() for id_ in range(3)}, 0
    for _ in range(8):
        # The last one's request takes the most likely tokens.
        requests = [
            DraftRequest(id_, texts[id_], int(rng.integers(1, MOST + 1)), samplers[id_] if id_ else None)
            for id_ in texts
        ]
        for each, proposal in zip(requests, drafter.propose(requests), strict=True):
            distribution = proposal.probabilities
            assert (distribution is None) == (each.draw is None)
            for place, token in enumerate(proposal.token_ids):
                logits = toy_logits(config, [*each.tokens, *proposal.token_ids[:place]])[:both]
                found += 1
                if distribution is None:
                    assert token == logits.argmax()
                    continue
                expected = np.append(processed(logits, (), (), params), np.zeros(VOCAB - both))
                np.testing.assert_allclose(distribution[place] / distribution[place].sum(), expected, atol=1e-6)
            right = int(rng.integers(0, len(proposal) + 1))
            texts[each.sequence] += [*proposal.token_ids[:right], int(rng.integers(0, both))]
    assert found > 30


class Watched:
    """The drafter, whose proposals are looked at."""

    def __init__(self, drafter: ModelDrafter) -> None:
        self._drafter, self.forget = drafter, drafter.forget
        self.proposals: list[Proposal] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        found = self._drafter.propose(requests)
        self.proposals += [proposal for proposal in found if len(proposal)]
        return found


@pytest.mark.parametrize(
    ("vocab", "params"),
    [
        pytest.param(VOCAB + 2, {"temperature": 1.3, "top_k": 4, "top_p": 0.9}, marks=pytest.mark.slow),
        # On push test_speculated_draws has these, for drafts of other drafters.
        pytest.param(VOCAB, {"temperature": 0.9}, marks=pytest.mark.slow),
        pytest.param(VOCAB, {"temperature": 1.0, "repetition_penalty": 1.6}, marks=pytest.mark.slow),
    ],
)
def test_answers_follow_the_model(vocab: int, params: dict[str, float]) -> None:
    """The first tokens of all answers against the product of the written-out distributions."""
    drafter = Watched(drawing(["attention"], vocab))
    speculation = SpeculationSettings(MOST, drafter, adaptive=False)
    loop, engine = toy_loop(HYBRID, vocab=VOCAB, speculation=speculation)
    check_samples(loop, engine, params, NEW, RUNS)
    metrics = loop.speculation
    assert metrics is not None and RUNS / 4 < metrics.accepted < 0.9 * metrics.proposed
    assert all(proposal.probabilities is not None for proposal in drafter.proposals)
    assert len({proposal.token_ids[0] for proposal in drafter.proposals}) == VOCAB


@pytest.mark.parametrize("engine", sample(("onnxruntime", "torch"), on_push=("onnxruntime",)))
def test_a_model_that_drafts_for_itself_is_always_right(engine: str, artifacts: ArtifactCache) -> None:
    """Sampled from the same distribution, every draft token is accepted; of the most likely ones, few are."""
    if engine == "torch":
        pytest.importorskip("torch", reason="the torch engine needs torch")
    folder = artifacts.get("nemotron_h", "float32", layout="paged").folder
    prompts = [[5, 6, 7], [9] * 12, [1]]
    params = SamplingParams(ignore_eos=True, temperature=1.5, seed=3)
    accepted = []
    for samples in (True, False):
        speculation = SpeculationSettings(3, DraftModel(folder, threads=1, samples=samples), adaptive=False)
        with LLM(folder, engine, serving=ServingSettings(speculation=speculation)) as llm:
            llm.generate(prompts, params, 12)
            metrics = llm.loop.speculation
            accepted.append(metrics.accepted / metrics.proposed)
            greedy = llm.generate(prompts, SamplingParams(ignore_eos=True), 12)
    assert accepted[0] == 1.0 and accepted[1] < 0.5
    plain = LLM(folder, engine).generate(prompts, SamplingParams(ignore_eos=True), 12)
    assert [answer.token_ids for answer in greedy] == [answer.token_ids for answer in plain]
