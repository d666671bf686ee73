"""Captured steps, splitting, memory and failures of the paged TensorRT engine."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hybridge.artifact.engine_record import ENGINE_FILE, HEAD_FOLDER, write_engine_record
from hybridge.artifact.errors import ArtifactError, EngineError
from hybridge.cli.inspection_tables import tables_of
from hybridge.cli.text import bytes_text
from hybridge.inspection.engine import inspect_engine
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.tensorrt.errors import OutOfDeviceMemory
from hybridge.runtime.engines.tensorrt.paged.memory_plan import memory_plan
from hybridge.runtime.engines.tensorrt.paged.step_parts import step_parts
from hybridge.trt_plugins.build.builder import build_engine
from hybridge.verification.paged_sequences import PagedSequences
from tests.support.artifacts import ArtifactCache

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from tests.runtime.tensorrt.paged_double import ParsedEngine, open_double

ROWS, MAX_SEQ = 5, 96


@pytest.fixture(scope="module")
def parsed(artifacts: ArtifactCache, tmp_path_factory: pytest.TempPathFactory) -> ParsedEngine:
    sizes = {"layout": "paged", "max_batch_size": ROWS, "max_seq_len": MAX_SEQ}
    folder = artifacts.get("llama", "float32", {"num_hidden_layers": 1}, **sizes).folder
    return ParsedEngine(folder, tmp_path_factory.mktemp("engine"), plugins="off")


def test_steps_of_a_bucket_are_one_launch(parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_double(parsed, monkeypatch)
    engine, rng = opened.engine, np.random.default_rng(0)
    assert engine.bindings.buckets == (1, 2, 4, 5)
    pools = PagedSequences(engine, 3, 200, 16)
    handles = [pools.add() for _ in range(3)]
    pools.step({handle: rng.integers(0, 97, 4 + handle) for handle in handles})
    # Of 15 logits, an engine of five rows gives five at once.
    assert sum(context.enqueues for context in opened.step.contexts) == 3 and not engine.steps.captured
    enqueues = []
    for _ in range(8):
        pools.step({handle: rng.integers(0, 97, 1) for handle in handles})
        enqueues.append(sum(context.enqueues for context in opened.step.contexts))
    # Three rows run in the bucket of four, in two turns of the pools: each directly once and captured once.
    assert {size.rows for size, *_ in engine.steps.captured} == {4}
    assert enqueues == [4, 5, 6, *[7] * 5]
    assert [graph.launches for graph in opened.memory.graphs] == [3, 3]
    tensors = len(parsed.record.bindings)
    assert all(context.address_calls <= tensors for context in opened.step.contexts[1:])
    opened.close()


def test_a_step_with_more_logits_than_the_engine_gives_is_split(
    parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_double(parsed, monkeypatch)
    tokens = np.random.default_rng(1).integers(0, 97, (2, 13))
    found = []
    for chunks in ((13,), (5, 5, 3), (1,) * 13):
        pools = PagedSequences(opened.engine, 2, 60, 16)
        handles = [pools.add(), pools.add()]
        logits: list[np.ndarray] = []
        for end in np.cumsum(chunks).tolist():
            begin = end - chunks[len(logits)]
            step = pools.step({handle: tokens[handle, begin:end] for handle in handles})
            logits.append(np.stack([step[handle] for handle in handles]))
        found.append(np.concatenate(logits, axis=1))
    assert np.abs(found[0] - found[1]).max() < 1e-5 and np.abs(found[0] - found[2]).max() < 1e-5
    opened.close()


def packed(counts: list[int], logits: list[int], deferred: list[bool] | None = None) -> PackedInputs:
    bounds = np.cumsum([0, *counts]).astype(np.int32)
    positions = np.concatenate([10 * row + np.arange(n) for row, n in enumerate(counts)])
    lengths = [10 * row + n for row, n in enumerate(counts)]
    table = np.arange(len(counts), dtype=np.int32)[:, None]
    return PackedInputs(
        np.arange(bounds[-1]),
        positions,
        bounds,
        np.array(lengths, np.int32),
        table,
        positions.astype(np.int32),
        table[:, 0],
        np.array(logits, np.int32),
        None if deferred is None else np.array(deferred),
    )


def test_parts_cover_every_token_once_and_in_order() -> None:
    inputs = packed([7, 1, 9, 2], [0, 2, 3, 6, 7, 8, 12, 16, 18])
    parts = step_parts(inputs, 1, 2)
    assert np.concatenate([part.inputs.input_ids for part in parts]).tolist() == list(range(19))
    assert all(len(part.inputs.logits_indices) <= 2 for part in parts)
    assert np.concatenate([part.logits for part in parts]).tolist() == list(range(9))
    for part in parts:
        bounds, rows = part.inputs.query_start_loc, part.rows
        ends = part.inputs.positions[bounds[1:] - 1] + 1
        assert part.inputs.seq_lens.tolist() == ends.tolist() and (bounds[1:] > bounds[:-1]).all()
        assert part.inputs.state_indices.tolist() == rows.tolist()
        found = part.inputs.input_ids[part.inputs.logits_indices]
        assert found.tolist() == inputs.logits_indices[part.logits].tolist()


def test_rows_with_draft_tokens_run_last_and_whole() -> None:
    inputs = packed([3, 9, 1, 3], list(range(16)), [True, False, False, True])
    *first, last = step_parts(inputs, 3, 12)
    assert [part.rows.tolist() for part in first] == [[1]] and last.rows.tolist() == [0, 2, 3]
    assert last.inputs.deferred is not None and last.inputs.deferred.tolist() == [True, False, True]
    assert last.logits.tolist() == [0, 1, 2, *range(12, 16)]
    (whole,) = step_parts(replace(inputs, deferred=None), 3, 16)
    assert whole.inputs.input_ids is inputs.input_ids


def test_the_planned_memory_is_what_the_engine_takes(parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = memory_plan(parsed.record)
    opened = open_double(parsed, monkeypatch)
    own = plan.activations + 2 * (plan.inputs + plan.logits + plan.sampling) + plan.sampled + plan.drafts
    assert sum(allocation.nbytes for allocation in opened.memory.live) == own
    opened.engine.allocate_pools(PoolSizes(7, 16, 0))
    assert sum(allocation.nbytes for allocation in opened.memory.live) == own + 7 * plan.block
    assert plan.block == opened.engine.block_bytes(16) and sum(opened.engine.memory_use().values()) == plan.fixed
    # Four buckets of 1, 2, 4 and 5 rows, one width, with and without lists and launched ahead in two turns, and a graph
    # for each turn of the pools.
    assert (plan.graphs, plan.contexts) == (32, 33)
    opened.close()


def test_inspect_shows_the_planned_memory(parsed: ParsedEngine) -> None:
    write_engine_record(parsed.files / ENGINE_FILE, parsed.record)
    inspection, console = inspect_engine(parsed.files), Console(file=io.StringIO(), width=120)
    plan = memory_plan(parsed.record)
    assert inspection.memory == plan and inspection.to_json()["memory"]["graphs"] == 32
    for table in tables_of(inspection):
        console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "memory (rtx-ada)" in shown and "32 at most, for 1, 2, 4, 5 rows" in shown
    assert f"{bytes_text(plan.activations)}, shared by 33 contexts" in shown


def test_inspect_shows_the_memory_of_a_head_too(parsed: ParsedEngine, tmp_path: Path) -> None:
    head = tmp_path / "engine" / HEAD_FOLDER
    for folder in (head.parent, head):
        folder.mkdir()
        shutil.copy(parsed.files / parsed.record.engine, folder)
        write_engine_record(folder / ENGINE_FILE, parsed.record)
    inspection, console = inspect_engine(head.parent), Console(file=io.StringIO(), width=120)
    plan = memory_plan(parsed.record)
    assert inspection.head == parsed.record and inspection.head_memory == plan
    for table in tables_of(inspection):
        console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "memory of the prediction head (rtx-ada)" in shown
    assert f"{bytes_text(2 * (plan.fixed + plan.rows))}, with full rows" in shown
    (head / parsed.record.engine).write_bytes(b"")
    with pytest.raises(ArtifactError, match=f"{HEAD_FOLDER}/{parsed.record.engine}: expected .* bytes, found 0"):
        inspect_engine(head.parent)


def test_too_little_memory_leaves_nothing(parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = memory_plan(parsed.record)
    own = plan.activations + 2 * (plan.inputs + plan.sampling) + plan.sampled + plan.logits
    with pytest.raises(OutOfDeviceMemory, match="for logits"):
        open_double(parsed, monkeypatch, capacity=own)
    opened = open_double(parsed, monkeypatch)
    opened.memory.capacity = sum(allocation.nbytes for allocation in opened.memory.live) + plan.block
    with pytest.raises(OutOfDeviceMemory, match="for the pool"):
        opened.engine.allocate_pools(PoolSizes(9, 16, 0))
    opened.close()


def test_what_the_engine_was_not_built_for_is_refused(parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_double(parsed, monkeypatch)
    engine = opened.engine
    most, _ = engine.pool_limits
    with pytest.raises(EngineError, match=f"at most {most} blocks, .* found {most + 1}: lower"):
        engine.allocate_pools(PoolSizes(most + 1, 16, 0))
    with pytest.raises(EngineError, match=r"blocks of 16 tokens, .* found 8"):
        engine.allocate_pools(PoolSizes(4, 8, 0))
    with pytest.raises(EngineError, match=r"built without draft tokens: .*--speculative-tokens"):
        engine.prepare_rollback(1, 2)
    engine.allocate_pools(PoolSizes(4, 16, 0))
    entered = opened.memory.entered
    engine.copy_blocks([0], [1])
    assert opened.memory.entered > entered  # a thread may begin with any call
    step = replace(packed([2], [1]), state_indices=np.full(1, -1, np.int32))
    with pytest.raises(EngineError, match="token ids from 0 to 96, found 0 to 97"):
        engine.step(replace(step, input_ids=np.array([0, 97])))
    opened.close()
    with pytest.raises(EngineError, match="an open engine, found one that was closed"):
        engine.step(step)


def test_another_engine_than_engine_json_describes_is_refused(
    parsed: ParsedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"block_table": {"shape": ["rows", 3]}}
    with pytest.raises(EngineError, match=r"the engine's block_table: expected .* run hybridge build-engine again"):
        open_double(parsed, monkeypatch, changes=changes)
    buckets = replace(parsed.record, row_buckets=[1, 2])
    with pytest.raises(EngineError, match="row_buckets up to the 5 rows"):
        memory_plan(buckets)


@pytest.mark.slow
def test_a_build_records_what_the_doubles_have(parsed: ParsedEngine, tmp_path: Path) -> None:
    folder = shutil.copytree(parsed.folder, tmp_path / "artifact")
    options = parsed.parsed.plan.options
    built, made = build_engine(folder, options), parsed.record
    for name in ("bindings", "profiles", "row_buckets", "max_batch_size", "max_seq_len", "speculative_tokens"):
        assert getattr(built, name) == getattr(made, name), name
