"""Several draft tokens in one call of a head, against one call for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.runtime.engines.hidden_rows import ArrayRows
from hybridge.runtime.engines.kv_slots import kv_slots
from hybridge.runtime.engines.mtp_head import HeadInputs
from hybridge.runtime.engines.onnxruntime.mtp_head import MtpHeadEngine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.torch.hidden_states import TorchRows
from hybridge.runtime.engines.torch.mtp_head import TorchMtpHead
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.serving.draft_rows import DraftedSequence, DraftRow, draft_inputs
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample

BLOCK, ROWS = 16, 3
# Tokens of each row, and the position of the first, at which the head begins; the first two end shortly before a block.
COUNTS, ORIGINS = (14, 15, 3), (0, 5, 2)
PATTERNS = {"qwen3_next": "", "nemotron_h": "*-", "nemotron_h without keys and values": "-"}


def with_head(artifacts: ArtifactCache, family: str) -> Path:
    """An artifact with a head of ``family``."""
    options = {"mtp_pattern": PATTERNS[family], "layout": "paged", "max_seq_len": 64}
    return artifacts.get(family.split()[0], "float32", **options).folder


def head_inputs(first: int, further: Sequence[int], paged: bool, vocab: int) -> HeadInputs:
    """A step of three rows over the hidden states from place ``first`` on, with the blocks that all tokens need."""
    random, free = np.random.default_rng(3), list(range(7, -1, -1))
    rows = []
    for count, origin, more in zip(COUNTS, ORIGINS, further, strict=True):
        blocks = [free.pop() for _ in range(-(-(count + more) // BLOCK))] if paged else []
        ids = random.integers(0, vocab, count).tolist()
        rows.append(DraftRow(DraftedSequence([], blocks, origin=origin), ids, origin, -1))
    return HeadInputs(
        **vars(draft_inputs(rows, BLOCK)),
        hidden_slots=first + np.arange(sum(COUNTS)),
        is_own=np.zeros(sum(COUNTS), np.int32),
        own_slots=np.array([2, 1, 3]),
        further=np.array(further, np.int32),
    )


class Tried:
    """A head in poisoned pools over random hidden states; what it said, and what it left behind."""

    def __init__(self, head: TorchMtpHead, hidden: np.ndarray) -> None:
        self.head = head
        self.rows = TorchRows(head.device, ROWS, len(hidden), hidden.shape[1], head.config.dtype)
        self.rows.tensor[self.rows.first :][: len(hidden)] = torch.from_numpy(hidden).to(self.rows.tensor)
        head.allocate_pools(PoolSizes(8, BLOCK, 0))
        head.fill_pools(np.nan)
        head.read_from(self.rows)

    def left(self) -> list[np.ndarray]:
        """Its own hidden states, and its pools."""
        return [self.rows.read([1, 2, 3]), *(self.head.read_pool(s.name) for s in self.head.config.bindings.states)]

    def inputs(self, further: Sequence[int]) -> HeadInputs:
        return head_inputs(self.rows.first, further, bool(self.head.config.kv_layers), self.head.config.vocab_size)

    def one_by_one(self, further: Sequence[int]) -> list[list[int]]:
        """Every token comes to the host and is given to the step of the next one, written out here."""
        inputs = self.inputs(further)
        none = np.zeros(ROWS, np.int32)
        found = self.head.run(HeadInputs(**{**vars(inputs), "further": none}))
        for index in range(max(further)):
            rows = [row for row in range(ROWS) if further[row] > index]
            slots = []
            for row in rows:
                block, offset = divmod(COUNTS[row] + index, BLOCK)
                paged = self.head.config.kv_layers
                slots.append(inputs.block_table[row, block] * BLOCK + offset if paged else -1)
            counts, origins = np.array(COUNTS)[rows], np.array(ORIGINS)[rows]
            bounds, places = np.arange(len(rows) + 1, dtype=np.int32), inputs.own_slots[rows]
            step = HeadInputs(
                np.array([found[row][-1] for row in rows]), origins + counts + index, bounds,
                (counts + index + 1).astype(np.int32), inputs.block_table[rows],
                np.array(slots, np.int32), np.full(len(rows), -1, np.int32), bounds[:-1], hidden_slots=places,
                is_own=np.ones(len(rows), np.int32), own_slots=places, further=none[: len(rows)],
            )  # fmt: skip
            for row, tokens in zip(rows, self.head.run(step), strict=True):
                found[row] += tokens
        return found


def random_hidden(width: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((sum(COUNTS), width)).astype(np.float32)


@pytest.mark.parametrize("family", sample(PATTERNS, on_push=("qwen3_next", "nemotron_h")))
def test_what_one_call_gives(family: str, artifacts: ArtifactCache) -> None:
    """The same tokens, hidden states, keys and values bit for bit, also across blocks and of rows that want fewer."""
    folder = with_head(artifacts, family)
    model = TorchPagedEngine(folder, "cpu")
    head, portable = TorchMtpHead(folder, model), MtpHeadEngine(folder)
    hidden = random_hidden(head.config.hidden_size)
    for further in ((4, 4, 4), (5, 0, 2), (0, 1, 7), (0, 0, 0)):
        tried = Tried(head, hidden)
        found, left = tried.head.run(tried.inputs(further)), tried.left()
        again = Tried(head, hidden)
        assert found == again.one_by_one(further) and [len(tokens) - 1 for tokens in found] == list(further)
        for one, other in zip(left, again.left(), strict=True):
            np.testing.assert_array_equal(one, other)
        assert np.isfinite(left[0]).all()
        rows = model_rows(portable, hidden)
        assert portable.run(head_inputs(rows, further, bool(head.config.kv_layers), head.config.vocab_size)) == found


def model_rows(head: MtpHeadEngine, hidden: np.ndarray) -> int:
    """Give ``head`` the hidden states; their first place."""
    rows = ArrayRows(ROWS, len(hidden), hidden.shape[1])
    rows.of_step[...] = hidden
    head.allocate_pools(PoolSizes(8, BLOCK, 0))
    head.fill_pools(np.nan)
    head.read_from(rows)
    return rows.first


def test_tokens_end_where_nothing_is_finite(artifacts: ArtifactCache) -> None:
    """A row of hidden states that are not numbers proposes nothing, and the others what they do without it."""
    folder = with_head(artifacts, "qwen3_next")
    model = TorchPagedEngine(folder, "cpu")
    head, portable = TorchMtpHead(folder, model), MtpHeadEngine(folder)
    hidden = random_hidden(head.config.hidden_size)
    tried = Tried(head, hidden)
    whole = head.run(tried.inputs((3, 3, 3)))
    hidden[COUNTS[0]] = np.nan
    tried = Tried(head, hidden)
    assert head.run(tried.inputs((3, 3, 3))) == [whole[0], [], whole[2]]
    rows = model_rows(portable, hidden)
    assert portable.run(head_inputs(rows, (3, 3, 3), True, head.config.vocab_size)) == [whole[0], [], whole[2]]


def test_places_of_keys_and_values() -> None:
    table = np.array([[4, 2, -1], [0, -1, -1]], np.int32)
    rows, indices = np.array([0, 0, 0, 1, 1, 0, 0]), np.array([0, 15, 16, 3, 16, 33, 48])
    assert kv_slots(table, rows, indices, BLOCK).tolist() == [64, 79, 32, 3, -1, -1, -1]
