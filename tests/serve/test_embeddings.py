"""/v1/embeddings: hidden states of the model."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hybridge.serve.settings import ModelSettings
from tests.serve.conftest import CHECKPOINT
from tests.serve.running import Running, running

PATH, TEXT = "/v1/embeddings", "The President of the United States has a letter"


@pytest.fixture(scope="module")
def embedding(demo: ModelSettings) -> Iterator[Running]:
    with running([replace(demo, embeddings=True)]) as found:
        yield found


def vectors(served: Running, given: Any, **fields: Any) -> np.ndarray:
    body = served.post(PATH, input=given, **fields)
    assert [each["index"] for each in body["data"]] == list(range(len(body["data"])))
    return np.array([each["embedding"] for each in body["data"]], np.float32)


def test_a_mean_is_that_of_the_last_states_of_all_prefixes(embedding: Running) -> None:
    """Many prompts in one batch; the longer ones begin with states of the prefix cache."""
    ids = embedding.post("/tokenize", prompt=TEXT)["tokens"]
    prefixes = [ids[:length] for length in range(1, len(ids) + 1)]
    lasts = vectors(embedding, prefixes, pooling="last", normalize=False)
    mean = vectors(embedding, TEXT, normalize=False)
    np.testing.assert_allclose(mean[0], lasts.astype(np.float64).mean(axis=0), rtol=1e-4, atol=1e-4)
    again = vectors(embedding, [ids, ids], pooling="last", normalize=False)
    np.testing.assert_allclose(again, lasts[[-1, -1]], rtol=1e-4, atol=1e-4)


def test_lengths_and_encodings(embedding: Running) -> None:
    found = vectors(embedding, [TEXT, "The sea"])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    packed = embedding.post(PATH, input="The sea", encoding_format="base64")["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(packed), "<f4"), found[1], rtol=1e-4, atol=1e-6)
    usage = embedding.post(PATH, input="The sea")["usage"]
    assert (
        usage["prompt_tokens"] == usage["total_tokens"] == len(embedding.post("/tokenize", prompt="The sea")["tokens"])
    )
    assert vectors(embedding, "The sea", dimensions=192).shape == (1, 192)
    assert embedding.refusal(PATH, 400, input="x", dimensions=7)["param"] == "dimensions"
    assert embedding.refusal(PATH, 400, input=[])["type"] == "invalid_request_error"
    assert embedding.post("/v1/completions", prompt=TEXT, max_tokens=3)["usage"]["completion_tokens"] == 3


def test_models_without_embeddings(served: Running) -> None:
    assert served.refusal(PATH, 400, input="x")["param"] == "model"

    async def embed() -> None:
        await served.model().llm.embed("x", pooling="first")

    with pytest.raises(Exception, match="pooling"):
        asyncio.run(embed())


@pytest.mark.slow
def test_the_states_are_those_of_transformers(embedding: Running) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    seen: list[torch.Tensor] = []
    norm = next(module for name, module in model.named_modules() if name.endswith(("norm_f", "model.norm", ".norm_f")))
    norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    ids = embedding.post("/tokenize", prompt=TEXT)["tokens"]
    with torch.no_grad():
        model(torch.tensor([ids]))
    expected = seen[-1][0].double().numpy()
    scale = np.abs(expected).max()
    for pooling, row in (("mean", expected.mean(axis=0)), ("last", expected[-1])):
        found = vectors(embedding, [ids], pooling=pooling, normalize=False)[0]
        assert np.abs(found - row).max() < 1e-4 * scale
