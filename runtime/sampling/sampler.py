"""Sampling of the next tokens of one request."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NoReturn

import numpy as np

from hybridge.artifact.errors import RequestError, described
from hybridge.runtime.sampling.edits import NO_EDITS, checked_logits
from hybridge.runtime.sampling.history import AnswerHistory
from hybridge.runtime.sampling.params import SamplingParams
from hybridge.runtime.sampling.random_words import RandomWords
from hybridge.runtime.sampling.rejection import DraftToken
from hybridge.runtime.sampling.token_sampling import DRAFT, SampledToken, TokenSampling, best_of, draw, surviving_tokens


class Sampler:
    """Samples the tokens of one request from its logits; owns its random numbers and its token history.

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
        self._words = None if params.greedy else RandomWords(seed)
        self._history = AnswerHistory(params, prompt, stop_ids, bad_words) if params.edits_logits else None
        # Tokens of the answer, and draft tokens sampled after them.
        self._position = self._drafted = 0

    @property
    def is_random(self) -> bool:
        """Whether tokens are sampled; otherwise the most likely one is taken."""
        return self._words is not None

    @property
    def waits_for_masks(self) -> bool:
        """Whether ``draw`` may wait for a mask that another thread computes."""
        return self._params.allowed_tokens is not None

    @property
    def masks_follow(self) -> bool:
        """As ``TokenSampling.masks_follow`` will say of all that ``draw`` gives, unless a mask fails."""
        params, history = self._params, self._history
        only_masks = history is not None and history.only_allows and params.allowed_tokens is not None
        return only_masks and params.logprobs is None and not params.logits_processors

    def draw(self, vocab: int) -> TokenSampling:
        """How to choose the next token from logits [vocab]; call ``record`` with the token afterwards."""
        if self._history is None:
            return TokenSampling(self._params, self._words, self._position)
        process = self._processed if self._params.logits_processors else None
        try:
            edits = self._history.edits(vocab)
        except RequestError as error:
            # The error ends only this request, when its token is sampled.
            edits, process = NO_EDITS, partial(_failed, error)
        return TokenSampling(self._params, self._words, self._position, edits, process)

    def draw_ahead(self, vocab: int) -> TokenSampling | None:
        """``draw`` with a mask that is still being computed, until ``mask_arrived``; None where it cannot."""
        if self._history is None or not self.masks_follow:
            return None if self.waits_for_masks else self.draw(vocab)
        edits = self._history.coming_edits(vocab)
        return None if edits is None else TokenSampling(self._params, self._words, self._position, edits)

    def mask_arrived(self, ahead: TokenSampling) -> bool:
        """Wait for the mask of ``ahead``, which ``draw_ahead`` gave; False where it failed: ``draw`` says why."""
        if self._history is None or ahead.edits is None or not self.waits_for_masks:
            return True
        return self._history.has_arrived(ahead.edits)

    def samplings(self, vocab: int, draft_tokens: Sequence[int]) -> list[TokenSampling]:
        """How to choose the next token, and those after each of ``draft_tokens``, had these been sampled.

        At least one, and fewer where the rest is unknown or does not matter: after a draft token that cannot be
        sampled, with logits processors, or where the request's ``allowed_tokens`` cannot be copied.
        """
        found = [self.draw(vocab)]
        history = self._history
        if history is not None:
            history = None if found[0].process is not None else history.fork()
            if history is None:
                return found
        for token in draft_tokens:
            before = found[-1]
            edits = None
            if history is not None:
                if before.edits is not None and not before.edits.allows(token):
                    break
                try:
                    history.add(token)
                    edits = history.edits(vocab)
                except RequestError:
                    break  # raised again if the token is sampled
            found.append(before._replace(position=before.position + 1, edits=edits))
        return found

    def sample_draft_token(self, logits: np.ndarray) -> DraftToken:
        """A draft token sampled from a draft model's ``logits`` [vocab] float32 with the request's own settings.

        Uses the request's temperature, filters and random numbers; further calls sample the tokens that follow.
        Penalties and other edits are skipped: they would depend on earlier draft tokens, which are not recorded.
        EngineError as in ``sample``.
        """
        assert self._words is not None, "a greedy sampler samples no draft tokens"
        ids, weights = surviving_tokens(logits, logits[best_of(logits)], self._params)
        position = draw(weights, self._words.at(self._position + self._drafted, DRAFT))
        self._drafted += 1
        if ids is None:
            return DraftToken(position, weights)
        probabilities = np.zeros(logits.size, weights.dtype)
        probabilities[ids] = weights
        return DraftToken(int(ids[position]), probabilities)

    def sample(
        self, logits: np.ndarray, best: int | None = None, draft_token: DraftToken | None = None
    ) -> SampledToken:
        """The next token from ``logits`` [vocab] float32 (unchanged), and its log-probabilities if requested.

        ``best``: the most likely token, if the caller knows it and its logit is finite (``best_tokens``).
        ``draft_token``: a draft token to accept or reject; it does not change the distribution of the result.
        One without probabilities changes nothing at all. EngineError when the logits hold NaN or no finite value;
        RequestError when the request forbids every token or a logits processor fails.
        """
        if self._plain_greedy:
            return best_of(logits) if best is None else best, None
        how = self.draw(logits.size)
        sampled = how.chosen(logits, how.scores(logits), draft_token)
        self.record(sampled[0])
        return sampled

    def record(self, token: int) -> None:
        """Append ``token`` to the answer; RequestError where the request's ``allowed_tokens`` fails."""
        self._position += 1
        self._drafted = 0
        if self._history is not None:
            self._history.add(token)

    def mask_preparation(self) -> Callable[[], object] | None:
        """As ``AnswerHistory.preparation``; to be called once all answers of a step have their tokens."""
        return None if self._history is None else self._history.preparation()

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
        return scores[None].copy()


def _failed(error: RequestError, rows: np.ndarray) -> NoReturn:
    raise error


def best_tokens(logits: np.ndarray) -> list[int | None]:
    """The most likely token of each row of ``logits`` [rows, vocab]; None where it has NaN or no finite value.

    All rows in one call, because a call per row costs more than the comparison for small vocabularies.
    """
    if len(logits) == 1:
        return [best_token(logits[0])]
    best: list[int] = logits.argmax(axis=1).tolist()
    value, is_finite = logits.item, math.isfinite
    return [token if is_finite(value(row, token)) else None for row, token in enumerate(best)]


def best_token(logits: np.ndarray) -> int | None:
    """The most likely token of ``logits`` [vocab]; None where it has NaN or no finite value."""
    best = int(logits.argmax())
    # argmax returns the first NaN if there is one, so checking one value is enough.
    return best if math.isfinite(logits.item(best)) else None
