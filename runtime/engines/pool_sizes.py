"""How large the pools of a paged engine are."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.runtime.engines.packed_rows import EXACT


@dataclass(frozen=True)
class PoolSizes:
    """num_blocks KV blocks of block_size tokens, and num_slots recurrent states (0 where the model has none).

    num_packed: slots more for states in 8 bits, ``packed`` ("int8" or "fp8"): no step reads or writes these.
    """

    num_blocks: int
    block_size: int
    num_slots: int
    num_packed: int = 0
    packed: str = EXACT
