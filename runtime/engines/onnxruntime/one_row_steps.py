"""Steps of a single row with as many tokens as one before: the arrays that the session reads are changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridge.artifact import names
from hybridge.runtime.engines.onnxruntime.engine_inputs import KvShape
from hybridge.runtime.engines.onnxruntime.paged_feeds import PagedRun
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.paged_session import PagedSession
from hybridge.runtime.engines.packed_inputs import PackedInputs

if TYPE_CHECKING:
    from hybridge.runtime.engines.onnxruntime.deferred_rows import DeferredBatch, DeferredStates

# Maximum tokens of such a row: more take so long that their preparation does not count.
MOST_TOKENS = 16


class OneRowSteps:
    """Steps like that of ``inputs``, which ``session`` ran; they write ``logits`` [tokens, vocab] again.

    ``can_follow`` must hold. The row may be another one with the same slot, at the same position or a later one. A run
    of the session for anything else ends this: then nothing runs. deferred: the states that the step left
    unchanged, and their batch.
    """

    def __init__(
        self,
        inputs: PackedInputs,
        session: PagedSession,
        logits: np.ndarray,
        shapes: Sequence[KvShape],
        pools: ArrayPools,
        deferred: tuple[DeferredStates, DeferredBatch] | None,
    ) -> None:
        self._session, self._logits, self._pools, self._deferred = session, logits, pools, deferred
        self._tokens, self._slot = len(inputs.input_ids), inputs.state_indices.item(0)
        self._logits_indices = inputs.logits_indices.tolist()
        self._shapes, self._runs = shapes, session.runs
        self._inputs, self._block_size = inputs, pools.sizes.block_size
        self._start: int = inputs.positions.item(0)
        used = -(-(self._start + self._tokens) // self._block_size) if shapes else 0
        self._blocks: list[int] = inputs.block_table[0, :used].tolist()
        self._ids = session.fed(names.INPUT_IDS).data
        # A graph without rotary embeddings reads no positions.
        reads_positions = names.POSITIONS in session.inputs
        self._positions = session.fed(names.POSITIONS).data if reads_positions else None
        reads_table = names.BLOCK_TABLE in session.inputs
        self._slots = session.fed(names.SLOT_MAPPING).data if reads_table else None
        self._lengths = session.fed(names.SEQ_LENS).data if reads_table else None
        # Those of which the graph reads what the engine computes.
        self._computed = [shape for shape in shapes if shape.kv_indices in session.inputs]
        by_name = {shape.kv_indices: shape for shape in self._computed}
        self._kv = [shape.by_token(session.fed(name), self._tokens) for name, shape in by_name.items()]
        # What a token that follows in its block changes: its offset there, and the numbers of tokens that are seen.
        self._offsets = [kv[..., 3] for kv in self._kv]
        read = session.inputs
        self._ends = [session.fed(name).data for name in {s.seen for s in shapes} if name in read]
        self._lasts = [session.fed(name).data for name in {s.last_seen for s in shapes} if name in read]
        self._set_biases()

    @staticmethod
    def can_follow(inputs: PackedInputs, run: PagedRun, session: PagedSession, shapes: Sequence[KvShape]) -> bool:
        """Whether a step of as many tokens after that of ``run`` may differ only in what ``step`` changes."""
        tokens = len(inputs.input_ids)
        if len(inputs.seq_lens) != 1 or run.time != tokens or tokens > MOST_TOKENS or inputs.checkpoints is not None:
            return False
        if len(inputs.logits_indices) != tokens or not session.is_repeatable or any(shape.window for shape in shapes):
            return False
        return not shapes or min(inputs.slot_mapping.tolist()) >= 0

    @staticmethod
    def key(inputs: PackedInputs) -> tuple[int, bool]:
        """What tells apart the steps of one row that need arrays of their own."""
        return len(inputs.input_ids), inputs.deferred is not None and bool(inputs.deferred.item(0))

    def step(self, inputs: PackedInputs) -> np.ndarray | None:
        """The logits of the step of ``inputs``, of one row and the same ``key``; None, and nothing is changed, if it is
        of another kind. EngineError when ONNX Runtime fails.
        """
        if not self._set(inputs):
            return None
        self._inputs = inputs
        self._session.run_again()
        if self._deferred is not None:
            states, batch = self._deferred
            states.ran(batch)
        return self._logits

    def repeat(self, inputs: PackedInputs) -> np.ndarray | None:
        """The logits of the token that follows that of the last step in its block, if ``inputs`` are its object again;
        None, and nothing is changed, otherwise. EngineError when ONNX Runtime fails.
        """
        start = inputs.positions.item(0)
        if inputs is not self._inputs or start != self._start + 1 or not start % self._block_size:
            return None
        if self._tokens != 1 or self._deferred is not None or self._session.runs != self._runs:
            return None
        self._ids[0] = inputs.input_ids.item(0)
        if self._positions is not None:
            self._positions[0] = start
        if self._slots is not None and self._lengths is not None:
            self._slots[0], self._lengths[0] = inputs.slot_mapping.item(0), start + 1
        for offsets in self._offsets:
            offsets[...] = start % self._block_size
        for ends in self._ends:
            ends[0] = start + 1
        for lasts in self._lasts:
            lasts[0] = start
        for bias in self._biases:
            bias[start] = 0
        self._start = start
        self._session.run_again()
        return self._logits

    def _set(self, inputs: PackedInputs) -> bool:
        """Set all arrays for ``inputs``; False, and nothing is changed, if they are of another kind of step."""
        start, blocks = self._start_of(inputs), self._blocks_of(inputs)
        if start is None or blocks is None:
            return False
        for index, token in enumerate(inputs.input_ids.tolist()):
            self._ids[index] = token
        if self._positions is not None:
            for index in range(self._tokens):
                self._positions[index] = start + index
        if self._shapes:
            self._set_positions(start, blocks)
        self._start = start
        return True

    def _set_biases(self) -> None:
        """Views of the biases, which other columns may have replaced."""
        biases = {shape.bias for shape in self._shapes if shape.bias in self._session.inputs}
        self._biases = [self._session.fed(name).reshape(-1).data for name in biases]

    def _start_of(self, inputs: PackedInputs) -> int | None:
        """The row's first position; None if the arrays do not allow this step, or others than its own are bound."""
        if self._session.runs != self._runs or inputs.checkpoints is not None:
            return None
        if self._deferred is not None and not self._deferred[0].keeps(self._deferred[1]):
            return None
        start: int = inputs.positions.item(0)
        if start < self._start or inputs.state_indices.item(0) != self._slot:
            return None
        end = start + self._tokens
        if inputs.seq_lens.item(0) != end or inputs.logits_indices.tolist() != self._logits_indices:
            return None
        return start if inputs.positions.tolist() == list(range(start, end)) else None

    def _blocks_of(self, inputs: PackedInputs) -> list[int] | None:
        """The row's blocks up to its last token; None if they or the tokens' slots in them are not as expected."""
        if not self._shapes:
            return self._blocks
        sizes, start = self._pools.sizes, inputs.positions.item(0)
        size, end = sizes.block_size, start + self._tokens
        blocks: list[int] = inputs.block_table[0, : -(-end // size)].tolist()
        if blocks != self._blocks and not all(0 <= block < sizes.num_blocks for block in blocks):
            return None
        if len(blocks) * size < end:
            return None
        slots = [blocks[at // size] * size + at % size for at in range(start, end)]
        return blocks if inputs.slot_mapping.tolist() == slots else None

    def _set_positions(self, start: int, blocks: list[int]) -> None:
        """Set where the tokens from position ``start`` on are written, and what they see."""
        size = self._pools.sizes.block_size
        end = start + self._tokens
        # Blocks that begin with one of the tokens: what follows in them must be cleared.
        begun = [blocks[at // size] for at in range(start, end) if not at % size and at + size > end]
        if begun:
            self._pools.zero_blocks(begun)
        positions = [divmod(at, size) for at in range(start, end)]
        if self._slots is not None and self._lengths is not None:
            for index, (column, offset) in enumerate(positions):
                self._slots[index] = blocks[column] * size + offset
            self._lengths[0] = end
        for kv in self._kv:
            for index, (column, offset) in enumerate(positions):
                kv[:, index, :, 1], kv[:, index, :, 3] = blocks[column], offset
        if blocks != self._blocks:
            self._set_columns(blocks)
        for shape in self._computed:
            if shape.seen in self._session.inputs:
                self._session.fed(shape.seen)[0] = end
            if shape.last_seen in self._session.inputs:
                self._session.fed(shape.last_seen)[0] = end - 1
            if shape.bias in self._session.inputs:
                bias = self._session.fed(shape.bias)[0, 0]
                for index in range(self._tokens):
                    bias[index, self._start + index : start + index + 1] = 0

    def _set_columns(self, blocks: list[int]) -> None:
        """Set the blocks that the row sees, in wider arrays if there are more than before."""
        sizes, more = self._pools.sizes, len(blocks) - len(self._blocks)
        self._blocks, columns = blocks, np.array(blocks, np.int64)
        if self._slots is not None:
            self._session.feed(names.BLOCK_TABLE, columns.astype(np.int32)[None])
        for shape in self._computed:
            keys = (columns * shape.kv_heads + np.arange(shape.kv_heads)[:, None])[None]
            for name, rows in shape.block_feeds(keys, sizes.num_blocks).items():
                if name in self._session.inputs:
                    self._session.feed(name, rows)
            if more and shape.bias in self._session.inputs:
                unseen = ((0, 0), (0, 0), (0, 0), (0, more * sizes.block_size))
                before = self._session.fed(shape.bias)
                self._session.feed(shape.bias, np.pad(before, unseen, constant_values=-np.inf))
        self._set_biases()
