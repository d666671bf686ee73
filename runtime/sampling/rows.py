"""Vectorised sampling of many rows; the tokens are those of sampling each row alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.sampling.edits import edited_rows
from hybridge.runtime.sampling.token_sampling import DRAW, SampledToken, TokenSampling, block_size
from hybridge.runtime.sampling.weights import exponentials, scale_of, share_of, target_of, whole_weights

DrawError = EngineError | RequestError
# Largest weights of each row that top_p sorts.
_HEAD = 64
# Largest number of logits and smallest number of rows of one batch: beyond these, sampling each row alone is as fast.
_MOST_NUMBERS, _LEAST_ROWS = 1 << 15, 4


def sample_rows(samplings: Sequence[TokenSampling], logits: np.ndarray) -> list[SampledToken | DrawError]:
    """The token of each of ``samplings`` from its row of ``logits`` [n, vocab] float32, or that row's error.

    Logits are edited together, and rows of equal top_k, top_p and min_p are sampled together, whatever their
    temperatures and seeds; rows with logits processors and rows of large vocabularies one by one.
    """
    scores, edited = _edited(samplings, logits)
    tokens = [-1] * len(samplings)
    at_once = _MOST_NUMBERS // logits.shape[1]
    alike: dict[tuple[int, float, float], list[int]] = {}
    if at_once >= _LEAST_ROWS:
        for place, how in enumerate(samplings):
            if how.words is not None and edited[place]:
                alike.setdefault(how.filters, []).append(place)
    for filters, positions in alike.items():
        for begin in range(0, len(positions), at_once):
            some = positions[begin : begin + at_once]
            if len(some) >= _LEAST_ROWS:
                neighbours = some[-1] - some[0] < len(some)
                rows = scores[some[0] : some[-1] + 1] if neighbours else scores[some]
                for place, token in zip(some, _tokens([samplings[p] for p in some], rows, *filters), strict=True):
                    tokens[place] = token
    return [
        how.described(logits[p], token) if token >= 0 else _alone(how, logits[p], scores[p] if edited[p] else None)
        for p, (how, token) in enumerate(zip(samplings, tokens, strict=True))
    ]


def _edited(samplings: Sequence[TokenSampling], logits: np.ndarray) -> tuple[np.ndarray, list[bool]]:
    """``logits`` after each row's edits, and by row whether these were applied; other rows are sampled alone."""
    done = [how.process is None for how in samplings]
    edits = {place: how.edits for place, how in enumerate(samplings) if done[place] and how.edits is not None}
    if not edits:
        return logits, done
    # Where the logits themselves are not finite, an edit might hide it.
    for place, peak in zip(edits, logits[list(edits)].max(1).tolist(), strict=True):
        done[place] = math.isfinite(peak)
    positions = [place for place in edits if done[place]]
    scores = logits.copy()
    if positions:
        scores[positions] = edited_rows(logits[positions], [edits[place] for place in positions])
    return scores, done


def _alone(how: TokenSampling, logits: np.ndarray, scores: np.ndarray | None) -> SampledToken | DrawError:
    """The token of one row, or its error. ``scores``: the logits after all edits; None: not yet applied."""
    try:
        return how.chosen(logits, how.scores(logits) if scores is None else scores)
    except (EngineError, RequestError) as error:
        return error


def _tokens(
    samplings: Sequence[TokenSampling], scores: np.ndarray, top_k: int, top_p: float, min_p: float
) -> list[int]:
    """The token of each row of ``scores`` [m, vocab]; -1 where it must be sampled alone."""
    peaks, ids = scores.max(1), None
    fit = np.isfinite(peaks)
    if 0 < top_k < scores.shape[1]:
        mask = scores >= np.partition(scores, -top_k, axis=1)[:, -top_k, None]
        # Where tokens tie with the k-th, more than k stay.
        fit &= mask.sum(1) == top_k
        mask[~fit] = np.arange(scores.shape[1]) < top_k
        ids = mask.nonzero()[1].reshape(len(scores), top_k)
        scores = np.take_along_axis(scores, ids, 1)
    if not fit.all():
        # Their results are not used, but must be finite.
        scores, peaks = np.where(fit[:, None], scores, 0), np.where(fit, peaks, 0)
    scales = np.array([scale_of(how.params.temperature) for how in samplings], np.float32)
    weights = exponentials(scores, peaks[:, None], scales[:, None])
    whole = whole_weights(weights)
    if top_p < 1:
        survive, reached = _top_p(weights, whole, top_p)
        fit &= reached
        whole[~survive] = 0
    if min_p > 0:
        # The largest weight survives top_p.
        whole[weights < np.float32(min_p) * weights.max(1, keepdims=True)] = 0
    words = [how.words.at(how.position, DRAW) if how.words is not None else 0 for how in samplings]
    positions = _positions(whole, words)
    tokens = positions if ids is None else np.take_along_axis(ids, positions[:, None], 1)[:, 0]
    tokens[~fit] = -1
    found: list[int] = tokens.tolist()
    return found


def _top_p(weights: np.ndarray, whole: np.ndarray, top_p: float) -> tuple[np.ndarray, np.ndarray]:
    """``top_p_positions`` of each row of ``weights`` [m, n] as a mask, and whether the row's largest _HEAD weights
    were enough to decide [m]."""
    shares = np.array([share_of(total, top_p) for total in whole.sum(1).tolist()])
    n = weights.shape[1]
    size = min(_HEAD, n)
    head = np.sort(np.argpartition(weights, n - size, axis=1)[:, n - size :], axis=1)
    values = np.take_along_axis(weights, head, 1)
    order = np.argsort(-values, axis=1, kind="stable")
    head, values = np.take_along_axis(head, order, 1), np.take_along_axis(values, order, 1)
    running = np.cumsum(np.take_along_axis(whole, head, 1), axis=1)
    counts = (running < shares[:, None]).sum(1) + 1
    mask = np.zeros(weights.shape, bool)
    np.put_along_axis(mask, head, np.arange(size) < counts[:, None], 1)
    # argpartition may put any of several equal weights into the head.
    last = np.take_along_axis(values, np.minimum(counts, size)[:, None] - 1, 1)[:, 0]
    return mask, (running[:, -1] >= shares) & ((last > values[:, -1]) | (size == n))


def _positions(whole: np.ndarray, words: Sequence[int]) -> np.ndarray:
    """The position [m] sampled with each of ``words`` in its row of ``whole`` [m, n]."""
    rows, count = whole.shape
    size = block_size(count)
    blocks = np.cumsum(np.add.reduceat(whole, np.arange(0, count, size), axis=1), axis=1)
    targets = np.array([target_of(word, total) for word, total in zip(words, blocks[:, -1].tolist(), strict=True)])
    block = (blocks <= targets[:, None]).sum(1)
    if size == count:
        return np.asarray((np.cumsum(whole, axis=1) <= targets[:, None]).sum(1))
    targets -= np.where(block == 0, 0, blocks[np.arange(rows), block - 1])
    positions = (block * size)[:, None] + np.arange(size)
    chosen = np.take_along_axis(whole, np.minimum(positions, count - 1), 1)
    return block * size + (np.cumsum(chosen, axis=1) <= targets[:, None]).sum(1)
