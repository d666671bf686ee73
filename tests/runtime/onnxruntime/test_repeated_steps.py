"""Steps that pass the same object again give what steps of their own arrays give, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.onnxruntime.paged_session import PagedSession
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from tests.support.artifacts import ArtifactCache

SIZES = PoolSizes(num_blocks=24, block_size=4, num_slots=5)
# The rows are not in the order of their slots, and begin blocks at different steps.
SLOTS, PAST, STEPS = [3, 1, 2], np.array([2, 7, 5]), 9
TABLE = np.random.default_rng(0).permutation(24).reshape(3, 8).astype(np.int32)


def decoding(step: int, tokens: np.ndarray) -> PackedInputs:
    """Step number ``step``, of tokens [rows]."""
    rows, positions = len(tokens), PAST + step
    blocks, offsets = np.divmod(positions, SIZES.block_size)
    bounds = np.arange(rows + 1, dtype=np.int32)
    slots = (TABLE[np.arange(rows), blocks] * SIZES.block_size + offsets).astype(np.int32)
    columns = TABLE[:, : blocks.max() + 3]
    lengths, states = (positions + 1).astype(np.int32), np.array(SLOTS, np.int32)
    return PackedInputs(tokens, positions, bounds, lengths, columns, slots, states, bounds[:-1])


def begun(engine: OnnxRuntimePagedEngine, vocab: int) -> None:
    """Pools whose unused parts are NaN, with the first tokens of each row."""
    engine.allocate_pools(SIZES)
    engine.fill_pools(np.nan)
    engine.zero_slots(SLOTS)
    for row, past in enumerate(PAST.tolist()):
        tokens, positions = np.arange(past) * 7 % vocab, np.arange(past)
        blocks, offsets = np.divmod(positions, SIZES.block_size)
        slots = (TABLE[row, blocks] * SIZES.block_size + offsets).astype(np.int32)
        ends, lengths = np.array([0, past], np.int32), np.array([past], np.int32)
        state, last = np.array(SLOTS[row : row + 1], np.int32), np.array([past - 1], np.int32)
        engine.step(PackedInputs(tokens, positions, ends, lengths, TABLE[row : row + 1], slots, state, last))


@pytest.mark.parametrize("family", ["nemotron_h", "llama", pytest.param("kimi_linear", marks=pytest.mark.slow)])
def test_repeated_steps_give_what_steps_of_their_own_give(
    artifacts: ArtifactCache, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = artifacts.get(family, "float32", layout="paged", max_batch_size=6)
    vocab, again = exported.config.vocab_size, []
    run_again = PagedSession.run_again
    monkeypatch.setattr(PagedSession, "run_again", lambda session: (again.append(1), run_again(session)))
    tokens = np.random.default_rng(1).integers(0, vocab, (STEPS, 3))
    engine = OnnxRuntimePagedEngine(exported.folder)
    begun(engine, vocab)
    expected = [engine.step(decoding(step, tokens[step])).copy() for step in range(STEPS)]
    pools = {spec.name: engine.read_pool(spec.name).copy() for spec in engine.pool_specs}
    assert not again
    begun(engine, vocab)
    repeated = decoding(0, tokens[0].copy())
    for step in range(STEPS):
        now = decoding(step, tokens[step])
        for name in ("input_ids", "positions", "seq_lens", "slot_mapping"):
            getattr(repeated, name)[...] = getattr(now, name)
        repeated.block_table[...] = now.block_table[:, : repeated.block_table.shape[1]]
        np.testing.assert_array_equal(engine.step(repeated), expected[step])
    # Without the library, the longest row needs more blocks of its session at two of the steps.
    repeats = STEPS - (1 if cpu_library().path else 3)
    assert len(again) == repeats
    for name, pool in pools.items():
        np.testing.assert_array_equal(engine.read_pool(name), pool)
    # The same object with the same position is a step of its own.
    engine.step(repeated)
    assert len(again) == repeats
