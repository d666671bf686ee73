"""Deferred states on a GPU: against the CPU, recorded checks and advances against direct ones, and served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.rollback.modes import AUTO, REPLAY, SNAPSHOT
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from tests.runtime.onnxruntime.steps import relative_error
from tests.runtime.serving.engine_cases import KnownAnswers
from tests.runtime.torch.test_gpu import BETWEEN
from tests.runtime.torch.test_kernel_calls import QWEN
from tests.runtime.torch.test_paged_gpu import assert_tie
from tests.runtime.torch.test_paged_kernel_calls import PAGED
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.deferred_rows import ROWS, Rows

pytestmark = pytest.mark.gpu
SIZES = {"nemotron_h": PAGED, "qwen3_next": {**QWEN, "head_dim": 64}}
MOST = 4
MODES: dict[str, str | Mapping[str, str]] = {"auto": AUTO, "snapshot": SNAPSHOT, "mixed": {"causal_conv1d": SNAPSHOT}}
# New tokens of each row in each step, and how many of them are right. More than MOST + 1 of one are a prompt's.
STEPS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 2, 5), (2, 1, 5)),
    ((2, 9, 4), (1, 9, 3)),
    ((5, 2, 1), (1, 2, 1)),
    ((4, 5, 2), (1, 1, 2)),
    ((4, 3, 5), (4, 2, 1)),
    ((5, 5, 2), (1, 1, 1)),
)


def exported(artifacts: ArtifactCache, family: str, dtype: DType) -> Exported:
    pytest.importorskip("onnxscript", reason="needs the export extra (onnxscript)")
    options = {"layout": "paged", "max_batch_size": 8, "max_seq_len": 600}
    return artifacts.get(family, "bfloat16", SIZES[family], dtype=dtype, **options)


def run_steps(engine: TorchPagedEngine, direct: bool = False) -> list[np.ndarray]:
    """Logits of all steps, and the states at the end. Where all rows are deferred, a step comes twice: the first time
    nothing advances them."""
    rows, found = Rows(engine), list[np.ndarray]()
    rng = np.random.default_rng(4)
    for counts, right in STEPS:
        new = [rng.integers(0, engine.config.vocab_size, count).tolist() for count in counts]
        deferred = np.array([1 < count <= 1 + MOST for count in counts])
        inputs, before = replace(rows.inputs(new), deferred=deferred), [*rows.states()]
        if deferred.all():
            engine.step(inputs)
            _run_directly(engine, direct)
            assert all(a.tobytes() == b.tobytes() for a, b in zip(rows.states(), before, strict=True))
        result = engine.launch(inputs)
        engine.advance(np.where(deferred, right, 0))
        # Unread logits may be read after the states have advanced.
        found.append(result.all_logits().copy())
        rows.accept(new, right)
        _run_directly(engine, direct)
    return [*found, *rows.states()]


def _run_directly(engine: TorchPagedEngine, direct: bool) -> None:
    """Let no step be recorded that was not before."""
    checks = (*engine.draft_steps.values(), *engine.mixed_steps.values())
    for repeated in (*(step.repeated for step in checks), *(step.repeated for step in engine.advance_steps)):
        repeated.direct = direct


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("family", "dtype"), [*(("nemotron_h", dtype) for dtype in BETWEEN), ("qwen3_next", DType.FLOAT32)]
)
def test_deferred_states_agree_with_the_cpu(family: str, dtype: DType, mode: str, artifacts: ArtifactCache) -> None:
    folder, found = exported(artifacts, family, dtype).folder, []
    for device in ("cuda", "cpu"):
        engine = TorchPagedEngine(folder, device=device)
        engine.prepare_rollback(ROWS, 1 + MOST, MODES[mode])
        found.append(run_steps(engine))
    for one, other in zip(*found, strict=True):
        assert relative_error(one, other) < BETWEEN[dtype]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", SIZES)
def test_recorded_checks_and_advances_are_the_direct_ones_bit_for_bit(
    family: str, mode: str, artifacts: ArtifactCache
) -> None:
    folder, found = exported(artifacts, family, DType.BFLOAT16).folder, []
    for direct in (True, False):
        engine = TorchPagedEngine(folder, device="cuda")
        engine.prepare_rollback(ROWS, 1 + MOST, MODES[mode])
        found.append(run_steps(engine, direct))
        assert any(step.repeated.is_replayed for step in engine.draft_steps.values()) is not direct
        assert any(step.repeated.is_replayed for step in engine.advance_steps) is not direct
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("mode", [REPLAY, SNAPSHOT, "mixed"])
@pytest.mark.parametrize("family", SIZES)
def test_tokens_are_those_of_plain_greedy(family: str, mode: str, artifacts: ArtifactCache) -> None:
    """With the prefix cache, a step ahead of the host."""
    folder = exported(artifacts, family, DType.FLOAT32).folder
    engine = TorchPagedEngine(folder, device="cuda")
    rng, sampling = np.random.default_rng(6), SamplingParams(ignore_eos=True)
    prompts = [rng.integers(0, engine.config.vocab_size, size).tolist() for size in (3, 17, 30, 80, 120, 5)]
    serving = {"memory_bytes": 64 << 20, "prefix_cache": "radix"}
    plain = [
        a.token_ids for a in LLM(folder, engine, serving=ServingSettings(**serving)).generate(prompts, sampling, 60)
    ]
    texts = [p + list(t) for p, t in zip(prompts, plain, strict=True)]
    drafter = KnownAnswers(texts, engine.config.vocab_size, 2)
    speculation = SpeculationSettings(MOST, drafter, adaptive=False, mode=MODES.get(mode, mode))
    llm = LLM(folder, engine, serving=ServingSettings(**serving, speculation=speculation))
    for index, answer in enumerate(llm.generate(prompts, sampling, 60)):
        if answer.token_ids != plain[index]:
            assert_tie(engine, tuple(prompts[index]), answer.token_ids, plain[index])
    metrics = llm.loop.speculation
    assert metrics is not None and 0 < metrics.accepted < metrics.proposed
    assert metrics.state_bytes == engine.rollback_token_bytes <= engine.slot_bytes
    assert any(step.repeated.is_replayed for step in engine.advance_steps)
