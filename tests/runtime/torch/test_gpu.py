"""The engine on a GPU: kernels, graphs and growing caches against the oracle and against the engine on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.torch.engine import TorchEngine
from hybridge.runtime.engines.torch.states import TorchStateSet
from hybridge.runtime.engines.torch.step_buffers import StepBuffers
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import VOCAB, Plan
from tests.runtime.onnxruntime.steps import relative_error, step_inputs
from tests.runtime.torch.test_engine import STEPS, TOLERANCES
from tests.runtime.torch.test_kernel_calls import BAMBA, LATENTS, NEMOTRON, QWEN
from tests.runtime.torch.test_quantized_weights import FORMATS
from tests.runtime.torch.test_quantized_weights import exported as quantized
from tests.support.artifacts import ArtifactCache

pytestmark = pytest.mark.gpu
# Sizes of the hand-made plans are ones that no kernel runs: they prove the way around the kernels.
PLANS = {
    "base": Plan(),
    "bfloat16": Plan(dtype=DType.BFLOAT16),
    "all_logits": Plan(all_logits=True),
    "no_mamba": Plan(layers="aa"),
    "sliding_window": Plan(layers="a", window=3),
}
# Between the GPU's kernels and torch on the CPU, both in the same types.
BETWEEN = {DType.FLOAT32: 1e-4, DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}


SIZES = {"nemotron_h": NEMOTRON, "bamba": BAMBA, "qwen3_next": QWEN, "kimi_linear": LATENTS}


def exported(artifacts: ArtifactCache, dtype: DType, family: str = "nemotron_h") -> Path:
    pytest.importorskip("onnxscript", reason="needs the export extra (onnxscript)")
    return artifacts.get(family, "bfloat16", SIZES[family], dtype=dtype, max_seq_len=600).folder


def tokens_of(engine: TorchEngine, rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, engine.config.vocab_size, (rows, length))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_ragged_steps_match_the_oracle(plan: Plan, tmp_path: Path) -> None:
    made = HandMade(plan)
    engine = TorchEngine(made.write(tmp_path / "artifact"), device="cuda")
    rng, tolerance = np.random.default_rng(3), 2 * TOLERANCES[plan.dtype]
    tokens = [rng.integers(0, VOCAB, 24) for _ in STEPS[0]]
    states, done = engine.allocate_states(len(tokens), 32), [0] * len(tokens)
    for counts in STEPS:
        rows = [tokens[r][done[r] : done[r] + n] for r, n in enumerate(counts)]
        logits = engine.step(step_inputs(rows, done, padding=VOCAB - 1), states)
        for r, n in enumerate(counts):
            if n:
                expected = made.logits(tokens[r][: done[r] + n])[done[r] :]
                found = logits[r, :n] if plan.all_logits else logits[r]
                assert relative_error(found, expected if plan.all_logits else expected[-1]) < tolerance
        done = [d + n for d, n in zip(done, counts, strict=True)]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, dtype) for family in ("nemotron_h", "kimi_linear") for dtype in BETWEEN),
        *((family, DType.BFLOAT16) for family in ("bamba", "qwen3_next")),
    ],
)
def test_prompt_and_decoding_agree_with_the_cpu(family: str, dtype: DType, artifacts: ArtifactCache) -> None:
    compare_with_the_cpu(exported(artifacts, dtype, family), dtype)


@pytest.mark.parametrize(("family", "name"), [("nemotron_h", "int4"), *(("llama", name) for name in FORMATS)])
def test_quantised_weights_stay_packed_and_agree_with_the_cpu(family: str, name: str, tmp_path: Path) -> None:
    gpu = compare_with_the_cpu(quantized(tmp_path, family, FORMATS[name]), DType.BFLOAT16)
    assert any(name.endswith(".tiles") for name in gpu.model.weights.folded)


def compare_with_the_cpu(folder: Path, dtype: DType) -> TorchEngine:
    """A prompt of three rows and 20 steps on both; the engine on the GPU."""
    gpu, cpu = TorchEngine(folder, device="cuda"), TorchEngine(folder, device="cpu")
    tokens = tokens_of(cpu, 3, 60)
    lengths = np.array([20, 33, 1])
    prompt = step_inputs([row[:n] for row, n in zip(tokens, lengths, strict=True)], [0] * 3)
    states = [engine.allocate_states(3, 64) for engine in (gpu, cpu)]
    found, expected = (engine.step(prompt, held).copy() for engine, held in zip((gpu, cpu), states, strict=True))
    assert relative_error(found, expected) < BETWEEN[dtype]
    for step in range(20):
        ids = np.array([[row[n + step]] for row, n in zip(tokens, lengths, strict=True)])
        inputs = StepInputs(ids, np.array([1, 1, step % 2], np.int32), (lengths + step).astype(np.int32))
        inputs.past_lengths[2] = lengths[2] + step // 2
        found, expected = gpu.step(inputs, states[0]), cpu.step(inputs, states[1])
        taking = inputs.context_lengths > 0
        assert relative_error(found[taking], expected[taking]) < BETWEEN[dtype], step
    assert [bound.is_replayed for bound in states[0].memory.bound.values()] == [True]
    for name, buffer in states[0].buffers.items():
        for row, length in enumerate((40, 53, 11)):
            expected = states[1].buffers[name].read_row(row, length).astype(np.float64)
            assert relative_error(buffer.read_row(row, length), expected) < BETWEEN[dtype], name
    return gpu


def test_a_replayed_step_is_the_direct_one_bit_for_bit(artifacts: ArtifactCache) -> None:
    engine = TorchEngine(exported(artifacts, DType.BFLOAT16), device="cuda")
    tokens = tokens_of(engine, 2, 30)
    direct, replayed = engine.allocate_states(2, 64), engine.allocate_states(2, 64)
    for states in (direct, replayed):
        engine.step(step_inputs(list(tokens[:, :9]), [0, 0]), states)
    for step in range(9, 30):
        inputs = step_inputs(list(tokens[:, step : step + 1]), [step, step])
        expected = engine.step_values(inputs, direct, ())["logits"]
        assert np.array_equal(engine.step(inputs, replayed), expected), step
    for name, buffer in direct.buffers.items():
        for row in range(2):
            assert np.array_equal(
                buffer.read_row(row).view(np.uint8), replayed.buffers[name].read_row(row).view(np.uint8)
            )


def test_three_hundred_steps_through_buckets_and_growing_caches(artifacts: ArtifactCache) -> None:
    folder = exported(artifacts, DType.FLOAT32)
    gpu, cpu = TorchEngine(folder, device="cuda"), TorchEngine(folder, device="cpu")
    tokens = tokens_of(cpu, 2, 300)
    states: list[TorchStateSet] = []
    for engine in (gpu, cpu):
        held = engine.allocate_states(2, 128)
        states.append(held)
        decoder = engine.decoder([0, 1], held)
        for step in range(300):
            held.reserve(step + 1)
            logits = [row.copy() for row in decoder.step(tokens[:, step].tolist(), [step, step])]
            if engine is gpu:
                last = logits
    assert all(relative_error(*pair) < BETWEEN[DType.FLOAT32] for pair in zip(last, logits, strict=True))
    for name, buffer in states[0].buffers.items():
        expected = states[1].buffers[name].read_row(1, 300).astype(np.float64)
        assert relative_error(buffer.read_row(1, 300), expected) < BETWEEN[DType.FLOAT32], name


def test_rows_that_take_no_part_keep_their_states_bit_for_bit(artifacts: ArtifactCache) -> None:
    engine = TorchEngine(exported(artifacts, DType.BFLOAT16), device="cuda")
    tokens, states = tokens_of(engine, 3, 30), engine.allocate_states(3, 64)
    engine.step(step_inputs(list(tokens[:, :8]), [0] * 3), states)
    before = {name: buffer.read_row(1) for name, buffer in states.buffers.items()}
    decoder = engine.decoder([0, 2], states)
    for step in range(8, 14):
        decoder.step(tokens[[0, 2], step].tolist(), [step, step])
    for name, buffer in states.buffers.items():
        assert np.array_equal(buffer.read_row(1).view(np.uint8), before[name].view(np.uint8)), name


def test_states_move_between_sets_on_the_device(artifacts: ArtifactCache) -> None:
    engine = TorchEngine(exported(artifacts, DType.BFLOAT16), device="cuda")
    tokens, first, second = tokens_of(engine, 1, 30), engine.allocate_states(1, 32), engine.allocate_states(2, 64)
    engine.step(step_inputs([tokens[0, :8]], [0]), first)
    for name, buffer in first.buffers.items():
        second.buffers[name].take_row(1, buffer, 0, 8)
    for step in range(8, 12):
        expected = engine.step(step_inputs([tokens[0, step : step + 1]], [step]), first)[0].astype(np.float64)
        found = engine.decoder([1], second).step([int(tokens[0, step])], [step])[0]
        assert relative_error(found, expected) < BETWEEN[DType.BFLOAT16]


def test_a_busy_default_stream_changes_nothing(artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another stream has to do yet, it does after the tokens have come and before they are read."""
    upload = StepBuffers.upload

    def slow(buffers: StepBuffers) -> None:
        upload(buffers)
        torch.cuda._sleep(1_200_000_000)  # cycles: about 0.6 seconds

    monkeypatch.setattr(StepBuffers, "upload", slow)
    engine = TorchEngine(exported(artifacts, DType.FLOAT16), device="cuda")
    tokens, held = tokens_of(engine, 2, 30), []

    def results(disturb: Callable[[], None]) -> list[np.ndarray]:
        disturb()
        states = engine.allocate_states(2, 64)
        held.append(states)  # so that the next run gets memory and buffers of its own
        found = [engine.step(step_inputs(list(tokens[:, :9]), [0, 0]), states).copy()]
        disturb()
        for step in range(9, 11):
            found.append(engine.step(step_inputs(list(tokens[:, step : step + 1]), [step, step]), states).copy())
        return [*found, *(buffer.read_row(1).view(np.uint8) for buffer in states.buffers.values())]

    expected = results(lambda: None)
    torch.cuda.synchronize()
    found = results(lambda: torch.cuda._sleep(400_000_000))
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
