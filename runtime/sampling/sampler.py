"""Sampling of the next token of one request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from hybridge.artifact.errors import EngineError, RequestError, described
from hybridge.runtime.sampling.edits import LogitEdits, checked_logits, edited_rows
from hybridge.runtime.sampling.filters import min_p_positions, top_k_ids, top_p_positions
from hybridge.runtime.sampling.history import AnswerHistory
from hybridge.runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from hybridge.runtime.sampling.params import SamplingParams
from hybridge.runtime.sampling.rejection import DraftToken, accepted_or_resampled

# Smaller temperatures are effectively greedy, and dividing by them would overflow float32.
_LEAST_TEMPERATURE = 1e-6
# Up to this many tokens are summed as one block; above, sampling first chooses a block and then a token in it.
FEW = 64


class Sampler:
    """Samples the tokens of one request from its logits; owns its random stream and its token history.

    It does not depend on other requests, so a request samples the same tokens alone and in a batch.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Iterable[int] = (),
        stop_ids: Iterable[int] = (),
        bad_words: Sequence[tuple[int, ...]] = (),
        choice: int = 0,
    ) -> None:
        """``stop_ids``: not sampled for the first min_tokens tokens; ``bad_words``: token ids of the texts.

        ``choice`` counts the answers to one prompt, each with its own seed.
        """
        self._params = params
        self._plain_greedy = params.plain_greedy
        seed = None if params.seed is None else params.seed + choice
        self._random = None if params.greedy else np.random.Generator(np.random.PCG64(seed))
        self._history = AnswerHistory(params, prompt, stop_ids, bad_words) if params.edits_logits else None
        self.temperature = _divisor(params)
        # (top_k, top_p, min_p); None if greedy.
        self.filters = None if self._random is None else (params.top_k, params.top_p, params.min_p)

    def uniform(self) -> float:
        """The next number of the random stream, in [0, 1), for callers that sample without ``sample``."""
        assert self._random is not None, "a greedy sampler has no random stream"
        return self._random.random()

    @property
    def is_random(self) -> bool:
        """Whether tokens are sampled; otherwise the most likely one is taken."""
        return self._random is not None

    @property
    def has_processors(self) -> bool:
        """Whether functions of the caller change the logits."""
        return bool(self._params.logits_processors)

    def edits(self, vocab: int) -> LogitEdits | None:
        """Changes to the next logits [vocab] before the temperature, except logits_processors; None: none."""
        return None if self._history is None else self._history.edits(vocab)

    def sample_draft_token(self, logits: np.ndarray) -> DraftToken:
        """A draft token sampled from a draft model's ``logits`` [vocab] float32 with the request's own settings.

        Uses the request's temperature, filters and random stream. Penalties and other edits are skipped: they would
        depend on earlier draft tokens, which are not recorded. EngineError as in ``sample``.
        """
        assert self._random is not None, "a greedy sampler has no random stream"
        ids, weights = surviving_tokens(logits, float(logits[_argmax(logits)]), self._params)
        position = draw(weights, self._random.random())
        if ids is None:
            return DraftToken(position, weights)
        probabilities = np.zeros(logits.size, weights.dtype)
        probabilities[ids] = weights
        return DraftToken(int(ids[position]), probabilities)

    def sample(
        self, logits: np.ndarray, best: int | None = None, draft_token: DraftToken | None = None
    ) -> tuple[int, TokenLogprobs | None]:
        """The next token from ``logits`` [vocab] float32 (unchanged), and its log-probabilities if requested.

        ``best``: the most likely token, if the caller knows it and its logit is finite (``best_tokens``).
        ``draft_token``: a draft token to accept or reject; it does not change the distribution of the result.
        One without probabilities changes nothing at all. EngineError when the logits hold NaN or no finite value;
        RequestError when the request forbids every token or a logits processor fails.
        """
        if self._plain_greedy:
            return _argmax(logits) if best is None else best, None
        if self._history is None:
            return self.sample_edited(logits, logits, draft_token)
        _argmax(logits)
        edits = self._history.edits(logits.size)
        return self.sample_edited(logits, edited_rows(logits[None], [edits], self._processed)[0], draft_token)

    def sample_edited(
        self, logits: np.ndarray, scores: np.ndarray, draft_token: DraftToken | None = None
    ) -> tuple[int, TokenLogprobs | None]:
        """Like ``sample``, with ``scores`` [vocab], the ``logits`` after ``edits``."""
        best = _argmax(scores, self._history is not None)
        token = (
            best
            if self._random is None
            else _draw_token(scores, float(scores[best]), self._params, self._random, draft_token)
        )
        return self.record(logits, token)

    def record(self, logits: np.ndarray, token: int) -> tuple[int, TokenLogprobs | None]:
        """Record ``token``, sampled after ``logits`` [vocab], and return it with its log-probabilities if requested."""
        if self._history is not None:
            self._history.add(token)
        count = self._params.logprobs
        return token, None if count is None else token_logprobs(logits, token, count)

    def _processed(self, rows: np.ndarray) -> np.ndarray:
        """One row [1, vocab] after the logits processors."""
        assert self._history is not None
        tokens, scores = tuple(self._history.tokens), rows[0]
        for index, process in enumerate(self._params.logits_processors):
            name = f"logits_processors[{index}]"
            try:
                found = process(tokens, scores)
            except Exception as error:
                raise RequestError(f"{name}: expected logits, found {described(error)}") from error
            scores = checked_logits(found, scores.size, name)
        # A copy: later steps write to it, and the caller may keep what it returned.
        return scores[None].copy() if self.has_processors else rows


