"""Log-probabilities of prompts and continuations on a real small model, against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from tests.support.artifacts import ArtifactCache

torch = pytest.importorskip("torch", reason="transformers is the oracle")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")


@pytest.fixture(scope="module", params=["dense", "paged"])
def pair(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> Iterator[tuple[LLM, Any]]:
    limits = {"layout": "paged", "max_batch_size": 3} if request.param == "paged" else {}
    exported = artifacts.get("llama", "float32", max_seq_len=96, **limits)
    model = transformers.AutoModelForCausalLM.from_pretrained(exported.checkpoint, dtype=torch.float32).eval()
    settings = ServingSettings(max_tokens=7, prefix_cache="radix") if request.param == "paged" else None
    with LLM(exported.folder, threads=1, serving=settings) as llm:
        yield llm, model


def logprobs(model: Any, tokens: list[int]) -> np.ndarray:
    """Log-probabilities [len(tokens) - 1] of all tokens but the first."""
    with torch.inference_mode():
        found = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1).numpy()
    return found[np.arange(len(tokens) - 1), tokens[1:]]


# On push, test_request_options.py compares with exact logits.
@pytest.mark.slow
def test_scores(pair: tuple[LLM, Any]) -> None:
    llm, model = pair
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 90, length).tolist() for length in (1, 9, 30)]
    after = [rng.integers(3, 90, length).tolist() for length in (4, 1, 12)]
    for prompt, more, score in zip(prompts, after, llm.score(prompts, after), strict=True):
        # Logits of float32 agree within 1e-4.
        np.testing.assert_allclose(score.logprobs, logprobs(model, prompt + more)[len(prompt) - 1 :], atol=2e-4)
    prompt = prompts[2]
    answer = llm.generate(prompt, SamplingParams(prompt_logprobs=0, n=1), max_new_tokens=2)
    assert answer.prompt_logprobs is not None
    np.testing.assert_allclose(
        [each.logprob for each in answer.prompt_logprobs[1:]], logprobs(model, prompt), atol=2e-4
    )
