"""The portable engine copies long caches by their new tokens, with the same result."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
import pytest

from hybridge.runtime.engines.onnxruntime.portable import WHOLE_CACHE, PortableEngine
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import VOCAB, Plan
from tests.runtime.onnxruntime.steps import TOLERANCE, relative_error, step_inputs


def test_long_caches_hold_what_short_ones_do(tmp_path: Path) -> None:
    """Ragged rows, an empty one, padding that reaches behind the last position, and a change of form between steps."""
    made = HandMade(Plan(max_seq_len=WHOLE_CACHE + 9))
    engine = PortableEngine(made.write(tmp_path / "artifact"))
    tokens = np.random.default_rng(3).integers(0, VOCAB, (3, 12))
    short, long = engine.allocate_states(3, 16), engine.allocate_states(3, WHOLE_CACHE + 9)
    done = [0, 0, 0]
    for counts in ((7, 0, 3), (1, 5, 0), (1, 1, 1), (3, 2, 4)):
        rows = [tokens[row, past : past + count] for row, (past, count) in enumerate(zip(done, counts, strict=True))]
        found = [engine.step(step_inputs(rows, done), states) for states in (short, long)]
        done = [past + count for past, count in zip(done, counts, strict=True)]
        for row, count in enumerate(counts):
            if count:
                for logits in found:
                    assert relative_error(logits[row], made.logits(tokens[row, : done[row]])[-1]) < TOLERANCE
            for name, buffer in short.buffers.items():
                np.testing.assert_array_equal(buffer.read_row(row, 16), long.buffers[name].read_row(row, 16))
    # The last position: the padding of a row that is full reaches behind it.
    full = long.buffers["past_key_0"].read_row(0, WHOLE_CACHE + 8)
    end = engine.allocate_states(2, WHOLE_CACHE + 9)
    end.buffers["past_key_0"].write_row(0, full)
    engine.step(step_inputs([tokens[0, :1], tokens[1, :6]], [WHOLE_CACHE + 8, 0]), end)
    np.testing.assert_array_equal(end.buffers["past_key_0"].read_row(0, WHOLE_CACHE + 8), full)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of this process")
def test_caches_that_stay_empty_take_no_memory(tmp_path: Path) -> None:
    """Caches for 8 tokens; a system with huge pages would map them all."""
    made = HandMade(Plan("m" + 15 * "a", max_seq_len=1 << 16))
    engine = PortableEngine(made.write(tmp_path / "artifact"))
    warm = engine.allocate_states(1, WHOLE_CACHE + 1)
    engine.step(step_inputs([np.arange(4)], [0]), warm)
    states = engine.allocate_states(1, 1 << 16)
    caches = sum(buffer.past.nbytes for buffer in states.buffers.values())
    states.expect_few_tokens()
    before = resident()
    for past in (0, 1 << 15):
        engine.step(step_inputs([np.arange(4)], [past]), states)
    # One layer's caches at a time are whole, while its attention runs.
    assert resident() - before < caches / 2


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
