"""Draft tokens on real models, with keys and values in e4m3, with sliding windows, and while sessions are saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.errors import RequestError
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.session_file import read_session
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.scheduler import StepPlan
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationMetrics, SpeculationSettings
from tests.runtime.serving.engine_cases import KnownAnswers
from tests.support.agreement import relative_error
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample

MOST, NEW, BLOCK = 3, 30, 4
GREEDY = SamplingParams(ignore_eos=True)


class Speculating:
    """An artifact, prompts, their plain greedy answers, and loops that speculate over the same engine."""

    def __init__(self, folder: Path, sizes: Sequence[int]) -> None:
        self.folder, self.engine = folder, OnnxRuntimePagedEngine(folder, threads=1)
        rng = np.random.default_rng(6)
        self.prompts = [rng.integers(3, self.engine.config.vocab_size, size).tolist() for size in sizes]
        self.plain = [list(answer.token_ids) for answer in self.opened("off").generate(self.prompts, GREEDY, NEW)]

    def opened(self, cache: str | PrefixCacheSettings, mode: str | None = None) -> LLM:
        """Without draft tokens where there is no ``mode``."""
        speculation = None
        if mode is not None:
            texts = [prompt + text for prompt, text in zip(self.prompts, self.plain, strict=True)]
            drafter = KnownAnswers(texts, self.engine.config.vocab_size, 2)
            speculation = SpeculationSettings(MOST, drafter, adaptive=False, mode=mode)
        serving = ServingSettings(BLOCK, max_tokens=24, prefix_cache=cache, speculation=speculation)
        return LLM(self.folder, self.engine, serving=serving)

    def check(self, llm: LLM) -> SpeculationMetrics:
        """The answers are those of plain decoding, computed for the first time and again, and nothing is lost."""
        for _ in range(2):
            answers = llm.generate(self.prompts, GREEDY, NEW)
            assert [list(answer.token_ids) for answer in answers] == self.plain
            llm.loop.scheduler.check_integrity()
        metrics = llm.loop.speculation
        assert metrics is not None and 0 < metrics.accepted < metrics.proposed
        return metrics


@pytest.mark.parametrize("family", sample(("nemotron_h", "qwen3"), on_push=("nemotron_h",)))
def test_keys_and_values_in_e4m3(family: str, artifacts: ArtifactCache) -> None:
    """Those of a wrong draft token are written over, whatever happens to states, with the prefix cache and without."""
    options = {"layout": "paged", "kv_dtype": "fp8_e4m3"}
    served = Speculating(artifacts.get(family, "float32", **options).folder, (3, 17, 30))
    assert served.engine.config.has_kv_scales
    for mode, cache in (("auto", "radix"), ("snapshot", "off")):
        served.check(served.opened(cache, mode))


@pytest.mark.parametrize(
    ("full_layers", "cache"), sample(product((0, 1), ("off", "radix")), on_push=((0, "off"), (0, "radix")))
)
def test_sliding_windows(
    full_layers: int, cache: str, artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks behind the window are given back as draft tokens are accepted, unless a layer sees all or a cache keeps
    them."""
    window = 5
    overrides = {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": window}
    overrides |= {"max_window_layers": full_layers}
    served = Speculating(artifacts.get("qwen3", "float32", overrides, layout="paged").folder, (3, 17, 30))
    layers = [None] * full_layers + [window] * (2 - full_layers)
    assert [layer.sliding_window for layer in served.engine.config.kv_layers] == layers
    llm = served.opened(cache, "auto")
    passed, commit = list[int](), llm.loop.scheduler.commit

    def watched(plan: StepPlan, accepted: Mapping[int, int]) -> None:
        commit(plan, accepted)
        passed.extend(sequence.memory.passed for sequence in llm.loop.scheduler.sequences.values())

    monkeypatch.setattr(llm.loop.scheduler, "commit", watched)
    served.check(llm)
    longest = 30 + NEW
    assert max(passed) == (0 if full_layers or cache == "radix" else (longest - 1 - window) // BLOCK)


@pytest.mark.parametrize("mode", sample(("auto", "snapshot"), on_push=("auto",)))
def test_a_session_saved_during_a_step_with_draft_tokens(mode: str, artifacts: ArtifactCache, tmp_path: Path) -> None:
    """It holds the states of exactly its tokens, although other answers still run, and continues correctly."""
    served = Speculating(artifacts.get("nemotron_h", "float32", layout="paged").folder, (5, 17, 30))
    cache = PrefixCacheSettings(decode_interval=8)
    llm, files = served.opened(cache, mode), list[Path]()
    histories = [prompt + text for prompt, text in zip(served.prompts, served.plain, strict=True)]
    for seen, piece in enumerate(llm.generate(served.prompts, GREEDY, NEW, stream=True)):
        if piece.generation is not None or seen % 20 == 0:
            # For a running answer the cache has the states stored so far, at first none.
            with nullcontext() if piece.generation is not None else suppress(RequestError):
                file = tmp_path / f"{len(files)}.session"
                llm.save_session(file, histories[piece.index])
                files.append(file)
            llm.loop.scheduler.check_integrity()
    assert len(files) > 3 and llm.loop.speculation is not None and llm.loop.speculation.accepted
    lengths = set()
    for file in files:
        saved = read_session(file)
        index = next(i for i, history in enumerate(histories) if history[: len(saved.tokens)] == list(saved.tokens))
        lengths.add(len(saved.tokens) - len(served.prompts[index]))
        # The states of the same tokens in plain decoding, computed in one step.
        scratch = served.opened("radix")
        scratch.generate(list(saved.tokens), GREEDY, 1)
        scratch.save_session(tmp_path / "scratch", list(saved.tokens))
        expected = read_session(tmp_path / "scratch")
        assert expected.tokens == saved.tokens
        for name, array in expected.arrays.items():
            assert relative_error(saved.arrays[name], array) < 1e-5, name
        for other in (served.opened("radix"), served.opened("radix", mode)):
            other.load_session(file)
            rest = len(histories[index]) - len(saved.tokens)
            again = other.generate(histories[index][: len(saved.tokens) + 1], GREEDY, rest)
            assert again.cached_tokens == len(saved.tokens)
            assert list(again.token_ids)[: rest - 1] == histories[index][len(saved.tokens) + 1 :]
    assert max(lengths) == NEW - 1 and len(lengths) > 2
