"""How a token is chosen from its logits, and sampling of a single row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.sampling.edits import LogitEdits, edited_rows
from hybridge.runtime.sampling.filters import min_p_positions, top_k_ids, top_p_positions
from hybridge.runtime.sampling.logprobs import TokenLogprobs, token_logprobs
from hybridge.runtime.sampling.params import SamplingParams
from hybridge.runtime.sampling.random_words import RandomWords
from hybridge.runtime.sampling.rejection import DraftToken, accepted_or_resampled
from hybridge.runtime.sampling.weights import block_sums, exponentials, scale_of, target_of, whole_weights

SampledToken = tuple[int, TokenLogprobs | None]
# Up to this many tokens are summed as one block; for more, sampling first chooses a block, then a token in it.
FEW = 64
# Which random word of a position (``RandomWords.at``) serves which purpose.
DRAW, ACCEPT, DRAFT = 0, 1, 2


class TokenSampling(NamedTuple):
    """Everything that decides which token is chosen from its logits, so that all engines choose the same one.

    params: temperature and filters, and whether log-probabilities are requested. words: random numbers; None takes
    the most likely token. position: number of answer tokens before it. edits: changes to the logits, or None.
    process: the caller's logits processors, applied to rows [1, vocab] after the bias; or None.
    """

    params: SamplingParams
    words: RandomWords | None
    position: int
    edits: LogitEdits | None = None
    process: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def filters(self) -> tuple[int, float, float]:
        """(top_k, top_p, min_p)."""
        return self.params.top_k, self.params.top_p, self.params.min_p

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """``logits`` [vocab] after all edits. EngineError if they are not finite, RequestError if ``process`` fails."""
        if self.edits is None:
            return logits
        best_of(logits)
        return edited_rows(logits[None], [self.edits], self.process)[0]

    def following(self) -> TokenSampling | None:
        """How the token after this one is chosen, whatever this one is; None where that depends on it, or the host may
        have to look at logits."""
        if self.edits is not None or self.process is not None or self.params.logprobs is not None:
            return None
        # A third of the time of _replace, for every row of a step.
        return TokenSampling(self.params, self.words, self.position + 1)

    @property
    def masks_follow(self) -> bool:
        """Whether all that the next token needs of this one is its mask, and the host has no need of logits."""
        is_mask = self.edits is not None and self.edits.is_mask
        return is_mask and self.params.allowed_tokens is not None and not self._reads_logits

    @property
    def _reads_logits(self) -> bool:
        return self.process is not None or self.params.logprobs is not None

    def chosen(self, logits: np.ndarray, scores: np.ndarray, draft_token: DraftToken | None = None) -> SampledToken:
        """The token chosen from ``scores`` (``logits`` [vocab] after edits) and its log-probabilities if requested.

        Errors and ``draft_token`` as in ``Sampler.sample``.
        """
        best = best_of(scores, self.edits is not None)
        return self.described(logits, best if self.words is None else self._sampled(scores, scores[best], draft_token))

    def described(self, logits: np.ndarray, token: int) -> SampledToken:
        """``token``, which was chosen from ``logits`` [vocab], and its log-probabilities if requested."""
        count = self.params.logprobs
        return token, None if count is None else token_logprobs(logits, token, count)

    def _sampled(self, scores: np.ndarray, peak: np.float32, draft_token: DraftToken | None) -> int:
        assert self.words is not None
        ids, weights = surviving_tokens(scores, peak, self.params)
        position = -1
        if draft_token is not None and draft_token.probabilities is not None:
            uniform = self.words.uniform(self.position, ACCEPT)
            position, weights = accepted_or_resampled(ids, weights, draft_token, uniform)
        if position < 0:
            position = draw(weights, self.words.at(self.position, DRAW))
        return position if ids is None else int(ids[position])


NO_SAMPLING: Mapping[int, TokenSampling] = MappingProxyType({})
# For a step whose tokens are chosen after its launch (``PagedEngine.choose``); compared by identity.
CHOSEN_LATER: Mapping[int, TokenSampling] = MappingProxyType({})


def surviving_tokens(
    scores: np.ndarray, peak: float | np.float32, params: SamplingParams
) -> tuple[np.ndarray | None, np.ndarray]:
    """Token ids (None: all) that survive the filters, and their unnormalised probabilities after temperature.

    ``scores`` [vocab] are the logits after ``edited_rows`` and ``peak`` their maximum.
    """
    ids = top_k_ids(scores, params.top_k) if 0 < params.top_k < scores.size else None
    weights = exponentials(scores if ids is None else scores[ids], np.float32(peak), scale_of(params.temperature))
    if params.top_p < 1:
        ids, weights = _select(ids, weights, top_p_positions(weights, params.top_p))
    if params.min_p > 0:
        ids, weights = _select(ids, weights, min_p_positions(weights, params.min_p))
    return ids, weights


def _select(ids: np.ndarray | None, weights: np.ndarray, selected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (selected if ids is None else ids[selected]), weights[selected]


def best_of(scores: np.ndarray, edited: bool = False) -> int:
    """The most likely token. ``edited``: non-finite scores come from the request's own edits, not from the engine.

    EngineError (RequestError if edited) when the largest score is not finite or one is NaN.
    """
    best = int(scores.argmax())
    # argmax returns the first NaN if there is one, so checking one value is enough.
    if not math.isfinite(scores.item(best)):
        if edited:
            raise no_token_left(scores[best])
        raise EngineError(
            f"expected finite logits, found {scores[best]} at token {best}: verify the artifact, or use a wider type"
        )
    return best


def no_token_left(largest: float | np.float32) -> RequestError:
    """The error of a request whose own edits leave no token to sample; ``largest``: the largest logit after them."""
    return RequestError(
        f"expected a token that can be sampled, found none (the largest logit is {largest}): allow more by "
        "allowed_token_ids, bad_words, min_tokens and logits_processors"
    )


def block_size(count: int) -> int:
    """Block size for sampling from ``count`` tokens."""
    return count if count <= FEW else 32 if count <= 1024 else 1024


def draw(weights: np.ndarray, word: int) -> int:
    """The position in ``weights`` [n] float32, at most 1 each, sampled with the random 64-bit ``word``."""
    size = block_size(weights.size)
    if size == weights.size:
        running = np.cumsum(whole_weights(weights))
        return int(np.searchsorted(running, target_of(word, int(running[-1])), side="right"))
    blocks = np.cumsum(block_sums(weights, size))
    target = target_of(word, int(blocks[-1]))
    block = int(np.searchsorted(blocks, target, side="right"))
    before = int(blocks[block - 1]) if block else 0
    inside = np.cumsum(whole_weights(weights[block * size : (block + 1) * size]))
    return block * size + int(np.searchsorted(inside, target - before, side="right"))
