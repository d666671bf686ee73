"""The whole engine on hand-made artifacts, against the float64 oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError, EngineError, RequestError
from hybridge.artifact.limits import POSITIONS
from hybridge.runtime.engines.dense import Decoder
from hybridge.runtime.engines.onnxruntime import OnnxRuntimeEngine
from hybridge.runtime.engines.onnxruntime.weights import WeightStore
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import VOCAB, Plan
from tests.runtime.onnxruntime.steps import TOLERANCE, engine_of, relative_error, step_inputs

# Tokens that each of four rows takes per step: prompts of unequal length around a row left out, a later chunk of
# several rows, decode of all rows, of neighbours and of rows apart, and a step without active rows.
STEPS = (
    (7, 0, 5, 2),
    (3, 4, 1, 6),
    (1, 1, 0, 0),
    (0, 0, 0, 0),
    (1, 1, 1, 1),
    (1, 0, 1, 1),
    (6, 2, 2, 1),
    (1, 1, 1, 1),
)
PLANS = {
    "base": Plan(),
    "float16": Plan(dtype=DType.FLOAT16),
    "bfloat16": Plan(dtype=DType.BFLOAT16),
    "bfloat16_weights_as_float16": Plan(dtype=DType.FLOAT16, weight_dtype=DType.BFLOAT16),
    "bfloat16_weights_as_float32": Plan(weight_dtype=DType.BFLOAT16),
    "untied": Plan(tied=False),
    "all_logits": Plan(all_logits=True),
    "float16_all_logits": Plan(dtype=DType.FLOAT16, all_logits=True),
    "no_attention": Plan(layers="mm"),
    "no_mamba": Plan(layers="aa"),
    "sliding_window": Plan(layers="a", window=3),
    "no_conv_activation": Plan(activation="none"),
    "no_conv_bias": Plan(conv_bias=False),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_ragged_steps_match_a_recomputation_from_the_first_token(plan: Plan, tmp_path: Path) -> None:
    made, engine = engine_of(plan, tmp_path)
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, VOCAB, 24) for _ in STEPS[0]]
    states, done = engine.allocate_states(len(tokens), 32), [0] * len(tokens)
    for counts in STEPS:
        rows = [tokens[r][done[r] : done[r] + n] for r, n in enumerate(counts)]
        logits = engine.step(step_inputs(rows, done, padding=VOCAB - 1), states)
        for r, n in enumerate(counts):
            if n:
                expected = made.logits(tokens[r][: done[r] + n])[done[r] :]
                found = logits[r, :n] if plan.all_logits else logits[r]
                assert relative_error(found, expected if plan.all_logits else expected[-1]) < TOLERANCE
        done = [d + n for d, n in zip(done, counts, strict=True)]
    for r in range(len(tokens)):
        for name, expected in made.run(tokens[r][: done[r]])[1].items():
            buffer = states.buffers[name]
            assert relative_error(buffer.read_row(r, done[r]), expected) < TOLERANCE, name


@pytest.mark.parametrize("name", ["base", "all_logits", "no_attention", "no_mamba"])
def test_decoding_any_rows_matches_a_recomputation_from_the_first_token(name: str, tmp_path: Path) -> None:
    made, engine = engine_of(PLANS[name], tmp_path)
    known = [list(row) for row in np.random.default_rng(4).integers(0, VOCAB, (4, 5))]
    states = engine.allocate_states(4, 16)
    engine.step(step_inputs([np.array(row) for row in known], [0] * 4), states)
    decoders: dict[tuple[int, ...], Decoder] = {}
    for token, rows in enumerate([(0, 1, 2, 3), (0, 1, 3), (2,), (1, 2), (0, 1, 2, 3), (0, 3)]):
        past = [len(known[row]) for row in rows]
        for row in rows:
            known[row].append(token + row)
        decoder = decoders.setdefault(rows, engine.decoder(rows, states))
        logits = decoder.step([known[row][-1] for row in rows], past)
        for row, found in zip(rows, logits, strict=True):
            assert relative_error(found, made.logits(np.array(known[row]))[-1]) < TOLERANCE


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127])
def test_prompts_of_every_length(length: int, tmp_path: Path) -> None:
    made, engine = engine_of(Plan(), tmp_path)
    tokens = np.random.default_rng(length).integers(0, VOCAB, length)
    states = engine.allocate_states(1, 200)
    assert relative_error(engine.step(step_inputs([tokens], [0]), states)[0], made.logits(tokens)[-1]) < TOLERANCE


def test_rows_without_new_tokens_keep_their_states_bit_for_bit(tmp_path: Path) -> None:
    _, engine = engine_of(Plan(), tmp_path)
    rng = np.random.default_rng(0)
    states = engine.allocate_states(3, 16)
    rows = [rng.integers(0, VOCAB, 4) for _ in range(3)]
    engine.step(step_inputs(rows, [0, 0, 0]), states)
    before = {name: buffer.read_row(1) for name, buffer in states.buffers.items()}
    for tokens in (3, 1):
        rows = [rng.integers(0, VOCAB, tokens), np.array([], np.int64), rng.integers(0, VOCAB, tokens)]
        engine.step(step_inputs(rows, [4, 4, 4], padding=VOCAB - 1), states)
    for name, buffer in states.buffers.items():
        assert np.array_equal(buffer.read_row(1).view(np.int32), before[name].view(np.int32)), name


def test_a_row_in_a_batch_agrees_with_the_row_alone(tmp_path: Path) -> None:
    _, engine = engine_of(Plan(), tmp_path)
    rows = [np.arange(5), np.arange(5) + 9]
    together, alone = engine.allocate_states(2, 16), engine.allocate_states(1, 16)
    both = engine.step(step_inputs(rows, [0, 0]), together)[1].copy()
    single = engine.step(step_inputs(rows[1:], [0]), alone)[0]
    assert relative_error(both, single.astype(np.float64)) < 1e-6


def test_float32_weights_are_mapped_and_narrow_ones_widened_once(tmp_path: Path) -> None:
    _, mapped = engine_of(Plan(), tmp_path / "a")
    assert mapped.weights.copied_bytes == 0
    made, widened = engine_of(Plan(dtype=DType.BFLOAT16), tmp_path / "b")
    narrow = sum(v.size for n, v in made.weights.items() if n.split(".")[-1] not in ("A", "D", "dt_bias"))
    assert widened.weights.copied_bytes == 4 * narrow


def test_a_closed_engine_moves_no_more_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, engine = engine_of(Plan(), tmp_path)
    closed: list[WeightStore] = []
    monkeypatch.setattr(WeightStore, "close", lambda store: closed.append(store))
    engine.close()
    assert closed == [engine.weights]


def test_inner_values_of_unequal_prompts_come_with_the_logits_of_a_step(tmp_path: Path) -> None:
    made, engine = engine_of(Plan(), tmp_path)
    rows = [np.arange(5), np.arange(3) + 9]
    found = engine.step_values(step_inputs(rows, [0, 0]), engine.allocate_states(2, 16), ())
    for logits, row in zip(found["logits"], rows, strict=True):
        assert relative_error(logits, made.logits(row)[-1]) < TOLERANCE


def test_growing_the_caches_keeps_their_content_and_decoders_follow(tmp_path: Path) -> None:
    made, engine = engine_of(Plan(), tmp_path)
    tokens = np.random.default_rng(5).integers(0, VOCAB, 10)
    states = engine.allocate_states(2, 8)
    engine.step(step_inputs([tokens[:8], tokens[:2]], [0, 0]), states)
    small, decoder = states.max_seq, engine.decoder([0], states)
    states.reserve(small + 1)
    assert 2 * small == states.max_seq
    assert relative_error(decoder.step([tokens[8]], [8])[0], made.logits(tokens[:9])[-1]) < TOLERANCE
    logits = engine.step(step_inputs([tokens[9:], tokens[:0]], [9, 2]), states)
    assert relative_error(logits[0], made.logits(tokens)[-1]) < TOLERANCE


def test_caches_that_cannot_grow_stay_as_they_were(tmp_path: Path) -> None:
    """As many rows and positions as take more memory than a process has addresses."""
    rows = 1 << 12
    made, engine = engine_of(Plan(max_seq_len=POSITIONS, max_batch_size=rows), tmp_path)
    tokens, states = np.random.default_rng(5).integers(0, VOCAB, 9), engine.allocate_states(rows, 8)
    nothing = [tokens[:0]] * (rows - 1)
    engine.step(step_inputs([tokens[:6], *nothing], [0] * rows), states)
    room, message = states.max_seq, f"states of {rows} rows of {POSITIONS} tokens, found too little: use"
    with pytest.raises(EngineError, match=message):
        states.reserve(POSITIONS)
    assert states.max_seq == room
    logits = engine.step(step_inputs([tokens[6:], *nothing], [6] + [0] * (rows - 1)), states)
    assert relative_error(logits[0], made.logits(tokens)[-1]) < TOLERANCE
    with pytest.raises(EngineError, match=message):
        engine.allocate_states(rows, POSITIONS)


def test_a_restored_row_continues_like_the_original(tmp_path: Path) -> None:
    made, engine = engine_of(Plan(), tmp_path)
    tokens = np.random.default_rng(6).integers(0, VOCAB, 7)
    first, second = engine.allocate_states(1, 8), engine.allocate_states(2, 8)
    engine.step(step_inputs([tokens[:6]], [0]), first)
    for name, buffer in first.buffers.items():
        second.buffers[name].write_row(1, buffer.read_row(0, 6))
    logits = engine.step(step_inputs([tokens[:0], tokens[6:]], [0, 6]), second)
    assert relative_error(logits[1], made.logits(tokens)[-1]) < TOLERANCE
    for buffer in second.buffers.values():
        before = buffer.read_row(1)
        buffer.zero_rows([1], 4)
        assert not buffer.read_row(1)[:, :4].any()
        np.testing.assert_array_equal(buffer.read_row(1)[:, 4:], before[:, 4:] if buffer.spec.grows else 0)


def test_limits_are_refused_with_what_was_found(tmp_path: Path) -> None:
    _, engine = engine_of(Plan(max_seq_len=300, max_batch_size=2), tmp_path)
    with pytest.raises(RequestError, match="1 to 2 rows in a batch, found 3"):
        engine.allocate_states(3, 8)
    with pytest.raises(RequestError, match="at most 300 tokens in one row, found 301"):
        engine.allocate_states(1, 301)
    states = engine.allocate_states(1, 8)
    with pytest.raises(RequestError, match="found 400"):
        states.reserve(400)
    states.reserve(300)
    with pytest.raises(EngineError, match="within 300 positions"):
        engine.step(step_inputs([np.arange(2)], [299]), states)
    with pytest.raises(EngineError, match=r"one more token in 300 positions, found rows that hold \[300\]"):
        engine.decoder([0], states).step([1], [300])
    with pytest.raises(EngineError, match=r"found rows that hold \[5, -1\]: reserve more first"):
        engine.decoder([0, 1], engine.allocate_states(2, 8)).step([1, 1], [5, -1])
    with pytest.raises(EngineError, match=r"expected rows from 0 to 0, found \[0, 1\]"):
        engine.decoder([0, 1], states)
    with pytest.raises(EngineError, match="lengths"):
        engine.step(step_inputs([np.arange(2)] * 2, [0, 0]), states)


def test_a_damaged_artifact_is_named(tmp_path: Path) -> None:
    folder = HandMade(Plan()).write(tmp_path / "artifact")
    shard = folder / "weights" / "model.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-8])
    with pytest.raises(ArtifactError, match="truncated"):
        OnnxRuntimeEngine(folder)
    shard.unlink()
    with pytest.raises(ArtifactError, match="found none"):
        OnnxRuntimeEngine(folder)
    # What lies outside is not read, also where it would fit.
    (tmp_path / "outside").write_bytes(content)
    shard.symlink_to(tmp_path / "outside")
    with pytest.raises(ArtifactError, match="found a link that leaves it"):
        OnnxRuntimeEngine(folder)
    shard.unlink()
    shard.write_bytes(content)
    (folder / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ArtifactError, match="expected an ONNX model"):
        OnnxRuntimeEngine(folder)
