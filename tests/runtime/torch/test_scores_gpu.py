"""Log-probabilities of a prompt's tokens on a GPU, against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.serving.test_real_scores import logprobs
from tests.support.artifacts import ArtifactCache

torch = pytest.importorskip("torch", reason="the torch engine needs torch")
transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("layout", ["dense", "paged"])
def test_prompt_logprobs_are_those_of_transformers(layout: str, artifacts: ArtifactCache) -> None:
    paged: dict[str, Any] = {"layout": "paged", "max_batch_size": 3} if layout == "paged" else {}
    exported = artifacts.get("llama", "float32", max_seq_len=96, **paged)
    model = transformers.AutoModelForCausalLM.from_pretrained(exported.checkpoint, dtype=torch.float32).eval()
    # Prompts of several steps.
    settings = ServingSettings(max_tokens=7) if paged else None
    prompts = [np.random.default_rng(length).integers(3, 90, length).tolist() for length in (2, 9, 30)]
    with LLM(exported.folder, engine="torch", serving=settings) as llm:
        for prompt in prompts:
            answer = llm.generate(prompt, SamplingParams(prompt_logprobs=0), max_new_tokens=2)
            assert answer.prompt_logprobs is not None and answer.prompt_logprobs[0] is None
            found = [each.logprob for each in answer.prompt_logprobs[1:] if each is not None]
            np.testing.assert_allclose(found, logprobs(model, prompt), atol=2e-4)
