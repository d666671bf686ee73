"""lm-eval scores texts through the server: its log-likelihoods are those of the checkpoint in float64."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.conftest import CHECKPOINT, MOST_TOKENS
from tests.serve.running import Running

pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'lm-eval[api]'")
pytestmark = pytest.mark.slow
PAIRS = [
    (context, continuation)
    for context in ("The whale", "Call me", "It was the sea, and the captain said that")
    for continuation in (" is a fish", " Ishmael", "\n\nx", " the the the the the the")
]


@pytest.mark.parametrize(("batch_size", "num_concurrent"), [(1, 1), (5, 1), (1, 4)])
def test_log_likelihoods(served: Running, batch_size: int, num_concurrent: int) -> None:
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from transformers import AutoModelForCausalLM, AutoTokenizer

    scorer = LocalCompletionsAPI(
        base_url=f"{served.server.url}/v1/completions",
        model="demo",
        tokenizer=str(CHECKPOINT),
        tokenizer_backend="huggingface",
        max_length=MOST_TOKENS,
        batch_size=batch_size,
        num_concurrent=num_concurrent,
    )
    found = scorer.loglikelihood([Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(PAIRS)])
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    model: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float64)
    for (context, continuation), (score, greedy) in zip(PAIRS, found, strict=True):
        # lm-eval adds no special tokens.
        ids = tokenizer(context + continuation, add_special_tokens=False)["input_ids"]
        start = len(tokenizer(context, add_special_tokens=False)["input_ids"])
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0, start - 1 : -1].log_softmax(-1)
        following = torch.tensor(ids[start:])
        assert score == pytest.approx(float(logprobs.gather(1, following[:, None]).sum()), abs=1e-4)
        assert greedy == bool((logprobs.argmax(-1) == following).all())
