"""Steps of candidate tokens on a GPU: against the CPU, recorded against direct, and served."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from hybridge.verification.paged_sequences import PagedSequences
from tests.runtime.onnxruntime.steps import relative_error
from tests.runtime.serving.test_real_speculation import Knowing
from tests.runtime.torch.test_gpu import BETWEEN
from tests.runtime.torch.test_kernel_calls import QWEN
from tests.runtime.torch.test_paged_gpu import assert_tie
from tests.runtime.torch.test_paged_kernel_calls import BLOCK, PAGED
from tests.support.artifacts import ArtifactCache, Exported

pytestmark = pytest.mark.gpu
SIZES = {"nemotron_h": PAGED, "qwen3_next": {**QWEN, "head_dim": 64}}
MOST = 4
# New tokens of each sequence in each step, and how many of them are right.
STEPS: tuple[tuple[dict[int, int], dict[int, int]], ...] = (
    ({0: 9, 1: 1, 2: 5}, {}),
    ({0: 5, 1: 3, 2: 1}, {0: 2, 1: 3, 2: 1}),
    ({2: 4, 0: 5}, {2: 1, 0: 5}),
    ({1: 70, 0: 2, 2: 5}, {0: 1, 2: 4}),
    ({0: 1, 1: 1, 2: 1}, {}),
)


def exported(artifacts: ArtifactCache, family: str, dtype: DType) -> Exported:
    pytest.importorskip("onnxscript", reason="needs the export extra (onnxscript)")
    options = {"layout": "paged", "max_batch_size": 8, "max_seq_len": 600, "speculative_tokens": MOST}
    return artifacts.get(family, "bfloat16", SIZES[family], dtype=dtype, **options)


def run_steps(engine: TorchPagedEngine) -> list[np.ndarray]:
    """Logits of all tokens, and the states of all sequences at the end."""
    sequences = PagedSequences(engine, 3, 400, BLOCK)
    handles = [sequences.add() for _ in range(3)]
    tokens = np.random.default_rng(2).integers(0, engine.config.vocab_size, (3, 200))
    logits: list[np.ndarray] = []
    fed = [0] * 3
    for counts, right in STEPS:
        work = {handles[i]: tokens[i, fed[i] : fed[i] + n] for i, n in counts.items()}
        logits += sequences.verify(work, {handles[i]: right.get(i, n) for i, n in counts.items()}).values()
        for i, n in counts.items():
            fed[i] += right.get(i, n)
    assert sequences.untouched()
    return [*logits, *(state for handle in handles for state in sequences.states(handle).values())]


@pytest.mark.parametrize(
    ("family", "dtype"), [*(("nemotron_h", dtype) for dtype in BETWEEN), ("qwen3_next", DType.FLOAT32)]
)
def test_candidates_agree_with_the_cpu(family: str, dtype: DType, artifacts: ArtifactCache) -> None:
    folder = exported(artifacts, family, dtype).folder
    gpu, cpu = (run_steps(TorchPagedEngine(folder, device=device)) for device in ("cuda", "cpu"))
    for found, wanted in zip(gpu, cpu, strict=True):
        assert relative_error(found, wanted) < BETWEEN[dtype]


@pytest.mark.parametrize("family", SIZES)
def test_a_replayed_step_is_the_direct_one_bit_for_bit(family: str, artifacts: ArtifactCache) -> None:
    folder, found = exported(artifacts, family, DType.BFLOAT16).folder, []
    for direct in (True, False):
        engine = TorchPagedEngine(folder, device="cuda")
        sequences = PagedSequences(engine, 3, 600, BLOCK)
        handles = [sequences.add() for _ in range(3)]
        rng = np.random.default_rng(3)
        values = [*sequences.step({h: rng.integers(0, engine.config.vocab_size, 7 + h) for h in handles}).values()]
        for _ in range(20):
            counts = {h: int(rng.integers(1, MOST + 2)) for h in handles}
            work = {h: rng.integers(0, engine.config.vocab_size, n) for h, n in counts.items()}
            values += sequences.verify(work, {h: int(rng.integers(1, n + 1)) for h, n in counts.items()}).values()
            for step in engine.candidate_steps.values():
                step.repeated.direct = direct
        replayed = [step.repeated.is_replayed for step in engine.candidate_steps.values()]
        assert any(replayed) is not direct
        states = [value for handle in handles for value in sequences.states(handle).values()]
        found.append([*values, *states])
        assert sequences.untouched()
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("family", SIZES)
def test_tokens_are_those_of_plain_greedy(family: str, artifacts: ArtifactCache) -> None:
    folder = exported(artifacts, family, DType.FLOAT32).folder
    engine = TorchPagedEngine(folder, device="cuda")
    rng, sampling = np.random.default_rng(6), SamplingParams(ignore_eos=True)
    prompts = [rng.integers(0, engine.config.vocab_size, size).tolist() for size in (3, 17, 30, 80, 120, 5)]
    serving = {"memory_bytes": 64 << 20, "prefix_cache": "radix"}
    plain = [
        a.token_ids for a in LLM(folder, engine, serving=ServingSettings(**serving)).generate(prompts, sampling, 60)
    ]
    texts = [p + list(t) for p, t in zip(prompts, plain, strict=True)]
    drafter = Knowing(texts, engine.config.vocab_size, 2)
    speculation = SpeculationSettings(MOST, drafter, adaptive=False)
    llm = LLM(folder, engine, serving=ServingSettings(**serving, speculation=speculation))
    for index, answer in enumerate(llm.generate(prompts, sampling, 60)):
        if answer.token_ids != plain[index]:
            assert_tie(engine, tuple(prompts[index]), answer.token_ids, plain[index])
    metrics = llm.loop.speculation
    assert metrics is not None and 0 < metrics.accepted < metrics.proposed
    assert any(step.repeated.is_replayed for step in engine.candidate_steps.values())
