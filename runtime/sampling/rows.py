"""Sampling for many requests at once, in a few calls for all rows, with the same bits as for each alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.sampling.edits import edited_rows
from hybridge.runtime.sampling.filters import FIRST_HEAD
from hybridge.runtime.sampling.logprobs import TokenLogprobs
from hybridge.runtime.sampling.sampler import Sampler, block_size, draw

SampledToken = tuple[int, TokenLogprobs | None]
DrawError = EngineError | RequestError
# Numbers that are worked on together: with more of them, or fewer rows, a row by itself is as fast.
_MOST_NUMBERS, _LEAST_ROWS = 1 << 15, 4


def sample_rows(samplers: Sequence[Sampler], logits: np.ndarray) -> list[SampledToken | DrawError]:
    """The result of ``sample`` of each sampler for its row of ``logits`` [n, vocab] float32, or the error it raises.

    Logits are edited together, and rows of equal top_k, top_p and min_p are sampled together, whatever their
    temperatures and seeds; those with functions of the caller, and those of large vocabularies, one by one.
    """
    scores, edited = _edited(samplers, logits)
    tokens = [-1] * len(samplers)
    at_once = _MOST_NUMBERS // logits.shape[1]
    alike: dict[tuple[int, float, float], list[int]] = {}
    if at_once >= _LEAST_ROWS:
        for place, sampler in enumerate(samplers):
            if sampler.filters is not None and edited[place]:
                alike.setdefault(sampler.filters, []).append(place)
    for filters, positions in alike.items():
        for begin in range(0, len(positions), at_once):
            some = positions[begin : begin + at_once]
            if len(some) >= _LEAST_ROWS:
                neighbours = some[-1] - some[0] < len(some)
                rows = scores[some[0] : some[-1] + 1] if neighbours else scores[some]
                for place, token in zip(some, _tokens([samplers[p] for p in some], rows, *filters), strict=True):
                    tokens[place] = token
    return [
        s.record(logits[p], token) if token >= 0 else _alone(s, logits[p], scores[p] if edited[p] else None)
        for p, (s, token) in enumerate(zip(samplers, tokens, strict=True))
    ]


def _edited(samplers: Sequence[Sampler], logits: np.ndarray) -> tuple[np.ndarray, list[bool]]:
    """``logits`` after the edits of each sampler, and by row whether these were made; other rows are sampled alone."""
    edits = {
        place: edit
        for place, sampler in enumerate(samplers)
        if not sampler.has_processors and (edit := sampler.edits(logits.shape[1])) is not None
    }
    done = [not sampler.has_processors for sampler in samplers]
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


def _alone(sampler: Sampler, logits: np.ndarray, scores: np.ndarray | None) -> SampledToken | DrawError:
    """``scores``: the logits after all edits, None where these are still to be made."""
    try:
        return sampler.sample(logits) if scores is None else sampler.sample_edited(logits, scores)
    except (EngineError, RequestError) as error:
        return error


def _tokens(samplers: Sequence[Sampler], scores: np.ndarray, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The token of each row of ``scores`` [m, vocab]; -1, and nothing is sampled, where it must be sampled alone."""
    peaks, ids = scores.max(1), None
    fit = np.isfinite(peaks)
    if 0 < top_k < scores.shape[1]:
        mask = scores >= np.partition(scores, -top_k, axis=1)[:, -top_k, None]
        # Where tokens tie with the k-th, more than k stay.
        fit &= mask.sum(1) == top_k
        mask[~fit] = np.arange(scores.shape[1]) < top_k
        ids = mask.nonzero()[1].reshape(len(scores), top_k)
        scores = np.take_along_axis(scores, ids, 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        weights = scores - peaks[:, None]
        weights /= np.array([sampler.temperature for sampler in samplers], np.float32)[:, None]
        np.exp(weights, out=weights)
        survive = None
        if top_p < 1:
            survive, reached = _top_p(weights, top_p)
            fit &= reached
        if min_p > 0:
            # The largest weight survives top_p.
            likely = weights >= np.float32(min_p) * weights.max(1, keepdims=True)
            survive = likely if survive is None else survive & likely
        weights[~fit] = 1  # unused, but finite
        if survive is not None:
            survive[~fit] = True
        uniforms = [sampler.uniform() if ok else 0.0 for sampler, ok in zip(samplers, fit.tolist(), strict=True)]
        positions = _positions(weights, survive, np.array(uniforms))
    positions[~fit] = 0
    tokens = positions if ids is None else np.take_along_axis(ids, positions[:, None], 1)[:, 0]
    tokens[~fit] = -1
    found: list[int] = tokens.tolist()
    return found


def _top_p(weights: np.ndarray, top_p: float) -> tuple[np.ndarray, np.ndarray]:
    """The fewest largest of ``weights`` [m, n] that reach top_p of the whole, as a mask; whether a head of each row was
    enough to tell [m]. As ``top_p_positions``."""
    thresholds = top_p * weights.sum(axis=1, dtype=np.float64)
    n = weights.shape[1]
    size = min(FIRST_HEAD, n)
    head = np.sort(np.argpartition(weights, n - size, axis=1)[:, n - size :], axis=1)
    values = np.take_along_axis(weights, head, 1)
    order = np.argsort(-values, axis=1, kind="stable")
    running = np.cumsum(np.take_along_axis(values, order, 1), axis=1, dtype=np.float64)
    counts = (running < thresholds[:, None]).sum(1) + 1
    mask = np.zeros(weights.shape, bool)
    np.put_along_axis(mask, np.take_along_axis(head, order, 1), np.arange(size) < counts[:, None], 1)
    return mask, (running[:, -1] >= thresholds) | (size == n)


def _positions(weights: np.ndarray, survive: np.ndarray | None, uniforms: np.ndarray) -> np.ndarray:
    """``draw`` for each row of ``weights`` [m, n] (those that ``survive``) and of ``uniforms`` [m]."""
    rows, count = weights.shape
    size = block_size(count)
    if survive is not None and size < count:
        # What survives of each row is in its own blocks.
        survivors = [np.flatnonzero(row) for row in survive]
        return np.array(
            [ids[draw(row[ids], u)] for row, ids, u in zip(weights, survivors, uniforms.tolist(), strict=True)]
        )
    if size == count:
        # A weight of 0 changes no running sum.
        alive = weights if survive is None else np.where(survive, weights, 0)
        return _passed(np.cumsum(alive, axis=1, dtype=np.float64), uniforms)
    blocks = np.cumsum(np.add.reduceat(weights, np.arange(0, count, size), axis=1, dtype=np.float64), axis=1)
    block, every = _passed(blocks, uniforms), np.arange(rows)
    before = np.where(block == 0, 0.0, blocks[every, block - 1])
    positions = (block * size)[:, None] + np.arange(size)
    chosen = np.take_along_axis(weights, np.minimum(positions, count - 1), 1)
    chosen[positions >= count] = 0
    inside = np.cumsum(chosen, axis=1, dtype=np.float64)
    shares = (uniforms * blocks[:, -1] - before) / inside[:, -1]
    return block * size + _passed(inside, np.clip(shares, 0.0, 1.0))


def _passed(running: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Where each of the ``running`` sums [m, n] passes ``uniforms`` [m] of its whole."""
    totals = running[:, -1]
    positions = (running <= (uniforms * totals)[:, None]).sum(1)
    over = positions == running.shape[1]
    if over.any():
        # Rounding pushed the target onto the total: the last position that has any weight.
        positions[over] = (running[over] < totals[over, None]).sum(1)
    return np.asarray(positions)
