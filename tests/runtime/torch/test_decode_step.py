"""Buckets, and what happens to decoding where no graph can be recorded."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.runtime.engines.capacity import capacity_for
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.runtime.onnxruntime.steps import relative_error, step_inputs
from tests.runtime.torch.test_engine import engine_of


@pytest.mark.parametrize(
    ("tokens", "capacity", "bucket"),
    [(1, 4096, 256), (256, 4096, 256), (257, 4096, 512), (2049, 4096, 4096), (300, 400, 400), (7, 16, 16)],
)
def test_a_bucket_holds_the_tokens_and_fits_the_cache(tokens: int, capacity: int, bucket: int) -> None:
    assert capacity_for(tokens, capacity) == bucket


class RefusingGraph:
    """A graph that torch cannot record, at its beginning or while steps run."""

    def __init__(self, keep_graph: bool) -> None:
        assert keep_graph

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        raise RuntimeError("operation not permitted\nwhen stream is capturing")


def test_decoding_continues_where_no_graph_can_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RefusingGraph)
    made, engine = engine_of(Plan(), tmp_path)
    tokens, states = np.arange(3, 12), engine.allocate_states(1, 300)
    engine.step(step_inputs([tokens[:4]], [0]), states)
    decoder = engine.decoder([0], states)
    for past in range(4, 9):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            logits = decoder.step([int(tokens[past])], [past])[0]
        assert relative_error(logits, made.logits(tokens[: past + 1])[-1]) < 1e-5
        (bound,) = states.memory.bound.values()
        if past == 4:
            bound.repeated.direct = False  # as on a GPU, after the first step
        words = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
        reason = "operation not permitted when stream is capturing"
        assert words == ([f"running without a CUDA graph, which is slower: {reason}"] if past == 5 else [])
    assert list(states.memory.bound) == [256] and not bound.is_replayed
