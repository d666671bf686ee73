"""Steps of the paged TensorRT engine that are launched before the tokens of the step before are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.equal_rows import EqualRows
from hybridge.runtime.generation import Request
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.serving.toy_loop import answers, run_all
from tests.support.artifacts import ArtifactCache

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from hybridge.runtime.engines.tensorrt.paged.engine import TensorRTPagedEngine
from tests.runtime.tensorrt.paged_double import OpenedDouble, ParsedEngine, open_double

pytestmark = pytest.mark.slow
ROWS, VOCAB, NEW = 3, 97, 14
PARAMS: list[dict[str, Any]] = [{}, {"temperature": 0.8, "seed": 1}, {"temperature": 1.3, "top_k": 7, "seed": 2}, {}]


@pytest.fixture(scope="module")
def parsed(artifacts: ArtifactCache, tmp_path_factory: pytest.TempPathFactory) -> ParsedEngine:
    """A hybrid in native layers, whose pools have two buffers."""
    sizes = {"layout": "paged", "max_batch_size": ROWS, "max_seq_len": 64}
    overrides = {"hybrid_override_pattern": "M*"}
    folder = artifacts.get("nemotron_h", "float32", overrides, **sizes).folder
    return ParsedEngine(folder, tmp_path_factory.mktemp("engine"), plugins="off")


def turns_of(opened: OpenedDouble, eos: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The answers to prompts, and to what follows each, which begins with the state that its answer has left."""
    cache = PrefixCacheSettings(decode_interval=1 << 20, cached_states=8)
    loop = ServingLoop(opened.engine, ServingSettings(memory_bytes=1 << 20, prefix_cache=cache), eos, None)
    rng, found = np.random.default_rng(3), list[tuple[int, ...]]()
    prompts = [rng.integers(0, VOCAB, 2 + row).tolist() for row in range(len(PARAMS))]
    for turn in range(2):
        ids = [
            loop.add(ServingRequest(Request(tuple(prompt), SamplingParams(**params), NEW)))
            for prompt, params in zip(prompts, PARAMS, strict=True)
        ]
        texts = answers(run_all(loop))
        found += [texts[id_, 0] for id_ in ids]
        prompts = [[*prompt, *texts[id_, 0], turn] for prompt, id_ in zip(prompts, ids, strict=True)]
    return found


def test_answers_and_states_are_those_of_single_steps(parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    eos = tuple(range(0, VOCAB, 11))  # so many that answers end early
    opened = open_double(parsed, monkeypatch)
    found = turns_of(opened, eos)
    fed = {key: step for key, (step, _) in opened.engine.steps.captured.items() if key.fed}
    assert {key.turn for key in fed} == {0, 1} and any(step.is_replayed for step in fed.values())
    opened.close()
    monkeypatch.setattr(TensorRTPagedEngine, "chains_steps", False)
    opened = open_double(parsed, monkeypatch)
    assert turns_of(opened, eos) == found
    assert any(tokens[-1] in eos for tokens in found) and any(len(tokens) == NEW for tokens in found)
    assert not any(key.fed for key in opened.engine.steps.captured)
    opened.close()


def test_a_step_is_fed_the_token_of_the_one_before(parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits are those of a step that the host gives this token."""
    opened = open_double(parsed, monkeypatch)
    engine = opened.engine
    rows = EqualRows(engine, 1, 8, 16)
    assert engine.step(rows.inputs(np.array([[3, 4]]), 0)).shape == (1, VOCAB)
    result = engine.launch(rows.inputs(np.array([[5]]), 2))
    assert engine.launch_next(result, rows.inputs(np.array([[0]]), 3), Feeding([range(17)], {})) is None
    following = engine.launch_next(result, rows.inputs(np.array([[0]]), 3), Feeding([()], {}))
    assert following is not None
    with pytest.raises(EngineError, match="finite logits"):
        result.logits(0)  # overwritten, unlike the token
    (token,) = result.fed_tokens()
    assert result.best_tokens() == [token]
    found = following.logits(0).copy()
    rows = EqualRows(engine, 1, 8, 16)
    expected = engine.step(rows.inputs(np.array([[3, 4, 5, token]]), 0))[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    with pytest.raises(EngineError, match="they are gone"):
        following.fed_tokens()
    opened.close()
