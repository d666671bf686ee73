"""Changes of logits before the temperature: sparse arrays per row, applied to all rows in a few calls.

The order is that of vLLM: allowed tokens, forbidden tokens, bias, the caller's processors, then the penalties of
repetition (CTRL, Keskar et al. 2019), frequency and presence (OpenAI).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hybridge.artifact.errors import RequestError, described


class LogitEdits(NamedTuple):
    """Changes to the logits of one row. All ids are int64 and unique in their array.

    allowed     uint32 [ceil(vocab / 32)]: bit t % 32 of word t // 32 says whether token t can be sampled; None for all
    forbidden   tokens that cannot be sampled
    biased      tokens with the ``bias`` float32 that is added
    seen        tokens of prompt and answer: logits above 0 are divided by ``repetition``, others multiplied by it
    answered    tokens of the answer, with their ``counts`` float32, from which ``frequency`` times the count and
                ``presence`` are subtracted
    """

    allowed: np.ndarray | None
    forbidden: np.ndarray
    biased: np.ndarray
    bias: np.ndarray
    seen: np.ndarray
    repetition: float
    answered: np.ndarray
    counts: np.ndarray
    frequency: float
    presence: float

    @property
    def is_mask(self) -> bool:
        """Whether there is nothing but ``allowed``."""
        if self.forbidden is self.biased is self.seen is self.answered is _NONE:  # as ``only_allowed`` makes them
            return self.allowed is not None
        others = self.forbidden.size or self.biased.size or self.seen.size or self.answered.size
        return self.allowed is not None and not others

    def allows(self, token: int) -> bool:
        """Whether ``token`` can be sampled."""
        if self.allowed is not None:
            word, bit = divmod(token, 32)
            if word >= self.allowed.size or not int(self.allowed[word]) >> bit & 1:
                return False
        return token not in self.forbidden


_NONE = np.array([], np.int64)
NO_EDITS = LogitEdits(None, _NONE, _NONE, np.array([], np.float32), _NONE, 1.0, _NONE, np.array([], np.float32), 0, 0)


def only_allowed(mask: np.ndarray | None) -> LogitEdits:
    """Edits with nothing but ``mask`` as ``allowed``."""
    return LogitEdits(mask, _NONE, _NONE, NO_EDITS.bias, _NONE, 1.0, _NONE, NO_EDITS.counts, 0, 0)


def edited_rows(
    logits: np.ndarray, edits: Sequence[LogitEdits], between: Callable[[np.ndarray], np.ndarray] | None = None
) -> np.ndarray:
    """``logits`` [n, vocab] float32 with the ``edits`` of each row, as a new array.

    ``between`` maps the rows [n, vocab] after the bias to those that the penalties apply to.
    """
    scores = logits.copy()
    masks = {row: edit.allowed for row, edit in enumerate(edits) if edit.allowed is not None}
    if masks:
        allowed = np.ones(scores.shape, bool)
        allowed[list(masks)] = bits_of(np.stack(list(masks.values())), scores.shape[1])
        scores[~allowed] = -np.inf
    rows, ids = _rows_and_ids([edit.forbidden for edit in edits])
    scores[rows, ids] = -np.inf
    rows, ids = _rows_and_ids([edit.biased for edit in edits])
    scores[rows, ids] += np.concatenate([edit.bias for edit in edits])
    if between is not None:
        scores = between(scores)
    rows, ids = _rows_and_ids([edit.seen for edit in edits])
    values, penalty = scores[rows, ids], np.array([edit.repetition for edit in edits], np.float32)[rows]
    scores[rows, ids] = np.where(values < 0, values * penalty, values / penalty)
    rows, ids = _rows_and_ids([edit.answered for edit in edits])
    penalties = np.array([(edit.frequency, edit.presence) for edit in edits], np.float32)[rows]
    scores[rows, ids] -= penalties[:, 0] * np.concatenate([edit.counts for edit in edits]) + penalties[:, 1]
    return scores


def mask_of(tokens: np.ndarray, vocab: int) -> np.ndarray:
    """``LogitEdits.allowed`` that allows ``tokens`` [n] int64; ids of ``vocab`` and above are ignored."""
    bits = np.zeros(-(-vocab // 32) * 32, bool)
    bits[tokens[tokens < vocab]] = True
    return np.packbits(bits, bitorder="little").view("<u4")


def bits_of(mask: np.ndarray, vocab: int) -> np.ndarray:
    """Whether each token [..., vocab] is allowed by ``mask`` [..., words]."""
    return np.unpackbits(mask.view(np.uint8), axis=-1, count=vocab, bitorder="little").view(bool)


def checked_logits(found: object, vocab: int, name: str) -> np.ndarray:
    """The result of a processor as logits [vocab] float32; RequestError names ``name`` for anything else."""
    try:
        array = np.asarray(found)
    except Exception as error:
        # Lists of different lengths, or a torch tensor that requires grad.
        raise RequestError(f"{name}: expected logits [{vocab}], found no array ({described(error)})") from error
    if array.shape != (vocab,) or array.dtype.kind != "f":
        raise RequestError(
            f"{name}: expected logits [{vocab}] of a floating-point type, found {array.dtype}{list(array.shape)}: "
            "return the logits, also where they were changed in place"
        )
    with np.errstate(over="ignore"):
        array = array.astype(np.float32, copy=False)
    # The largest is NaN where any is.
    worst = int(array.argmax())
    if np.isnan(array[worst]) or array[worst] == np.inf:
        raise RequestError(
            f"{name}: expected logits that are finite or -inf, found {array[worst]} at token {worst}: forbid a token "
            "by -inf, and prefer one by a large number"
        )
    return array


def _rows_and_ids(ids: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Row and token of each id of each row."""
    return np.repeat(np.arange(len(ids)), [each.size for each in ids]), np.concatenate(ids)
