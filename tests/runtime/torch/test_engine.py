"""The whole engine on hand-made artifacts, on the CPU, against their float64 oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError, EngineError, RequestError
from hybridge.artifact.limits import POSITIONS, ROWS
from hybridge.runtime.engines.dense import Decoder
from hybridge.runtime.engines.torch.engine import TorchEngine
from hybridge.runtime.engines.torch.program import Program
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import VOCAB, Plan
from tests.runtime.onnxruntime.steps import relative_error, step_inputs

# Relative norm against float64; in 16 bits every layer's values are rounded (tests/verify has the same numbers).
TOLERANCES = {DType.FLOAT32: 1e-5, DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}
# Tokens that each of four rows takes per step: prompts of unequal length around a row left out, a later chunk of
# several rows, decoding of all rows and of some, and a step without active rows.
STEPS = ((7, 0, 5, 2), (3, 4, 1, 6), (1, 1, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 1, 1), (6, 2, 2, 1), (1, 1, 1, 1))
PLANS = {
    "base": Plan(),
    "float16": Plan(dtype=DType.FLOAT16),
    "bfloat16": Plan(dtype=DType.BFLOAT16),
    "bfloat16_weights_as_float16": Plan(dtype=DType.FLOAT16, weight_dtype=DType.BFLOAT16),
    "bfloat16_weights_as_float32": Plan(weight_dtype=DType.BFLOAT16),
    "untied": Plan(tied=False),
    "all_logits": Plan(all_logits=True),
    "bfloat16_all_logits": Plan(dtype=DType.BFLOAT16, all_logits=True),
    "no_attention": Plan(layers="mm"),
    "no_mamba": Plan(layers="aa"),
    "sliding_window": Plan(layers="a", window=3),
    "no_conv_activation": Plan(activation="none"),
    "no_conv_bias": Plan(conv_bias=False),
}


def engine_of(plan: Plan, folder: Path) -> tuple[HandMade, TorchEngine]:
    """The oracle and the engine of one hand-made artifact."""
    made = HandMade(plan)
    return made, TorchEngine(made.write(folder / "artifact"), device="cpu")


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_ragged_steps_match_a_recomputation_from_the_first_token(plan: Plan, tmp_path: Path) -> None:
    made, engine = engine_of(plan, tmp_path)
    rng, tolerance = np.random.default_rng(3), TOLERANCES[plan.dtype]
    tokens = [rng.integers(0, VOCAB, 24) for _ in STEPS[0]]
    states, done = engine.allocate_states(len(tokens), 32), [0] * len(tokens)
    for counts in STEPS:
        rows = [tokens[r][done[r] : done[r] + n] for r, n in enumerate(counts)]
        logits = engine.step(step_inputs(rows, done, padding=VOCAB - 1), states)
        assert logits.dtype == np.float32
        for r, n in enumerate(counts):
            if n:
                expected = made.logits(tokens[r][: done[r] + n])[done[r] :]
                found = logits[r, :n] if plan.all_logits else logits[r]
                assert relative_error(found, expected if plan.all_logits else expected[-1]) < tolerance
        done = [d + n for d, n in zip(done, counts, strict=True)]
    for r in range(len(tokens)):
        for name, expected in made.run(tokens[r][: done[r]])[1].items():
            buffer = states.buffers[name]
            assert buffer.spec.dtype == made.config().bindings.input(name).dtype
            assert relative_error(buffer.read_row(r, done[r]).astype(np.float64), expected) < tolerance, name


@pytest.mark.parametrize("name", ["base", "all_logits", "no_attention", "no_mamba", "sliding_window"])
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
            assert relative_error(found, made.logits(np.array(known[row]))[-1]) < TOLERANCES[DType.FLOAT32]


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127])
def test_prompts_of_every_length(length: int, tmp_path: Path) -> None:
    made, engine = engine_of(Plan(), tmp_path)
    tokens = np.random.default_rng(length).integers(0, VOCAB, length)
    logits = engine.step(step_inputs([tokens], [0]), engine.allocate_states(1, 200))
    assert relative_error(logits[0], made.logits(tokens)[-1]) < TOLERANCES[DType.FLOAT32]


def test_rows_without_new_tokens_keep_their_states_bit_for_bit(tmp_path: Path) -> None:
    _, engine = engine_of(Plan(), tmp_path)
    rng = np.random.default_rng(0)
    states = engine.allocate_states(3, 16)
    engine.step(step_inputs([rng.integers(0, VOCAB, 4) for _ in range(3)], [0, 0, 0]), states)
    before = {name: buffer.read_row(1) for name, buffer in states.buffers.items()}
    for tokens in (3, 1):
        rows = [rng.integers(0, VOCAB, tokens), np.array([], np.int64), rng.integers(0, VOCAB, tokens)]
        engine.step(step_inputs(rows, [4, 4, 4], padding=VOCAB - 1), states)
    for name, buffer in states.buffers.items():
        assert np.array_equal(buffer.read_row(1).view(np.int32), before[name].view(np.int32)), name


def test_growing_the_caches_keeps_their_content_and_decoders_follow(tmp_path: Path) -> None:
    made, engine = engine_of(Plan(), tmp_path)
    tokens = np.random.default_rng(5).integers(0, VOCAB, 10)
    states = engine.allocate_states(2, 8)
    engine.step(step_inputs([tokens[:8], tokens[:2]], [0, 0]), states)
    decoder = engine.decoder([0], states)
    states.reserve(9)
    assert states.max_seq == 16
    logits = decoder.step([tokens[8]], [8])[0]
    assert relative_error(logits, made.logits(tokens[:9])[-1]) < TOLERANCES[DType.FLOAT32]
    logits = engine.step(step_inputs([tokens[9:], tokens[:0]], [9, 2]), states)[0]
    assert relative_error(logits, made.logits(tokens)[-1]) < TOLERANCES[DType.FLOAT32]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_a_row_that_moved_continues_like_the_original(dtype: DType, tmp_path: Path) -> None:
    made, engine = engine_of(Plan(dtype=dtype), tmp_path)
    tokens = np.random.default_rng(6).integers(0, VOCAB, 7)
    first, second = engine.allocate_states(1, 8), engine.allocate_states(3, 24)
    engine.step(step_inputs([tokens[:6]], [0]), first)
    for name, buffer in first.buffers.items():
        second.buffers[name].write_row(0, buffer.read_row(0, 6))
        second.buffers[name].take_row(2, buffer, 0, 6)
        second.buffers[name].copy_row(2, 1)
        second.buffers[name].zero_rows([0], 4)
        kept = first.buffers[name].read_row(0)[:, 4:6] if buffer.spec.grows else 0
        assert not second.buffers[name].read_row(0)[:, :4].any()
        np.testing.assert_array_equal(second.buffers[name].read_row(0)[:, 4:6], kept)
        second.buffers[name].zero_rows([0])
        assert not second.buffers[name].read_row(0).any()
    logits = engine.step(step_inputs([tokens[:0], tokens[6:], tokens[6:]], [0, 6, 6]), second)
    for row in (1, 2):
        assert relative_error(logits[row], made.logits(tokens)[-1]) < TOLERANCES[dtype]
    assert relative_error(logits[1], logits[2]) < 1e-6


def test_memory_of_released_states_is_zero_when_reused(tmp_path: Path) -> None:
    _, engine = engine_of(Plan(), tmp_path)
    states = engine.allocate_states(2, 8)
    engine.step(step_inputs([np.arange(4)] * 2, [0, 0]), states)
    memory = states.memory
    del states
    again = engine.allocate_states(2, 8)
    assert again.memory is memory
    assert not any(buffer.read_row(row).any() for buffer in again.buffers.values() for row in range(2))


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
    with pytest.raises(EngineError, match=f"token ids from 0 to {VOCAB - 1}, found 1 to {VOCAB}"):
        engine.step(step_inputs([np.array([1, VOCAB])], [0]), states)
    with pytest.raises(EngineError, match="lengths"):
        engine.step(step_inputs([np.arange(2)] * 2, [0, 0]), states)
    buffer = next(iter(states.buffers.values()))
    with pytest.raises(RequestError, match="expected a row of float32"):
        buffer.write_row(0, np.zeros((1, 2, 3, 4), np.float32))


def test_too_little_memory_for_states_is_an_error_that_says_so(tmp_path: Path) -> None:
    _, engine = engine_of(Plan(max_seq_len=POSITIONS, max_batch_size=ROWS), tmp_path)
    with pytest.raises(EngineError, match=f"states of {ROWS} rows of {POSITIONS} tokens, found too little"):
        engine.allocate_states(ROWS, POSITIONS)
    assert engine.allocate_states(1, 8).max_seq == 8


@pytest.mark.parametrize("tokens", [1, 3])
def test_too_little_memory_for_a_step_is_an_error_that_says_so(
    tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, engine = engine_of(Plan(), tmp_path)
    ids, states = np.arange(tokens), engine.allocate_states(2, 8)

    def run(self: Program, feeds: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(Program, "run", run)
        with pytest.raises(EngineError, match=f"memory for a step of 2 rows of {tokens} tokens, found too little: use"):
            engine.step(step_inputs([ids, ids], [0, 0]), states)
        if tokens == 1:
            with pytest.raises(EngineError, match="memory for a step of 2 rows of 1 tokens, found too little: use"):
                engine.decoder([0, 1], states).step([0, 0], [0, 0])
    logits = engine.step(step_inputs([ids, ids], [0, 0]), states)
    assert relative_error(logits[1], made.logits(ids)[-1]) < 1e-5


def test_states_of_another_engine_and_a_closed_engine_are_refused(tmp_path: Path) -> None:
    _, engine = engine_of(Plan(), tmp_path / "a")
    _, other = engine_of(Plan(), tmp_path / "b")
    states = engine.allocate_states(1, 8)
    with pytest.raises(EngineError, match="allocated by this engine"):
        other.step(step_inputs([np.arange(2)], [0]), states)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.step(step_inputs([np.arange(2)], [0]), states)


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = HandMade(Plan()).write(tmp_path / "artifact")
    with pytest.raises(EngineError, match="expected cuda or cpu, found 'tpu'"):
        TorchEngine(folder, device="tpu")


def test_float32_weights_stay_mapped(tmp_path: Path) -> None:
    _, engine = engine_of(Plan(), tmp_path)
    assert not engine.model.weights.computed_bytes
    _, widened = engine_of(Plan(weight_dtype=DType.BFLOAT16), tmp_path / "b")
    assert widened.model.weights.computed_bytes


def test_a_damaged_artifact_is_named(tmp_path: Path) -> None:
    folder = HandMade(Plan()).write(tmp_path / "artifact")
    shard = folder / "weights" / "model.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match="truncated"):
        TorchEngine(folder, device="cpu")
    shard.unlink()
    with pytest.raises(ArtifactError, match="found none"):
        TorchEngine(folder, device="cpu")
    # What lies outside is not read, also where it would fit.
    (tmp_path / "outside").write_bytes(content)
    shard.symlink_to(tmp_path / "outside")
    with pytest.raises(ArtifactError, match="found a link that leaves it"):
        TorchEngine(folder, device="cpu")
    shard.unlink()
    shard.write_bytes(content)
    (folder / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ArtifactError, match="expected an ONNX model"):
        TorchEngine(folder, device="cpu")


def test_a_batch_of_requests_generates_what_onnx_runtime_does(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the other engine")
    folder = HandMade(Plan(max_batch_size=3)).write(tmp_path / "artifact")
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9], [3, 2, 3, 8]]
    found = {}
    for engine in ("torch", "onnxruntime"):
        with LLM(folder, engine=engine, threads=1) as llm:
            answers = llm.generate(prompts, SamplingParams(ignore_eos=True), 12)
            found[engine] = [answer.token_ids for answer in answers]
    assert found["torch"] == found["onnxruntime"] and all(len(ids) == 12 for ids in found["torch"])
