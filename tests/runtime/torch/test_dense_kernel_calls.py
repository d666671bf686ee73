"""Steps of dense artifacts with the calls that a GPU's kernels get, planned for an H200 and computed by torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.cache_blocks import block_caches
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.engine import TorchEngine
from tests.runtime.onnxruntime.steps import relative_error, step_inputs
from tests.runtime.torch.planned_kernels import AlignedWeights, PlannedKernels
from tests.runtime.torch.test_fusion import TOLERANCES
from tests.runtime.torch.test_kernel_calls import LATENTS, NEMOTRON
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.effort import sample

# Head dims from 64 on are the kernels' own.
SIZES = {
    "kimi_linear": LATENTS,
    "nemotron_h": {**NEMOTRON, "head_dim": 64},
    "qwen3": {
        "hidden_size": 64,
        "head_dim": 64,
        "num_hidden_layers": 2,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
}
MODELS = (("nemotron_h", 12), ("nemotron_h", 300), ("qwen3", 40))
ROWS, PROMPT = 3, 5


def with_planned_kernels(exported: Exported) -> tuple[TorchEngine, PlannedKernels]:
    """The engine on the CPU, which plans its kernels as on a GPU."""
    engine, kernels = TorchEngine(exported.folder, device="cpu"), PlannedKernels()
    engine.model._programs.clear()
    engine.model.weights = AlignedWeights(exported.folder, engine.device.torch)
    engine.device.kernels = kernels
    return engine, kernels


def decoded(engine: TorchEngine, max_seq: int, steps: int) -> list[Any]:
    """Logits of rows 0 and 2 in decode steps in which row 1 has no part, and all states."""
    states = engine.allocate_states(ROWS, max_seq)
    tokens = np.random.default_rng(4).integers(0, engine.config.vocab_size, (ROWS, PROMPT + steps))
    engine.step(step_inputs(list(tokens[:, :PROMPT]), [0] * ROWS), states)
    before = {name: buffer.read_row(1) for name, buffer in states.buffers.items()}
    decoder, found = engine.decoder([0, 2], states), []
    for past in range(PROMPT, PROMPT + steps):
        found += [row.copy() for row in decoder.step(tokens[[0, 2], past].tolist(), [past] * 2)]
    for name, buffer in states.buffers.items():
        assert np.array_equal(buffer.read_row(1).view(np.uint8), before[name].view(np.uint8)), name
    return [*found, *(buffer.read_row(row) for buffer in states.buffers.values() for row in (0, 2))]


@pytest.mark.parametrize(
    ("family", "max_seq", "dtype"),
    sample(
        ((*model, dtype) for model in MODELS for dtype in (DType.BFLOAT16, DType.FLOAT32)),
        on_push=[
            (*MODELS[0], DType.BFLOAT16),
            (*MODELS[1], DType.BFLOAT16),
            (*MODELS[2], DType.FLOAT32),
            ("kimi_linear", 40, DType.FLOAT16),
        ],
    ),
)
def test_decoding_reads_and_writes_dense_caches_as_pages(
    family: str, max_seq: int, dtype: DType, artifacts: ArtifactCache
) -> None:
    exported = artifacts.get(family, "bfloat16", SIZES[family], dtype=dtype, max_seq_len=512)
    expected = decoded(TorchEngine(exported.folder, device="cpu"), max_seq, 6)
    engine, kernels = with_planned_kernels(exported)
    found = decoded(engine, max_seq, 6)
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one.astype(np.float32), other.astype(np.float64)) < TOLERANCES[dtype.value]
    layers = len(exported.config.kv_layers)
    assert kernels.calls["reshape_and_cache"] == 6 * layers > 0
    assert kernels.calls["paged_attention"] == 7 * layers  # one of them is of the prompt


# New tokens of two rows in each step: rows of one length, ragged ones, and ragged ones after a different number.
PROMPTS = ((18, 18), (25, 3), (2, 3), (0, 2))


def prompted(engine: TorchEngine, max_seq: int, prepares: bool) -> list[np.ndarray]:
    """Logits of every step of PROMPTS, and all states after the last; padding tokens are not 0."""
    engine._prepares_prompts = prepares
    rows = np.random.default_rng(5).integers(0, engine.config.vocab_size, (2, max_seq))
    states, done, found = engine.allocate_states(2, max_seq), [0, 0], []
    for counts in PROMPTS:
        new = [row[d : d + n] for row, d, n in zip(rows, done, counts, strict=True)]
        logits = engine.step(step_inputs(new, done, padding=engine.config.vocab_size - 1), states)
        found += [logits[row].copy() for row, count in enumerate(counts) if count]
        done = [d + n for d, n in zip(done, counts, strict=True)]
    return [*found, *(buffer.read_row(row) for buffer in states.buffers.values() for row in range(2))]


@pytest.mark.parametrize("prepares", [False, True], ids=["direct", "prepared"])
@pytest.mark.parametrize(
    ("family", "dtype"), [("nemotron_h", DType.BFLOAT16), ("qwen3", DType.FLOAT32), ("kimi_linear", DType.FLOAT16)]
)
def test_prompts_read_dense_caches_as_pages(
    family: str, dtype: DType, prepares: bool, artifacts: ArtifactCache
) -> None:
    exported = artifacts.get(family, "bfloat16", SIZES[family], dtype=dtype, max_seq_len=512)
    expected = prompted(TorchEngine(exported.folder, device="cpu"), 46, False)
    engine, kernels = with_planned_kernels(exported)
    found = prompted(engine, 46, prepares)
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one.astype(np.float32), other.astype(np.float64)) < TOLERANCES[dtype.value]
    layers = exported.config.kv_layers
    # Not in the last step, where the padding of the longer row would end after position 46, nor where torch's kernels
    # can: in a prepared step from the first token on that a layer sees as a whole.
    plain = sum(layer.sliding_window is None and layer.latent_dim is None for layer in layers) if prepares else 0
    assert kernels.calls["paged_attention"] == 3 * len(layers) - plain > 0


def test_a_head_writes_its_logits_where_they_are_read(artifacts: ArtifactCache) -> None:
    """The first step makes the memory, later ones are given it."""
    engine, kernels = with_planned_kernels(
        artifacts.get("nemotron_h", "bfloat16", SIZES["nemotron_h"], dtype=DType.BFLOAT16)
    )
    states, given = engine.allocate_states(1, 16), []
    launch = kernels.launch

    def noted(key: Any, plan: Any, inputs: Any, outputs: Any, packed: Any = ()) -> None:
        given.append(outputs[0].data_ptr())
        launch(key, plan, inputs, outputs, packed)

    kernels.launch = noted  # type: ignore[method-assign]
    for past in range(3):
        logits = engine.step(step_inputs([np.array([5 + past])], [past]), states)
        assert (given[-1] == logits.ctypes.data) is (past > 0)


@pytest.mark.parametrize(("max_seq", "room"), [(1, 16), (16, 16), (127, 128), (129, 256)])
def test_caches_have_room_for_whole_pages(max_seq: int, room: int) -> None:
    import torch

    key, value = block_caches(TorchDevice("cpu"), 2, (2, 3, max_seq, 8), torch.float32)
    assert key.shape == value.shape == (2, 3, max_seq, 8)
    assert key.stride() == value.stride() == (room * 24, 8, 24, 1)
