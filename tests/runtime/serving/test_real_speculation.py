"""With real models: draft tokens of which any number is right, and the tokens are those of plain greedy decoding."""

from __future__ import annotations

from collections.abc import Mapping
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
from hybridge.runtime.speculation import SpeculationSettings
from tests.runtime.serving.engine_cases import KnownAnswers, check_speculated_tokens
from tests.support.artifacts import ArtifactCache
from tests.support.effort import EFFORT, sample
from tests.support.versions import skip_without_delta_rule_kernels

MOST, NEW = 3, 20
# On push as many as the artifacts hold that other tests export, too.
LONG = 84 if EFFORT == "push" else 500
ON_TORCH = (("nemotron_h", "torch"), ("qwen3_next", "torch"), ("lfm2", "torch"))


# On push the long answers below are of ONNX Runtime, and of the other families.
@pytest.mark.parametrize(
    ("family", "name"),
    sample(
        [
            *(
                (family, "onnxruntime")
                for family in (
                    "nemotron_h",
                    "qwen3_next",
                    "kimi_linear",
                    "jamba",
                    "mamba2",
                    "lfm2",
                    "zamba",
                    "zamba2",
                    "llama",
                )
            ),
            *ON_TORCH,
        ],
        on_push=[("mamba2", "onnxruntime"), ON_TORCH[0]],
    ),
)
def test_tokens_are_those_of_plain_greedy(family: str, name: str, artifacts: ArtifactCache) -> None:
    folder = artifacts.get(family, "float32", layout="paged").folder
    engine = create_paged_engine(folder, name, EngineOptions(threads=1))
    assert bool(engine.config.recurrent_layers) is (family != "llama")
    check_speculated_tokens(folder, engine, MOST, NEW)


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
    speculation = SpeculationSettings(MOST, KnownAnswers(texts, engine.config.vocab_size, 3), adaptive=False, mode=mode)
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


# On push attention alone: the tests above have recurrent operators.
@pytest.mark.parametrize("family", sample(FAMILIES, on_push=("llama",)))
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
        drafter = KnownAnswers(texts, engine.config.vocab_size, 2)
        speculation = SpeculationSettings(MOST, drafter, adaptive=False, mode=mode)
        llm = LLM(folder, engine, serving=ServingSettings(prefix_cache=cache, speculation=speculation))
        answers = llm.generate(prompts, sampling)
        assert [list(answer.token_ids) for answer in answers] == plain
        (alone,) = llm.generate(prompts[2:], sampling)
        assert list(alone.token_ids) == plain[2]
        assert (alone.cached_tokens > 0) == (cache == "radix")
        metrics = llm.loop.speculation
        assert LONG < metrics.rows < 4 * LONG and 0.3 < metrics.acceptance < 0.7
        assert (metrics.state_bytes == engine.slot_bytes) == (mode == "snapshot" or not engine.config.recurrent_layers)


def test_prompt_lookup_needs_nothing_but_the_setting(artifacts: ArtifactCache) -> None:
    folder = artifacts.get("nemotron_h", "float32", layout="paged").folder
    prompt, sampling = [1, 2] * 8, SamplingParams(ignore_eos=True)
    plain = LLM(folder).generate(prompt, sampling, 60)
    llm = LLM(folder, serving=ServingSettings(speculation=SpeculationSettings(MOST)))
    assert llm.generate(prompt, sampling, 60).token_ids == plain.token_ids
    assert llm.loop.speculation.proposed > 0
