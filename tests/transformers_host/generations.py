"""Prompts and ways to generate that are run before and after acceleration."""

from __future__ import annotations

from typing import Any

import torch

PROMPT = torch.tensor([[5, 17, 40, 8, 61, 33, 9]])
# Three prompts of 7, 3 and 5 tokens, padded on the left as tokenizers do it for generation.
BATCH = torch.tensor([[5, 17, 40, 8, 61, 33, 9], [0, 0, 0, 0, 71, 12, 4], [0, 0, 90, 44, 7, 25, 18]])
BATCH_MASK = (BATCH != 0).long()


def exactly(tokens: int) -> dict[str, Any]:
    """Arguments for that many new tokens, whatever they are."""
    return {"max_new_tokens": tokens, "min_new_tokens": tokens}


GREEDY_BATCH: dict[str, Any] = {
    "input_ids": BATCH,
    "attention_mask": BATCH_MASK,
    "do_sample": False,
    **exactly(64),
}
SAMPLED: dict[str, Any] = {"input_ids": PROMPT, "do_sample": True, "temperature": 0.9, "top_k": 20, **exactly(12)}
BEAMS: dict[str, Any] = {"input_ids": PROMPT, "do_sample": False, "num_beams": 4, **exactly(8)}


def generated(model: Any, **arguments: Any) -> list[list[int]]:
    """The token ids of ``model.generate`` under a fixed seed."""
    torch.manual_seed(3)
    return model.generate(**arguments).tolist()
