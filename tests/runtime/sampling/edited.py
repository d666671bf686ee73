"""What a request changes about logits before the temperature, written out token by token in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridge.runtime.sampling import SamplingParams


def edited(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: Sequence[int],
    answer: Sequence[int],
    stop_ids: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
) -> np.ndarray:
    """Scores [vocab] after ``prompt`` and ``answer``; ``bad_words`` are token ids."""
    scores = [float(logit) for logit in logits]
    for token in range(len(scores)):
        forbidden = params.allowed_token_ids is not None and token not in params.allowed_token_ids
        for word in bad_words:
            ended = [*answer, token][-len(word) :]
            forbidden = forbidden or ended == list(word)
        if forbidden or (token in stop_ids and len(answer) < params.min_tokens):
            scores[token] = -np.inf
        scores[token] += dict(params.logit_bias).get(token, 0.0)
    for process in params.logits_processors:
        scores = [float(score) for score in process(tuple(answer), np.array(scores, np.float32))]
    for token in set(prompt) | set(answer):
        negative = scores[token] < 0
        scores[token] *= params.repetition_penalty if negative else 1 / params.repetition_penalty
    for token in set(answer):
        scores[token] -= params.frequency_penalty * list(answer).count(token) + params.presence_penalty
    return np.array(scores)


def best_continuation(
    logits_of, params: SamplingParams, prompt: Sequence[int], count: int, **known: Sequence
) -> list[int]:
    """``count`` tokens, each the most likely one of the edited logits [vocab] that ``logits_of`` gives after others."""
    answer: list[int] = []
    while len(answer) < count:
        scores = edited(logits_of([*prompt, *answer]), params, prompt, answer, **known)
        answer.append(int(scores.argmax()))
    return answer
