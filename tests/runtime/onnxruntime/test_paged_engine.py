"""Paged engines against transformers: rows of any number of tokens in one step, pages in random order, NaN around."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.exporter.families.registry import FAMILIES
from hybridge.runtime.engines.onnxruntime import columns, graph_cache, paged_engine
from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from hybridge.runtime.engines.onnxruntime.kernels import installed_kernels
from hybridge.runtime.engines.onnxruntime.model_file import read_model
from hybridge.runtime.engines.onnxruntime.paged_forms import PagedForm
from hybridge.runtime.engines.onnxruntime.paged_rewrite import rewrite_paged
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.verification.paged_sequences import PagedSequences
from hybridge.verification.reference import Reference, ReferenceRun
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.effort import sample
from tests.support.tiny_models import LIKE_LLAMA

TOLERANCE = 5e-5
# What each sequence is fed, step by step; rows of one and of many tokens, with and without a past, share steps.
LENGTHS = (37, 1, 9, 20)
ENGINES = ("onnxruntime", "onnxruntime-portable", "torch")
STEPS: list[tuple[dict[int, tuple[int, int]], int]] = [
    ({0: (0, 20)}, 0),
    ({2: (0, 1), 0: (20, 21), 3: (0, 7), 1: (0, 1)}, 2),
    ({0: (21, 36), 2: (1, 9), 3: (7, 8)}, 0),
    ({0: (36, 37), 3: (8, 9)}, 0),
    ({3: (9, 20)}, 1),
]


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


class Case:
    """One artifact, random sequences and what transformers makes of each."""

    def __init__(self, exported: Exported) -> None:
        self.exported = exported
        rng = np.random.default_rng(1)
        self.tokens = [rng.integers(0, exported.config.vocab_size, n) for n in LENGTHS]
        reference = Reference(exported.checkpoint, exported.config)
        self.expected: list[ReferenceRun] = [reference.run(tokens) for tokens in self.tokens]


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> Iterator[Case]:
    yield Case(artifacts.get(request.param, "float32", layout="paged", max_batch_size=6))


def engine_of(exported: Exported, name: str) -> PagedEngine:
    return create_paged_engine(exported.folder, name)


# On push ONNX Runtime runs every family with layers of its own, the other engines one with each kind of layer.
# Layers of other families, too.
TWICE = {
    *("bailing_hybrid", "bamba", "falcon_mamba", "granitemoehybrid", "mamba", "olmo_hybrid", "qwen3_5_moe_text"),
    *("jamba", "kimi_linear", "minimax", "qwen3_5_text", "recurrent_gemma", "zamba", "zamba2", "zaya"),
}
EVERY_ENGINE = ("llama", "nemotron_h", "qwen3_next")
CASES = sample(
    product(sorted(FAMILIES), ENGINES),
    on_push=[*product(set(FAMILIES) - LIKE_LLAMA - TWICE, ENGINES[:1]), *product(EVERY_ENGINE, ENGINES)],
)


@pytest.mark.parametrize(("case", "name"), CASES, indirect=["case"], scope="module")
def test_mixed_rows_equal_transformers(case: Case, name: str) -> None:
    check_mixed_rows(case, name, block_size=4)


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_any_block_size(artifacts: ArtifactCache, block_size: int) -> None:
    case = Case(artifacts.get("nemotron_h", "float32", layout="paged", max_batch_size=6))
    check_mixed_rows(case, "onnxruntime", block_size)


def check_mixed_rows(case: Case, name: str, block_size: int) -> None:
    engine = engine_of(case.exported, name)
    sequences = PagedSequences(engine, len(LENGTHS), sum(LENGTHS), block_size)
    for _ in LENGTHS:
        sequences.add()
    found: list[list[np.ndarray]] = [[] for _ in LENGTHS]
    for work, padding_rows in STEPS:
        logits = sequences.step({i: case.tokens[i][begin:end] for i, (begin, end) in work.items()}, padding_rows)
        for index, part in logits.items():
            found[index].append(part)
    for index, expected in enumerate(case.expected):
        assert relative_error(np.concatenate(found[index]), expected.logits) < TOLERANCE
        for state, wanted in expected.states.items():
            value = sequences.states(index)[state]
            value = value[:, -wanted.shape[1] :] if state.startswith("past_") else value
            assert relative_error(value, wanted) < TOLERANCE, state
    assert sequences.untouched()


@pytest.fixture(scope="module")
def hybrid(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("nemotron_h", "float32", layout="paged", max_batch_size=6)


@pytest.mark.parametrize("name", ENGINES)
def test_copied_and_swapped_sequences_continue_as_the_original(hybrid: Exported, name: str) -> None:
    engine = engine_of(hybrid, name)
    tokens = np.random.default_rng(3).integers(0, hybrid.config.vocab_size, 12)
    engine.allocate_pools(PoolSizes(9, 4, 5))
    assert engine.slot_bytes > 0 and engine.block_bytes(4) == 4 * engine.block_bytes(1) > 0
    engine.zero_slots([2])
    engine.step(packed(tokens[:10], 0, [7, 1, 4], 2))
    engine.copy_blocks([7, 1, 4], [0, 2, 3])
    engine.copy_slots([2], [0])
    held = engine.swap_out([7, 1, 4], [2])
    assert (held.blocks, held.slots) == (3, 1)
    assert held.nbytes == 3 * engine.block_bytes(4) + engine.slot_bytes
    first = engine.step(packed(tokens[10:], 10, [7, 1, 4], 2)).copy()
    np.testing.assert_array_equal(engine.step(packed(tokens[10:], 10, [0, 2, 3], 0)), first)
    engine.swap_in(held, [5, 6, 8], [4])
    np.testing.assert_array_equal(engine.step(packed(tokens[10:], 10, [5, 6, 8], 4)), first)
    with pytest.raises(EngineError, match="a copy of 2 blocks and 1 slots"):
        engine.swap_in(held, [5, 6], [4])


def test_slots_with_and_without_gaps_give_the_same(hybrid: Exported) -> None:
    engine = engine_of(hybrid, "onnxruntime")
    tokens = np.random.default_rng(4).integers(0, hybrid.config.vocab_size, (3, 8))
    found = []
    for slots in ((0, 1, 2, 3), (2, 0, 1, 3), (3, 0, 2, 1)):
        sequences = PagedSequences(engine, 3, 24, 4, slots=slots)
        handles = [sequences.add() for _ in range(3)]
        sequences.step({h: tokens[h, : 5 + h // 2] for h in handles})
        logits = sequences.step({h: tokens[h, 6:7] for h in reversed(handles)})
        found.append([*(logits[h] for h in handles), *(v for h in handles for v in sequences.states(h).values())])
        assert sequences.untouched()
    for others in found[1:]:
        for first, other in zip(found[0], others, strict=True):
            assert relative_error(other, first) < 1e-6


@pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")
@pytest.mark.parametrize("slots", [(3, 0, 2), (2, 3, 0)], ids=["in any order", "adjacent"])
def test_states_inside_of_rows_are_those_of_their_tokens_alone(hybrid: Exported, slots: tuple[int, int, int]) -> None:
    engine = engine_of(hybrid, "onnxruntime")
    assert engine.takes_checkpoints
    engine.allocate_pools(PoolSizes(9, 4, 6))
    tokens = np.random.default_rng(5).integers(0, hybrid.config.vocab_size, 18)
    engine.fill_pools(np.nan)
    engine.zero_slots([1, 4, 5])
    engine.step(
        PackedInputs(
            input_ids=tokens,
            positions=np.array([*range(8), *range(9), 0]),
            query_start_loc=np.array([0, 8, 17, 18], np.int32),
            seq_lens=np.array([8, 9, 1], np.int32),
            block_table=np.array([[3, 0, -1], [1, 2, 4], [6, -1, -1]], np.int32),
            slot_mapping=np.array([*range(12, 16), *range(4), *range(4, 12), 16, 24], np.int32),
            state_indices=np.array([4, 1, 5], np.int32),
            logits_indices=np.array([7], np.int32),
            # After 1 and 7 tokens of the first row, and 6 of the second.
            checkpoints=np.array([*zip((0, 6, 13), slots, strict=True)], np.int32),
        )
    )
    ends = {**dict(zip(slots, (tokens[:1], tokens[:7], tokens[8:14]), strict=True)), 1: tokens[8:17]}
    states = [spec.name for spec in hybrid.config.bindings.states if not spec.grows]
    found = {slot: [engine.read_pool(name)[slot].copy() for name in states] for slot in ends}
    for slot, alone in ends.items():
        engine.fill_pools(np.nan)
        engine.zero_slots([0])
        engine.step(packed(alone, 0, [0, 1, 2], 0))
        for name, state in zip(states, found[slot], strict=True):
            assert relative_error(state, engine.read_pool(name)[0]) < 1e-5, (slot, name)


def packed(tokens: np.ndarray, past: int, pages: list[int], slot: int) -> PackedInputs:
    """One row; the logits of its last token."""
    positions = np.arange(past, past + len(tokens))
    return PackedInputs(
        input_ids=tokens.astype(np.int64),
        positions=positions,
        query_start_loc=np.array([0, len(tokens)], np.int32),
        seq_lens=np.array([past + len(tokens)], np.int32),
        block_table=np.array([pages], np.int32),
        slot_mapping=np.array([pages[p // 4] * 4 + p % 4 for p in positions], np.int32),
        state_indices=np.array([slot], np.int32),
        logits_indices=np.array([len(tokens) - 1], np.int32),
    )


@pytest.mark.parametrize("packs", [True, False])
def test_weights_are_on_the_left_where_no_session_packs_them(
    hybrid: Exported, monkeypatch: pytest.MonkeyPatch, packs: bool
) -> None:
    monkeypatch.setattr(columns, "SMALLEST_WEIGHT", 1)
    form, kernels = PagedForm.TOKEN_PER_ROW, installed_kernels()
    rewritten = rewrite_paged(read_model(hybrid.folder), hybrid.config, form, kernels, neighbours=True, packs=packs)
    products = [node for node in rewritten.model.graph if node.op_type == "FusedMatMul"]
    left = [node for node in products if node.inputs[0] is not None and node.inputs[0].is_initializer()]
    assert products and bool(left) is not packs


@pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")
def test_the_library_reads_the_draft_tokens_of_a_row_packed(hybrid: Exported) -> None:
    model, kernels = read_model(hybrid.folder), installed_kernels()
    rewritten = rewrite_paged(
        model, hybrid.config, PagedForm.ONE_ROW, kernels, neighbours=True, tokens=5, defers=True
    ).model
    own = [node for node in rewritten.graph if node.op_type in ("CausalConv1d", "UpdateSsmState", "PagedAttention")]
    config = hybrid.config
    assert len(own) == 2 * len(config.recurrent_layers) + len(config.kv_layers)
    tokens = [node.inputs[0] for node in own if node.op_type != "PagedAttention"]
    assert all(value is not None and value.shape is not None and len(value.shape) == 2 for value in tokens)


def test_mixed_rows_of_weights_too_large_to_pack(artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_cache, "user_graph_cache", lambda: None)
    monkeypatch.setattr(columns, "SMALLEST_WEIGHT", 1)
    monkeypatch.setattr(paged_engine, "_MOST_PACKED_BYTES", 0)
    case = Case(artifacts.get("nemotron_h", "float32", layout="paged", max_batch_size=6))
    check_mixed_rows(case, "onnxruntime", block_size=4)


def test_weights_are_used_from_their_files(hybrid: Exported) -> None:
    held = engine_of(hybrid, "onnxruntime").memory_use()
    assert held["weights mapped from files"] > 0


@pytest.mark.parametrize("name", ENGINES)
def test_a_step_may_want_no_logits(hybrid: Exported, name: str) -> None:
    engine = engine_of(hybrid, name)
    engine.allocate_pools(PoolSizes(3, 4, 1))
    inputs = replace(packed(np.arange(5), 0, [2, 0], 0), logits_indices=np.zeros(0, np.int32))
    assert engine.step(inputs).shape == (0, hybrid.config.vocab_size)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query_start_loc": np.array([0, 4], np.int32)}, "rising bounds from 0 to 5"),
        ({"positions": np.arange(4)}, "positions and slot_mapping of 5 tokens"),
        ({"state_indices": np.zeros(2, np.int32)}, "state_indices of 1 rows"),
        ({"seq_lens": np.zeros(7, np.int32)}, "1 to 6 rows"),
    ],
    ids=str,
)
def test_a_step_that_contradicts_itself_is_refused(hybrid: Exported, changes: dict, words: str) -> None:
    engine = engine_of(hybrid, "onnxruntime")
    engine.allocate_pools(PoolSizes(3, 4, 1))
    with pytest.raises(EngineError, match=words):
        engine.step(replace(packed(np.arange(5), 0, [2, 0], 0), **changes))


def test_a_step_without_pools_is_refused(hybrid: Exported) -> None:
    with pytest.raises(EngineError, match="call allocate_pools first"):
        engine_of(hybrid, "onnxruntime").step(packed(np.arange(5), 0, [2, 0], 0))
