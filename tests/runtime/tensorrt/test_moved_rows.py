"""Rows of the dense engine that join, are copied, move to the host, and come back."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.runtime.engines.dense_as_paged import DenseAsPaged
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.tensorrt.states import DeviceState
from tests.runtime.onnxruntime.hand_made_plan import VOCAB
from tests.runtime.onnxruntime.steps import TOLERANCE, relative_error
from tests.runtime.packed_steps import Row, packed_step
from tests.runtime.tensorrt.built import SMALL, BuiltArtifacts, open_engine


def test_sequences_join_fork_and_come_back_from_the_host(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(SMALL)
    opened = open_engine(artifact, monkeypatch)
    rng = np.random.default_rng(11)
    tokens = [rng.integers(0, VOCAB, 24) for _ in range(3)]
    served = DenseAsPaged(opened.engine)
    served.allocate_pools(PoolSizes(4, 48, 4))
    served.zero_slots(range(4))
    first, second, copy, restored = (Row(place, place, []) for place in range(4))
    advance(served, [first, second], [tokens[0][:9], tokens[1][:4]])
    served.copy_blocks([1], [2])
    served.copy_slots([1], [2])
    copy.tokens += second.tokens
    for step in range(5):
        new = [tokens[0][9 + step : 10 + step], tokens[1][4 + step : 5 + step], tokens[2][step : step + 1]]
        logits = advance(served, [first, second, copy], new)
        for row, found in zip((first, second, copy), logits, strict=True):
            assert relative_error(found, artifact.made.logits(np.array(row.tokens))[-1]) < TOLERANCE
    snapshot = served.swap_out([1], [1])
    for step in range(5, 12):
        if step == 8:
            served.swap_in(snapshot, [3], [3])
            restored.tokens += tokens[1][:9].tolist()
            advance(served, [restored], [tokens[1][9:12]])
        rows = [second, restored][: 1 + (step >= 8)]
        for row, found in zip(rows, advance(served, rows, [tokens[1][4 + step : 5 + step]] * len(rows)), strict=True):
            assert relative_error(found, artifact.made.logits(np.array(row.tokens))[-1]) < TOLERANCE
    opened.close()


def test_rows_move_between_sets_without_the_host(
    built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = built_artifacts.get(SMALL)
    opened = open_engine(artifact, monkeypatch)
    tokens = np.random.default_rng(12).integers(0, VOCAB, 9)
    served = DenseAsPaged(opened.engine)
    served.allocate_pools(PoolSizes(2, 48, 2))
    served.zero_slots(range(2))
    first, second = Row(0, 0, []), Row(1, 1, [])
    advance(served, [first], [tokens[:6]])
    monkeypatch.setattr(DeviceState, "read_row", None)
    monkeypatch.setattr(DeviceState, "write_row", None)
    # The second prompt runs in its own set next to a row that decodes, and more rows need a larger set.
    advance(served, [first, second], [tokens[6:7], tokens[:4]])
    for position in (7, 8):
        logits = advance(
            served, [first, second], [tokens[position : position + 1], tokens[position - 3 : position - 2]]
        )
        for row, found in zip((first, second), logits, strict=True):
            assert relative_error(found, artifact.made.logits(np.array(row.tokens))[-1]) < TOLERANCE
    opened.close()


def advance(engine: DenseAsPaged, rows: list[Row], new: list[np.ndarray]) -> np.ndarray:
    """Feed ``new`` tokens of each row; logits after the last of them [rows, vocab]."""
    ids = [each.tolist() for each in new]
    logits = engine.step(packed_step(rows, ids, [{len(each) - 1} for each in ids], 48)).copy()
    for row, each in zip(rows, ids, strict=True):
        row.tokens += each
    return logits
