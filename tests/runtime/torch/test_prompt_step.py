"""Prompts in padded steps, against the float64 oracle; on a GPU also as recorded."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.engine import TorchEngine
from hybridge.runtime.engines.torch.prompt_step import MOST_PROMPTS, PromptShape, PromptStep
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import VOCAB, Plan
from tests.runtime.onnxruntime.steps import relative_error, step_inputs
from tests.runtime.torch.test_engine import TOLERANCES

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PLANS = {
    "base": Plan(),
    "bfloat16": Plan(dtype=DType.BFLOAT16),
    "no_mamba": Plan(layers="aa"),
    "sliding_window": Plan(layers="a", window=18),
}
# Tokens of two rows in each step: two of ragged prompts, which end at the last of 49 positions, and one of decoding.
STEPS = ((18, 18), (29, 5), (1, 1))
MAX_SEQ = 49


def shape_of(tokens: list[int], past: list[int], max_seq: int = 4096) -> PromptShape | None:
    return PromptShape.of(step_inputs([np.zeros(n, np.int64) for n in tokens], past), max_seq)


def test_shapes_are_padded_by_at_most_a_sixteenth() -> None:
    assert shape_of([500, 512], [0, 0]) == shape_of([1, 497], [0, 0]) == PromptShape(512, 0)
    assert shape_of([17], [9], 30) == PromptShape(21, 9)
    widths = {tokens: shape_of([tokens], [0]) for tokens in range(17, 4097)}
    for tokens, shape in widths.items():
        assert shape is not None and tokens <= shape.tokens <= tokens + max(15, tokens // 16)
    assert len(set(widths.values())) < 90


@pytest.mark.parametrize(
    ("tokens", "past"),
    [([16, 16], [0, 0]), ([2731] * 3, [0] * 3), ([30, 0], [0, 0]), ([30, 20], [4, 5])],
    ids=["few", "many", "left_out", "past"],
)
def test_other_steps_have_no_shape(tokens: list[int], past: list[int]) -> None:
    assert shape_of(tokens, past) is None


def compare(engine: TorchEngine, made: HandMade, seed: int, feeds: bool) -> OrderedDict[PromptShape, PromptStep]:
    """Two rows of random tokens through STEPS; the prepared steps. Their memory is that of the rows before.

    feeds: whether the first step gives no logits.
    """
    rows = np.random.default_rng(seed).integers(0, VOCAB, (2, MAX_SEQ))
    states, done = engine.allocate_states(2, MAX_SEQ), [0, 0]
    for counts in STEPS:
        new = [row[d : d + n] for row, d, n in zip(rows, done, counts, strict=True)]
        inputs = step_inputs(new, done, padding=VOCAB - 1)
        fed, done = feeds and not any(done), [d + n for d, n in zip(done, counts, strict=True)]
        if fed:
            engine.feed(inputs, states)
            continue
        logits = engine.step(inputs, states)
        for row, length, found in zip(rows, done, logits, strict=True):
            assert relative_error(found, made.logits(row[:length])[-1]) < 2 * TOLERANCES[made.plan.dtype]
    for name, buffer in states.buffers.items():
        for row, length in enumerate(done):
            assert not buffer.spec.grows or not buffer.read_row(row)[:, length:].any(), name
    return states.memory.prompts


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_padded_prompts_match_the_oracle(plan: Plan, device: str, tmp_path: Path) -> None:
    made = HandMade(plan)
    engine = TorchEngine(made.write(tmp_path / "artifact"), device=device)
    engine._prepares_prompts = True
    uses: Counter[PromptShape] = Counter()
    for turn, feeds in enumerate([False, True, False, True]):
        prepared = compare(engine, made, turn, feeds)
        uses.update([PromptShape(32, 0, logits=not feeds), PromptShape(31, 18)])
        replayed = {shape: step.repeated.is_replayed for shape, step in prepared.items()}
        assert replayed == {shape: device == "cuda" and count > 1 for shape, count in uses.items()}


def test_few_shapes_stay_prepared(tmp_path: Path) -> None:
    engine = TorchEngine(HandMade(Plan()).write(tmp_path / "artifact"), device="cpu")
    engine._prepares_prompts = True
    states = engine.allocate_states(1, 400)
    for tokens in range(20, 20 + 16 * (MOST_PROMPTS + 2), 16):
        engine.step(step_inputs([np.zeros(tokens, np.int64)], [0]), states)
    assert [shape.tokens for shape in states.memory.prompts] == [32 + 16 * n for n in range(2, MOST_PROMPTS + 2)]
