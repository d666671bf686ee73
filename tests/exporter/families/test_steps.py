"""Chunks, ragged rows, padding, empty rows and decode steps give what one pass over the sequence gives."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.verification.reference import Reference
from tests.support.agreement import assert_row_agrees, assert_states_agree, relative_error, tokens_of
from tests.support.eager_decoder import TORCH_DTYPES, EagerDecoder, StepResult
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS, LIKE_LLAMA, save_tiny_model

# The base of every family, and what only shows over several steps.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in BASE_CONFIGS},
    **{f"{family} with experts": (family, fields) for family, fields in EXPERTS.items()},
    "sliding window": ("qwen3", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "dt limits": ("nemotron_h", {"time_step_limit": [0.02, 0.3]}),
    "rotary": ("granitemoehybrid", {"position_embedding_type": "rope"}),
}
LENGTH = 19


class Model:
    """One checkpoint, ours and transformers'."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours = EagerDecoder(folder)
        self.reference = Reference(folder, self.ours.config)
        self.rows = [tokens_of(self.ours.config.vocab_size, LENGTH - 2 * i, seed=i) for i in range(3)]
        self.expected = [self.reference.run(row) for row in self.rows]

    def last(self, found: StepResult, row: int, length: int) -> StepResult:
        """``found`` without the padding after the row's ``length`` new tokens."""
        hidden = tuple(h[:, :length] for h in found.hidden)
        return StepResult(found.logits[:, :length], hidden, found.states)


@pytest.fixture(scope="module", params=sample(MODELS, on_push=set(MODELS) - LIKE_LLAMA - {"bamba", "qwen3_5_moe_text"}))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    family, overrides = MODELS[request.param]
    return Model(save_tiny_model(tmp_path_factory.mktemp("model"), family, **overrides))


@pytest.mark.parametrize("cuts", [[1], [7], [18], [2, 3, 11]], ids=str)
def test_chunks(model: Model, cuts: list[int]) -> None:
    states = model.ours.zero_states(1, LENGTH + 4)
    tokens, bounds = model.rows[0], [0, *cuts, LENGTH]
    for start, end in itertools.pairwise(bounds):
        found = model.ours.step([tokens[start:end]], [start], states)
        states = found.states
    assert_row_agrees(model.ours, found, model.expected[0])


def test_token_by_token(model: Model) -> None:
    states = model.ours.zero_states(1, LENGTH)
    for position, token in enumerate(model.rows[0]):
        found = model.ours.step([np.array([token])], [position], states)
        states = found.states
    assert_row_agrees(model.ours, found, model.expected[0])


def test_ragged_rows_then_a_second_ragged_step(model: Model) -> None:
    """Rows have another length in each step; their padding holds random tokens."""
    states, past = model.ours.zero_states(3, LENGTH), [0, 0, 0]
    for news in ([4, 9, 1], [LENGTH - 4, LENGTH - 2 - 9, LENGTH - 4 - 1]):
        rows = [row[p : p + n] for row, p, n in zip(model.rows, past, news, strict=True)]
        found = model.ours.step(rows, past, states, padding=11)
        states, past = found.states, [p + n for p, n in zip(past, news, strict=True)]
    for row, (length, expected) in enumerate(zip(news, model.expected, strict=True)):
        assert_row_agrees(model.ours, model.last(found, row, length), expected, row)


def test_padding_tokens_do_not_matter(model: Model) -> None:
    rows, states = [model.rows[0][:8], model.rows[1][:3]], model.ours.zero_states(2, 16)
    one, other = (model.ours.step(rows, [0, 0], states, padding=seed) for seed in (1, 2))
    for name in states:
        assert torch.equal(one.states[name], other.states[name]), name
    assert torch.equal(one.logits[0], other.logits[0])
    assert torch.equal(one.logits[1, :3], other.logits[1, :3])


def test_an_empty_row_keeps_its_states_bit_by_bit(model: Model) -> None:
    before = model.ours.step(model.rows[:2], [0, 0], model.ours.zero_states(2, 2 * LENGTH)).states
    active = model.rows[2][:5]
    after = model.ours.step([active, active[:0]], [LENGTH, LENGTH - 2], before, padding=3).states
    for name, state in after.items():
        assert torch.equal(state[1], before[name][1]), name
        assert not torch.equal(state[0], before[name][0]), name


@pytest.mark.parametrize(("dtype", "tolerance"), [(DType.FLOAT16, 1e-2), (DType.BFLOAT16, 1e-1)], ids=str)
def test_sixteen_bit_compute(model: Model, dtype: DType, tolerance: float) -> None:
    """A few layers of sixteen-bit rounding away from float32, with the recurrent state kept in float32.

    transformers in bfloat16 is 0.02 to 0.2 away from itself in float32 on such models. A token that rounding sends to
    another expert is further away, so the median token counts.
    """
    ours = EagerDecoder(model.folder, dtype)
    found = ours.step([model.rows[0]], [0], ours.zero_states(1, LENGTH))
    for name, state in found.states.items():
        assert state.dtype is (torch.float32 if name.startswith("recurrent") else TORCH_DTYPES[dtype]), name
    assert found.logits.dtype is torch.float32
    pairs = zip(found.logits[0], model.expected[0].logits, strict=True)
    errors = [relative_error(ours_of_token, expected) for ours_of_token, expected in pairs]
    assert 1e-5 < float(np.median(errors)) < tolerance


def test_a_full_cache_is_not_overrun_by_padding(model: Model) -> None:
    """The last token of a row may sit in the last cache position while another row's chunk is longer."""
    states = model.ours.zero_states(2, LENGTH)
    first = model.ours.step([model.rows[0][: LENGTH - 1], model.rows[1][:5]], [0, 0], states)
    second = model.ours.step([model.rows[0][LENGTH - 1 :], model.rows[1][5:]], [LENGTH - 1, 5], first.states, padding=5)
    assert_states_agree(model.ours, second.states, model.expected[0], 0)
    assert_states_agree(model.ours, second.states, model.expected[1], 1)
