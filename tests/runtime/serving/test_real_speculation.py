"""With real models: draft tokens of which any number is right, and the tokens are those of plain greedy decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from hybridge.exporter.families.registry import FAMILIES
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.scheduler import StepPlan
from hybridge.runtime.scheduler.plan import Swap
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftRequest, Proposal, SpeculationSettings
from tests.support.artifacts import ArtifactCache
from tests.support.effort import EFFORT, sample
from tests.support.versions import skip_without_delta_rule_kernels

MOST, NEW = 3, 20
# On push as many as the artifacts hold that other tests export, too.
LONG = 84 if EFFORT == "push" else 500
ON_TORCH = (("nemotron_h", "torch"), ("qwen3_next", "torch"), ("lfm2", "torch"))
ATTENTION_ALONE = ("llama", "qwen3")


class Knowing:
    """Knows the answers; the right tokens of a proposal follow ``rng``, 0 to all of them."""

    def __init__(self, texts: Sequence[Sequence[int]], vocab: int, seed: int) -> None:
        self.texts, self.vocab, self.rng = [list(text) for text in texts], vocab, np.random.default_rng(seed)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        found = []
        for each in requests:
            size = len(each.tokens)
            text = next((text for text in self.texts if text[:size] == each.tokens), [])
            right = text[size : size + int(self.rng.integers(0, each.most + 1))]
            wrong = (text[size + len(right)] + 1) % self.vocab if size + len(right) < len(text) else 0
            found.append(Proposal((*right, *[wrong] * (each.most - len(right)))))
        return found

    def forget(self, sequence: int) -> None:
        pass


# On push the long answers below are of ONNX Runtime, and of the other families.
@pytest.mark.parametrize(
    ("family", "name"),
    sample(
        [*((family, "onnxruntime") for family in ("nemotron_h", "qwen3_next", "mamba2", "lfm2", "llama")), *ON_TORCH],
        on_push=[("mamba2", "onnxruntime"), ON_TORCH[0]],
    ),
)
def test_tokens_are_those_of_plain_greedy(family: str, name: str, artifacts: ArtifactCache) -> None:
    recurrent = family != "llama"
    folder = artifacts.get(family, "float32", layout="paged").folder
    engine = create_paged_engine(folder, name, EngineOptions(threads=1))
    rng, sampling = np.random.default_rng(6), SamplingParams(ignore_eos=True)
    prompts = [rng.integers(0, engine.config.vocab_size, size).tolist() for size in (3, 17, 30)]
    plain = [answer.token_ids for answer in LLM(folder, engine).generate(prompts, sampling, NEW)]
    room = {"memory_bytes": 2 << 20, "max_tokens": 16}
    drafter = Knowing([p + list(t) for p, t in zip(prompts, plain, strict=True)], engine.config.vocab_size, 2)
    speculation = SpeculationSettings(MOST, drafter, adaptive=False)
    llm = LLM(folder, engine, serving=ServingSettings(prefix_cache="radix", speculation=speculation, **room))
    for each in (prompts, prompts[1:], [prompts[0] + list(plain[0][:11])]):
        answers = llm.generate(each, sampling, NEW - 11 * (each[0] not in prompts))
        for prompt, answer in zip(each, answers, strict=True):
            known = next(text for text in drafter.texts if text[: len(prompt)] == prompt)
            assert list(answer.token_ids) == known[len(prompt) : len(prompt) + len(answer.token_ids)]
        llm.loop.scheduler.check_integrity()
    metrics = llm.loop.speculation
    assert 0 < metrics.accepted < metrics.proposed
    assert metrics.state_bytes == engine.rollback_token_bytes and (metrics.state_bytes > 0) == recurrent
    # The last prompts were known to the prefix cache, states of answers included.
    assert answers[0].cached_tokens > 0


MIXED = {"causal_conv1d": "snapshot"}


@pytest.mark.parametrize(
    ("family", "name", "mode"),
    sample(
        [(*each, mode) for each in ON_TORCH for mode in ("auto", MIXED)],
        on_push=[("qwen3_next", "torch", MIXED)],
    ),
    ids=str,
)
def test_sequences_that_lose_their_memory_get_the_same_tokens(
    family: str, name: str, mode: str | dict, artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = artifacts.get(family, "float32", layout="paged").folder
    engine = create_paged_engine(folder, name, EngineOptions(threads=1))
    rng, sampling = np.random.default_rng(8), SamplingParams(ignore_eos=True)
    prompts = [rng.integers(0, engine.config.vocab_size, size).tolist() for size in (20, 9, 14)]
    plain = [answer.token_ids for answer in LLM(folder, engine).generate(prompts, sampling, NEW)]
    texts = [prompt + list(text) for prompt, text in zip(prompts, plain, strict=True)]
    speculation = SpeculationSettings(MOST, Knowing(texts, engine.config.vocab_size, 3), adaptive=False, mode=mode)
    serving = ServingSettings(block_size=8, prefix_cache="off", speculation=speculation)
    llm = LLM(folder, engine, serving=serving)
    # Other sequences have all blocks but those of the longest sequence and a few more.
    pool = llm.loop.scheduler.manager.pool
    taken = pool.allocate(pool.free - 9)
    swapped, plan = list[Swap](), llm.loop.scheduler.plan

    def counted(draft_tokens: Mapping[int, tuple[int, ...]]) -> StepPlan | None:
        found = plan(draft_tokens)
        swapped.extend(() if found is None else found.swap_outs)
        return found

    monkeypatch.setattr(llm.loop.scheduler, "plan", counted)
    assert [answer.token_ids for answer in llm.generate(prompts, sampling, NEW)] == plain
    assert swapped and llm.loop.speculation.accepted
    assert engine.rollback_modes["causal_conv1d"] == ("replay" if mode == "auto" else "snapshot")
    pool.release(taken)
    llm.loop.scheduler.check_integrity()


# On push a recurrent operator, and attention alone.
@pytest.mark.parametrize("family", sample(FAMILIES, on_push=("qwen3_next", "llama")))
def test_long_answers_of_every_family_are_those_of_plain_greedy(family: str, artifacts: ArtifactCache) -> None:
    skip_without_delta_rule_kernels(family)
    """Three at a time and then one alone: states that are replayed and snapshots, with the cache and without."""
    options = {"layout": "paged", "max_seq_len": LONG + 12}
    folder = artifacts.get(family, "float32", **options).folder
    engine = OnnxRuntimePagedEngine(folder, threads=1)
    rng, sampling = np.random.default_rng(6), SamplingParams(ignore_eos=True, max_new_tokens=LONG)
    prompts = [rng.integers(0, engine.config.vocab_size, size).tolist() for size in (3, 7, 11)]
    plain = [list(answer.token_ids) for answer in LLM(folder, engine).generate(prompts, sampling)]
    texts = [prompt + text for prompt, text in zip(prompts, plain, strict=True)]
    for mode, cache in product(("auto", "snapshot"), ("radix", "off")):
        drafter = Knowing(texts, engine.config.vocab_size, 2)
        speculation = SpeculationSettings(MOST, drafter, adaptive=False, mode=mode)
        llm = LLM(folder, engine, serving=ServingSettings(prefix_cache=cache, speculation=speculation))
        answers = llm.generate(prompts, sampling)
        assert [list(answer.token_ids) for answer in answers] == plain
        (alone,) = llm.generate(prompts[2:], sampling)
        assert list(alone.token_ids) == plain[2]
        assert (alone.cached_tokens > 0) == (cache == "radix")
        metrics = llm.loop.speculation
        assert LONG < metrics.rows < 4 * LONG and 0.3 < metrics.acceptance < 0.7
        assert (metrics.state_bytes == engine.slot_bytes) == (mode == "snapshot" or family in ATTENTION_ALONE)


def test_prompt_lookup_needs_nothing_but_the_setting(artifacts: ArtifactCache) -> None:
    folder = artifacts.get("nemotron_h", "float32", layout="paged").folder
    prompt, sampling = [1, 2] * 8, SamplingParams(ignore_eos=True)
    plain = LLM(folder).generate(prompt, sampling, 60)
    llm = LLM(folder, serving=ServingSettings(speculation=SpeculationSettings(MOST)))
    assert llm.generate(prompt, sampling, 60).token_ids == plain.token_ids
    assert llm.loop.speculation.proposed > 0
