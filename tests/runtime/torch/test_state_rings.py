"""Decode steps over states with rings: the logits and states of plain steps, whatever comes between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.runtime.engines.artifact_graph import read_model
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.torch.fusion import Phase, fuse_graph
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.ringed_pools import RingedPools
from hybridge.runtime.llm import LLM
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from hybridge.trt_plugins.specs.ring import RING
from hybridge.verification.paged_sequences import PagedSequences
from tests.runtime.packed_steps import Row, packed_step
from tests.runtime.serving.engine_cases import check_disturbed_requests
from tests.support.artifacts import ArtifactCache, Exported

BLOCK = 16
# New tokens of each sequence: prompts, decoding until a ring is full and further, a chunk next to a decoding row,
# decoding with a new sequence, a step with one row less.
STEPS = (
    {0: 5, 1: 1},
    *({0: 1, 1: 1} for _ in range(RING + 3)),
    {0: 1, 1: 4},
    {0: 1, 1: 1, 2: 1},
    *({0: 1, 2: 1} for _ in range(3)),
    {0: 1, 1: 1, 2: 1},
)
TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=["nemotron_h", pytest.param("qwen3_next", marks=pytest.mark.slow)])
def hybrid(artifacts: ArtifactCache, request: pytest.FixtureRequest) -> Exported:
    return artifacts.get(request.param, "float32", layout="paged")


def run_steps(engine: TorchPagedEngine) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Logits of all tokens, and the states of all sequences at the end."""
    sequences = PagedSequences(engine, 3, 60, BLOCK)
    handles = [sequences.add() for _ in range(3)]
    tokens = np.random.default_rng(2).integers(0, engine.config.vocab_size, (3, 60))
    logits: list[np.ndarray] = []
    fed = [0] * 3
    for step in STEPS:
        work = {handles[i]: tokens[i, fed[i] : fed[i] + n] for i, n in step.items()}
        logits += sequences.step(work).values()
        for i, n in step.items():
            fed[i] += n
    assert sequences.untouched()
    return logits, [state for handle in handles for state in sequences.states(handle).values()]


def check_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        error = np.linalg.norm((one - other).astype(np.float64)) / max(np.linalg.norm(other.astype(np.float64)), 1e-9)
        assert error < TOLERANCE


def ringed_engine(folder: Path, device: str = "cpu") -> TorchPagedEngine:
    engine = TorchPagedEngine(folder, device)
    engine.use_state_rings(1)
    return engine


def test_steps_give_the_logits_and_states_of_plain_steps(hybrid: Exported) -> None:
    ringed = ringed_engine(hybrid.folder)
    (logits, states), (expected, expected_states) = run_steps(ringed), run_steps(TorchPagedEngine(hybrid.folder, "cpu"))
    check_equal(logits, expected)
    check_equal(states, expected_states)
    assert ringed.slot_bytes > TorchPagedEngine(hybrid.folder, "cpu").slot_bytes


def test_what_follows_a_scan_is_fused_as_in_plain_steps(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("nemotron_h", "bfloat16", layout="paged")
    norms = []
    for phase in (Phase.DECODE, Phase.RING):
        model = read_model(exported.folder)
        fuse_graph(model, phase, merge=False)
        norms.append([node.outputs[0].name for node in model.graph if node.op_type == "GroupedNorm"])
    assert norms[0] == norms[1] and len(norms[0]) == exported.config.layer_types.count("mamba")


def decoded(engine: TorchPagedEngine, slots: list[int], length: int, tokens: int) -> np.ndarray:
    """Logits after ``tokens`` steps of one token in each of ``slots``, which have ``length`` tokens."""
    rows = [Row(slot, slot, [0] * length) for slot in slots]
    for _ in range(tokens):
        found = engine.step(packed_step(rows, [[7]] * len(rows), [{0}] * len(rows), BLOCK * 2))
        for row in rows:
            row.tokens.append(7)
    return found


def test_whatever_takes_a_state_gets_it_whole(hybrid: Exported) -> None:
    """Copies, host copies and packed states of a slot whose ring is not empty; and a slot that gets another state."""
    engines = [ringed_engine(hybrid.folder), TorchPagedEngine(hybrid.folder, "cpu")]
    found = []
    for engine in engines:
        engine.allocate_pools(PoolSizes(6, 2 * BLOCK, 6, num_packed=1, packed="int8"))
        engine.fill_pools(0.0)
        decoded(engine, [0, 1], 0, 5)
        engine.copy_blocks([0], [2])
        engine.copy_slots([0], [2])
        engine.swap_in(engine.swap_out([1], [1]), [3], [3])
        engine.pack_slots([1], [0])
        logits = [decoded(engine, [0, 1, 2], 5, 2), decoded(engine, [3], 5, 2)]
        # Slot 0 had a token in its ring, and now has other states.
        engine.zero_slots([0])
        engine.unpack_slots([0], [1])
        engine.copy_slots([3], [2])
        logits.append(decoded(engine, [0, 1, 2], 7, 3))
        pools = [engine.read_pool(spec.name) for spec in engine.pool_specs if not spec.grows]
        found.append((logits, [pool[:4] for pool in pools]))
    for one, other in zip(*found, strict=True):
        check_equal(one, other)


def test_steps_of_few_rows_write_their_states(hybrid: Exported) -> None:
    engine = TorchPagedEngine(hybrid.folder, "cpu")
    engine.use_state_rings(2)
    engine.allocate_pools(PoolSizes(2, 2 * BLOCK, 2))
    engine.zero_slots([0, 1])
    assert isinstance(engine.pools, RingedPools)
    decoded(engine, [0, 1], 0, 3)
    assert engine.pools.rings.used == {0, 1}
    decoded(engine, [1], 3, 1)
    assert engine.pools.rings.used == {0}
    assert engine.pools.rings.lengths.tolist()[:2] == [3, 0]


@pytest.mark.slow
def test_disturbed_requests_get_the_tokens_of_each_alone(hybrid: Exported) -> None:
    engine = ringed_engine(hybrid.folder)

    def poison(blocks: Sequence[int], slots: Sequence[int]) -> None:
        assert isinstance(engine.pools, RingedPools)
        tensors = {**engine.pools.tensors, **engine.pools.rings.tensors}
        for name, pool in tensors.items():
            if name.startswith("kv"):
                pool[:, list(blocks)] = float("nan")
            elif pool.is_floating_point():
                pool[list(slots)] = float("nan")

    check_disturbed_requests(engine, poison)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["replay", "snapshot"])
def test_speculation_with_a_prefix_cache(mode: str, hybrid: Exported) -> None:
    rng = np.random.default_rng(4)
    prompts = [(rng.integers(0, hybrid.config.vocab_size, 9).tolist() * 3)[:n] for n in (20, 27, 9)]
    answers = []
    for rows in (None, 1):
        speculation = SpeculationSettings(2, mode=mode) if rows else None
        settings = ServingSettings(ring_rows=rows, speculation=speculation, prefix_cache="radix")
        with LLM(hybrid.folder, engine="torch", serving=settings) as llm:
            for _ in range(2):
                answers.append([each.token_ids for each in llm.generate(prompts, max_new_tokens=24)])
    assert answers[0] == answers[1] == answers[2] == answers[3]


def test_an_engine_without_rings_says_so(hybrid: Exported) -> None:
    with pytest.raises(EngineError, match="the onnxruntime engine writes its states in every step: use torch"):
        LLM(hybrid.folder, engine="onnxruntime", serving=ServingSettings(ring_rows=8))
    with pytest.raises(SettingError, match="ring_rows: expected"):
        ServingSettings(ring_rows=0)
