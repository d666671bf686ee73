"""The kernels of sampling and of feeding tokens on the host: what they read from memory and write to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.sampling.edits import bits_of
from hybridge.runtime.sampling.random_words import RandomWords
from hybridge.runtime.sampling.token_sampling import DRAW, draw, surviving_tokens
from hybridge.runtime.sampling.weights import exponentials, whole_weights
from hybridge.trt_plugins.kernels.call import CallPlan
from hybridge.trt_plugins.kernels.fused.sampling import (
    BEST,
    IDLE,
    LISTED,
    MOST_LISTED,
    edit_type,
    result_type,
    settings_type,
)
from hybridge.trt_plugins.kernels.fused.token_feeding import MOST_STOPS

# (address, bytes) -> uint8 view of memory.
Read = Callable[[int, int], np.ndarray]


def run_reference(plan: CallPlan, read: Read, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Do what the launches of ``plan``, of fused.sampling or fused.token_feeding, would do."""
    if plan.name == "feed_tokens":
        _feed(plan.launches[0].params.rows, read, inputs, outputs)
        return
    assert plan.name == "sampling"
    problems, vocab = plan.launches[0].grid[1], plan.launches[0].params.vocab
    kinds = settings_type(), result_type()
    settings = read(inputs[1], problems * kinds[0].itemsize).view(kinds[0])
    results = read(outputs[0], problems * kinds[1].itemsize).view(kinds[1])
    tokens, logits = (read(outputs[i], problems * MOST_LISTED * 4).reshape(problems, -1) for i in (1, 2))
    for problem, setting in enumerate(settings):
        if setting["kind"] != IDLE:
            row = read(inputs[0] + int(setting["row"]) * vocab * 4, vocab * 4).view(np.float32)
            scores = _edited(row, setting, read, inputs)
            lists = tokens[problem].view(np.int32), logits[problem].view(np.float32)
            results[problem] = _result(row, scores, setting, lists)


def _feed(rows: int, read: Read, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    address, stride = read(inputs[0], 16).view(np.int64).tolist()
    stops = read(inputs[1], rows * MOST_STOPS * 4).view(np.int32).reshape(rows, MOST_STOPS)
    ids = read(outputs[0], rows * 8).view(np.int64)
    lengths, slots, states = (read(output, rows * 4).view(np.int32) for output in outputs[1:])
    sources = read(inputs[2], rows * 4).view(np.int32).tolist()
    for row in np.flatnonzero(lengths):
        if sources[row] < 0:
            continue
        token = int(read(address + sources[row] * stride, 4).view(np.int32)[0])
        ids[row] = token
        if token in (-1, *stops[row].tolist()):
            ids[row], lengths[row], slots[row], states[row] = 0, 0, -1, -1


def _edited(row: np.ndarray, setting: np.void, read: Read, inputs: Sequence[int]) -> np.ndarray:
    scores, vocab = row.copy(), row.size
    if setting["masked"]:
        words = -(-vocab // 32)
        mask = read(inputs[3] + int(setting["row"]) * words * 4, words * 4).view(np.uint32)
        scores[~bits_of(mask, vocab)] = -np.inf
    begin, count = int(setting["edits_begin"]), int(setting["edits_end"]) - int(setting["edits_begin"])
    if count:
        edits = read(inputs[2] + begin * edit_type().itemsize, count * edit_type().itemsize).view(edit_type())
        values = scores[edits["token"]] + edits["bias"]
        values = np.where(values < 0, values * edits["factor"], values / edits["factor"])
        scores[edits["token"]] = values - edits["minus"]
    return scores


def _result(row: np.ndarray, scores: np.ndarray, setting: np.void, lists: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The result of one problem; ``lists`` get the most likely tokens of a list and their logits."""
    found = np.zeros((), result_type())
    best = int(scores.argmax())
    if not (np.isfinite(row.max()) and np.isfinite(scores[best])):
        found["token"] = found["best"] = -1
        return found
    token = best
    peak, key = scores[best], int(setting["key_high"]) << 64 | int(setting["key_low"])
    if setting["kind"] == LISTED:
        order = np.argsort(-scores, kind="stable")[: setting["top_k"]]
        lists[0][: order.size], lists[1][: order.size], found["listed"] = order, scores[order], order.size
        found["total"] = whole_weights(exponentials(scores, peak, np.float32(1))).sum()
    elif setting["kind"] != BEST:
        params = SamplingParams(
            temperature=1 / float(setting["scale"]),
            top_k=int(setting["top_k"]),
            top_p=float(setting["top_p"]),
            min_p=float(setting["min_p"]),
        )
        ids, weights = surviving_tokens(scores, peak, params)
        place = draw(weights, RandomWords(key).at(int(setting["position"]), DRAW))
        token = place if ids is None else int(ids[place])
    found["token"], found["best"], found["logit"], found["peak"] = token, best, row[token], peak
    return found
