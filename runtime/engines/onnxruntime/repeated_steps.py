"""Repeated steps of the same rows with one token each: the arrays that the session reads are advanced in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridge.artifact import names
from hybridge.runtime.engines.onnxruntime.engine_inputs import KvShape
from hybridge.runtime.engines.onnxruntime.paged_feeds import PagedRun
from hybridge.runtime.engines.onnxruntime.paged_pools import ArrayPools
from hybridge.runtime.engines.onnxruntime.paged_session import PagedSession
from hybridge.runtime.engines.packed_inputs import PackedInputs


class RepeatedSteps:
    """The steps that pass the object ``inputs`` again, after one that ``session`` ran as ``run`` alone.

    They write ``logits`` again. ``can_repeat`` must hold, and nothing else may use the session between them.
    """

    def __init__(
        self,
        inputs: PackedInputs,
        run: PagedRun,
        session: PagedSession,
        logits: np.ndarray,
        shapes: Sequence[KvShape],
        pools: ArrayPools,
    ) -> None:
        self._inputs, self._run, self._session, self._logits, self._pools = inputs, run, session, logits, pools
        rows, self._ids = len(run.tokens), session.fed(names.INPUT_IDS)
        # Tokens of the step in the order of the run; the whole array where that is the order of the rows.
        in_order = bool((run.tokens == np.arange(len(inputs.input_ids))).all())
        self._order: np.ndarray | slice = slice(None) if in_order else run.tokens
        # A graph without rotary embeddings reads no positions.
        reads_positions = names.POSITIONS in session.inputs
        self._positions = session.fed(names.POSITIONS) if reads_positions else np.zeros(rows, np.int64)
        # Position of the next token of each row of the run.
        self._next: list[int] = (inputs.positions[run.tokens] + 1).tolist()
        # Arrays of the step that the graph reads as they are, and those of the session.
        direct = {names.SLOT_MAPPING: inputs.slot_mapping, names.SEQ_LENS: inputs.seq_lens}
        self._direct = [(array, session.fed(name)) for name, array in direct.items() if name in session.inputs]
        shapes = self._shapes = [shape for shape in shapes if shape.kv_indices in session.inputs]
        by_name = {shape.kv_indices: shape for shape in shapes}
        self._kv = [shape.by_token(session.fed(name), rows) for name, shape in by_name.items()]
        biases = [session.fed(name) for name in dict.fromkeys(shape.bias for shape in shapes)]
        self._biases = [bias.reshape(-1) for bias in biases]
        room = inputs.block_table.shape[1] * pools.sizes.block_size
        self._width = min((bias.shape[-1] for bias in biases), default=room)
        # Where each row's next token is in a flat bias.
        self._seen = np.arange(rows) * self._width + self._next

    @staticmethod
    def can_repeat(inputs: PackedInputs, run: PagedRun, session: PagedSession, shapes: Sequence[KvShape]) -> bool:
        """Whether the step after ``run`` differs only in numbers that ``repeat`` advances."""
        if run.time != 1 or run.is_ragged or inputs.deferred is not None:
            return False
        if not len(run.tokens) == len(inputs.input_ids) == len(inputs.logits_indices):
            return False
        if shapes and (inputs.slot_mapping < 0).any():
            return False
        computed = [shape for shape in shapes if shape.kv_indices in session.inputs]
        return session.is_repeatable and not any(s.window or s.seen in session.inputs for s in computed)

    def repeat(self, inputs: PackedInputs) -> np.ndarray | None:
        """The logits of the step after the last one; None, and nothing is changed, if ``inputs`` are of another one.

        EngineError when ONNX Runtime fails.
        """
        if inputs is not self._inputs or inputs.positions[self._order].tolist() != self._next:
            return None
        begun = self._begun_blocks()
        if begun is None:
            return None
        if begun:
            self._pools.zero_blocks([block for _, block in begun])
        self._ids[...] = inputs.input_ids[self._order]
        self._positions += 1
        for array, fed in self._direct:
            fed[...] = array[self._order]
        if begun and self._direct:
            self._session.fed(names.BLOCK_TABLE)[...] = inputs.block_table[self._order]
        for kv in self._kv:
            kv[..., 3] += 1
        if begun:
            self._use_blocks(begun)
        for bias in self._biases:
            bias[self._seen] = 0
        self._seen += 1
        self._next = [position + 1 for position in self._next]
        self._session.run_again()
        return self._logits

    def _begun_blocks(self) -> list[tuple[int, int]] | None:
        """Row of the run and block, of those that begin one; None if the arrays have no room for them."""
        if not (self._shapes or self._direct):
            return []
        sizes, table = self._pools.sizes, self._inputs.block_table
        size, width = sizes.block_size, self._width
        begun = [(row, at) for row, at in enumerate(self._next) if not at % size]
        if any([at >= width for _, at in begun]):
            return None
        found = [(row, int(table[self._run.rows[row], at // sizes.block_size])) for row, at in begun]
        return found if all(0 <= block < sizes.num_blocks for _, block in found) else None

    def _use_blocks(self, begun: Sequence[tuple[int, int]]) -> None:
        sizes = self._pools.sizes
        for row, block in begun:
            for kv in self._kv:
                kv[:, row, :, 1], kv[:, row, :, 3] = block, 0
            column = self._next[row] // sizes.block_size
            for shape in self._shapes:
                keys = block * shape.kv_heads + np.arange(shape.kv_heads)[:, None]
                for name, blocks in shape.block_feeds(keys, sizes.num_blocks).items():
                    self._session.fed(name)[row, :, column:] = blocks
