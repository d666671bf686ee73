"""Sampling settings of a step as arrays for the CUDA kernels of ``sampling``, and tokens from the kernels' results."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridge.runtime.sampling import SampledToken, TokenLogprobs, TokenSampling
from hybridge.runtime.sampling.edits import LogitEdits
from hybridge.runtime.sampling.weights import MOST_WEIGHT, scale_of
from hybridge.trt_plugins.kernels.fused.sampling import BEST, LISTED, MOST_LISTED, SAMPLED, edit_type

_WORD = (1 << 64) - 1


class PackedSampling:
    """Settings of a step's rows, followed with ``lists`` by those of the rows' lists of likely tokens.

    settings [problems] and edits [n] of the kernels' types and masks [rows, ceil(vocab / 32)] uint32: the caller's
    memory, which ``fill`` writes to. ``edited``: number of edits in use. ``masked``: rows whose masks have changed.
    """

    def __init__(self, settings: np.ndarray, edits: np.ndarray, masks: np.ndarray, vocab: int, lists: bool) -> None:
        self._settings, self._edits, self._masks, self._vocab = settings, edits, masks, vocab
        self._rows = len(settings) // 2 if lists else len(settings)
        self._lists = lists
        self.edited, self.masked = 0, list[int]()
        # Of ``prepare``, for ``set_masks``: masks by row that differ from those that are there.
        self._changed: list[tuple[int, np.ndarray]] = []
        # The array last written to each mask; masks are never modified, so the same array means the same bits.
        self._known: list[np.ndarray | None] = [None] * self._rows
        # The last settings filled in; None where they cannot be reused when they are equal.
        self._filled: object = None
        self._chosen = frozenset[int]()

    def fill(self, samplings: Mapping[int, TokenSampling]) -> frozenset[int]:
        """Write the settings; returns the rows of ``samplings`` for the kernels. Others get the most likely token.

        A row with logits processors, or with more edits than there is room for, is left to the host.
        """
        chosen = self.prepare(samplings)
        self.set_masks()
        return chosen

    def prepare(self, samplings: Mapping[int, TokenSampling]) -> frozenset[int]:
        """``fill`` without the masks, which need not be computed yet: ``set_masks`` writes them."""
        table, self.edited, self.masked, self._changed = self._settings, 0, [], []
        chosen_by = [(how.params, how.words, how.process, how.edits is None) for how in samplings.values()]
        masks = [(row, how.edits) for row, how in samplings.items() if how.edits is not None]
        filled = (list(samplings), chosen_by) if all(edits.is_mask for _, edits in masks) else None
        if filled is not None and self._filled == filled:
            # Only the positions and the masks have changed.
            table["position"][list(samplings)] = [how.position for how in samplings.values()]
            for row, edits in masks:
                self._change(row, edits.allowed)
            return self._chosen
        self._filled = filled
        table[...] = 0
        table["row"] = np.arange(len(table)) % self._rows
        table["kind"][: self._rows] = BEST
        chosen = [row for row, how in samplings.items() if how.process is None and self._edit(row, how.edits)]
        for row in chosen:
            how = samplings[row]
            if how.words is not None:
                self._sample(table[row], how)
            if how.params.logprobs is not None and self._lists:
                listed = table[self._rows + row]
                listed["kind"], listed["scale"], listed["top_p"] = LISTED, 1, 1
                listed["top_k"] = min(max(1, how.params.logprobs), MOST_LISTED, self._vocab)
        self._chosen = frozenset(chosen)
        return self._chosen

    def forget(self) -> None:
        """The arrays were overwritten: the next ``fill`` writes everything."""
        self._known = [None] * self._rows
        self._filled = None

    def sampled(
        self, samplings: Mapping[int, TokenSampling], results: np.ndarray, tokens: np.ndarray, logits: np.ndarray
    ) -> dict[int, SampledToken]:
        """The kernels' tokens by row of ``samplings``, which must be rows that ``fill`` returned.

        Rows whose logits are not finite or that allow no token are left out: the host reports the error. results
        [problems]: of the kernels' type. tokens, logits [problems, MOST_LISTED]: the lists.
        """
        found: dict[int, SampledToken] = {}
        every: list[int] = results["token"].tolist()
        for row, how in samplings.items():
            token, count = every[row], how.params.logprobs
            if token < 0:
                continue
            if count is None:
                found[row] = token, None
                continue
            place = self._rows + row
            of_list = results[place]
            if not self._lists or of_list["listed"] < min(count, self._vocab):
                continue
            normaliser = float(of_list["peak"]) + float(np.log(float(of_list["total"]) / MOST_WEIGHT))
            listed = min(count, self._vocab)
            top, top_logits = tokens[place, :listed].tolist(), logits[place, :listed].tolist()
            found[row] = token, TokenLogprobs.of(token, float(results["logit"][row]), normaliser, top, top_logits)
        return found

    def _sample(self, setting: np.void, how: TokenSampling) -> None:
        assert how.words is not None
        params, key = how.params, how.words.key
        setting["kind"], setting["scale"], setting["position"] = SAMPLED, scale_of(params.temperature), how.position
        setting["key_low"], setting["key_high"] = key & _WORD, key >> 64
        setting["top_p"], setting["min_p"] = params.top_p, params.min_p
        setting["top_k"] = params.top_k if params.top_k < self._vocab else 0

    def _edit(self, row: int, edits: LogitEdits | None) -> bool:
        """Write the edits of a row; False where there is no room for them."""
        if edits is None:
            return True
        merged = merged_edits(edits)
        begin, end = self.edited, self.edited + len(merged)
        if end > len(self._edits):
            return False
        self._edits[begin:end], self.edited = merged, end
        setting = self._settings[row]
        setting["edits_begin"], setting["edits_end"] = begin, end
        if edits.allowed is not None:
            setting["masked"] = 1
            self._change(row, edits.allowed)
        return True

    def _change(self, row: int, mask: np.ndarray | None) -> None:
        if mask is not None and self._known[row] is not mask:
            self._changed.append((row, mask))

    def set_masks(self) -> None:
        """Write the masks that differ from those that are there."""
        found, self._changed = self._changed, []
        for row, mask in found:
            self._known[row] = mask
        rows = [row for row, _ in found]
        if not rows:
            return
        if rows == list(range(rows[0], rows[0] + len(rows))):
            np.concatenate([mask for _, mask in found], out=self._masks[rows[0] : rows[-1] + 1].reshape(-1))
        else:
            for row, mask in found:
                self._masks[row] = mask
        self.masked = rows


def merged_edits(edits: LogitEdits) -> np.ndarray:
    """``edits`` as records [n] of the kernels' type, one per token, by ascending token."""
    if edits.is_mask:
        return np.zeros(0, edit_type())
    tokens = np.unique(np.concatenate((edits.forbidden, edits.biased, edits.seen, edits.answered)))
    found = np.zeros(len(tokens), edit_type())
    found["token"], found["factor"] = tokens, 1
    found["bias"][np.searchsorted(tokens, edits.biased)] = edits.bias
    found["bias"][np.searchsorted(tokens, edits.forbidden)] = -np.inf
    found["factor"][np.searchsorted(tokens, edits.seen)] = edits.repetition
    minus = np.float32(edits.frequency) * edits.counts + np.float32(edits.presence)
    found["minus"][np.searchsorted(tokens, edits.answered)] = minus
    return found