def best_tokens(logits: np.ndarray) -> list[int | None]:
    """The most likely token of each row of ``logits`` [rows, vocab]; None where it has NaN or no finite value.

    All rows in one call, because a call per row costs more than the comparison for small vocabularies.
    """
    best = logits.argmax(axis=1)
    finite = np.isfinite(logits[np.arange(best.size), best])
    tokens: list[int | None] = best.tolist()
    if not finite.all():
        tokens = [token if ok else None for token, ok in zip(tokens, finite.tolist(), strict=True)]
    return tokens


def best_token(logits: np.ndarray) -> int | None:
    """The most likely token of ``logits`` [vocab]; None where it has NaN or no finite value."""
    best = int(logits.argmax())
    # argmax returns the first NaN if there is one, so one look finds any.
    return best if math.isfinite(logits.item(best)) else None


def _divisor(params: SamplingParams) -> float:
    """The effective temperature."""
    return max(params.temperature, _LEAST_TEMPERATURE)


def surviving_tokens(scores: np.ndarray, peak: float, params: SamplingParams) -> tuple[np.ndarray | None, np.ndarray]:
    """Token ids (None: all) that survive the filters, and their unnormalised probabilities after temperature.

    ``scores`` [vocab] are the logits after ``edited_rows`` and ``peak`` their maximum.
    """
    ids = top_k_ids(scores, params.top_k) if 0 < params.top_k < scores.size else None
    chosen = scores if ids is None else scores[ids]
    with np.errstate(over="ignore"):
        weights = chosen - peak
        weights /= _divisor(params)
        np.exp(weights, out=weights)
    if params.top_p < 1:
        ids, weights = _select(ids, weights, top_p_positions(weights, params.top_p))
    if params.min_p > 0:
        ids, weights = _select(ids, weights, min_p_positions(weights, params.min_p))
    return ids, weights


def _select(ids: np.ndarray | None, weights: np.ndarray, selected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (selected if ids is None else ids[selected]), weights[selected]


def _argmax(scores: np.ndarray, edited: bool = False) -> int:
    """The most likely token. ``edited``: non-finite scores come from the request's own edits, not from the engine."""
    best = int(scores.argmax())
    # argmax returns the first NaN if there is one, so checking one value is enough.
    if not math.isfinite(scores.item(best)):
        if edited:
            raise RequestError(
                f"expected a token that can be sampled, found none (the largest logit is {scores[best]}): allow more "
                "by allowed_token_ids, bad_words, min_tokens and logits_processors"
            )
        raise EngineError(
            f"expected finite logits, found {scores[best]} at token {best}: verify the artifact, or use a wider type"
        )
    return best


def _draw_token(
    scores: np.ndarray, peak: float, params: SamplingParams, random: np.random.Generator, draft_token: DraftToken | None
) -> int:
    ids, weights = surviving_tokens(scores, peak, params)
    position = -1
    if draft_token is not None and draft_token.probabilities is not None:
        position, weights = accepted_or_resampled(ids, weights, draft_token, random)
    if position < 0:
        position = draw(weights, random.random())
    return position if ids is None else int(ids[position])


def block_size(count: int) -> int:
    """Block size for sampling from ``count`` tokens."""
    return count if count <= FEW else 32 if count <= 1024 else 1024


def draw(weights: np.ndarray, uniform: float) -> int:
    """The position at which the cumulative sum of ``weights`` [n] passes ``uniform`` (in [0, 1)) times their total."""
    size = block_size(weights.size)
    if size == weights.size:
        return _position(np.cumsum(weights, dtype=np.float64), uniform)
    starts = np.arange(0, weights.size, size)
    blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    block = _position(blocks, uniform)
    before = 0.0 if block == 0 else float(blocks[block - 1])
    inside = np.cumsum(weights[starts[block] : starts[block] + size], dtype=np.float64)
    share = (uniform * float(blocks[-1]) - before) / float(inside[-1])
    return int(starts[block]) + _position(inside, min(max(share, 0.0), 1.0))


def _position(cumulative: np.ndarray, uniform: float) -> int:
    total = float(cumulative[-1])
    position = int(np.searchsorted(cumulative, uniform * total, side="right"))
    # Rounding may push the target onto the total: take the last position with a positive weight.
    return position if position < cumulative.size else int(np.searchsorted(cumulative, total, side="left"))
