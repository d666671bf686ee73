"""Calibration windows sampled from the model itself, used without a text."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.progress import Progress
from hybridge.verification.transformers_model import TransformersModel

WINDOW, WINDOWS = 256, 16
_SEED = 0


def own_samples(model: TransformersModel, progress: Progress) -> list[np.ndarray]:
    """WINDOWS sequences of WINDOW tokens, int64, sampled from the model's own distribution after BOS.

    If the config has no BOS, each begins with a random token (as LLM-QAT does, arXiv 2305.17888).
    CheckpointError: transformers cannot generate with the model.
    """
    torch = model.torch
    from transformers import GenerationConfig

    config = model.model.config.get_text_config()
    begin = getattr(config, "bos_token_id", None)
    with torch.random.fork_rng(devices=[] if model.device == "cpu" else [torch.cuda.current_device()]):
        torch.manual_seed(_SEED)
        if isinstance(begin, int) and 0 <= begin < config.vocab_size:
            first = torch.full((WINDOWS, 1), begin)
        else:
            first = torch.randint(int(config.vocab_size), (WINDOWS, 1))
        first = first.to(model.device)
        settings = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=WINDOW - 1, pad_token_id=0
        )
        model.model.generation_config = GenerationConfig()  # no end-of-sequence tokens
        progress.start("sample calibration text", WINDOW - 1)
        with model.failures("generate with"), torch.no_grad():
            found = model.model.generate(
                first,
                attention_mask=torch.ones_like(first),
                generation_config=settings,
                logits_processor=[_finite],
                stopping_criteria=[lambda ids, _scores, **_: _advance(progress, ids)],
            )
    return list(found.cpu().numpy())


def _finite(_ids: Any, scores: Any) -> Any:
    """``scores``; CheckpointError: one is not finite."""
    if not bool(scores.isfinite().all()):
        raise CheckpointError(
            "expected finite predictions to sample from, found others: weights are too large, or the checkpoint is "
            "damaged"
        )
    return scores


def _advance(progress: Progress, ids: object) -> object:
    """Report a step; a stopping criterion that stops no sequence."""
    progress.advance()
    return ids.new_zeros(len(ids), dtype=bool)  # type: ignore[attr-defined, arg-type]
