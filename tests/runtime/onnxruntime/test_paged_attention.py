"""The engine's form of paged attention against the eager operators: sinks, caps, windows, all kinds of run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper

from hybridge.runtime.engines.onnxruntime.cpu_library import CPU_DOMAIN
from hybridge.runtime.engines.onnxruntime.engine_inputs import KvShape
from hybridge.runtime.engines.onnxruntime.graph_edit import remove_dead_code
from hybridge.runtime.engines.onnxruntime.kernels import Kernels, installed_kernels, quiet_options
from hybridge.runtime.engines.onnxruntime.opset import lower_opset
from hybridge.runtime.engines.onnxruntime.paged_attention import KV_POOL_ORDER, use_paged_attention
from hybridge.runtime.engines.onnxruntime.paged_feeds import PagedRun, begun_blocks, by_slot, paged_runs, run_feeds
from hybridge.runtime.engines.onnxruntime.paged_forms import PagedForm
from hybridge.runtime.engines.onnxruntime.session import register_cpu_library
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.trt_plugins import torch_ops
from tests.runtime.onnxruntime.op_graphs import NEWEST

SIZES = PoolSizes(num_blocks=13, block_size=4, num_slots=0)
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 8
ATTRIBUTES = [
    {},
    {"softcap": 0.8},
    {"sliding_window": 3},
    {"sliding_window": 1, "scale": 0.4},
    {"sliding_window": 6, "softcap": 1.2},
]


def graph(attributes: dict, sinks: np.ndarray | None, parts: int) -> ir.Model:
    def info(name: str, dtype: int, *shape: int | str):  # type: ignore[no-untyped-def]  # protobuf
        return helper.make_tensor_value_info(name, dtype, shape)

    def integers(name: str, *shape: str):  # type: ignore[no-untyped-def]
        return info(name, TensorProto.INT32, *shape)

    pool = (parts, "num_blocks", "block_size", KV_HEADS, HEAD_DIM)
    tokens = [info(n, TensorProto.FLOAT, "tokens", KV_HEADS, HEAD_DIM) for n in ("key", "value")]
    rows = [integers("block_table", "rows", "m"), integers("query_start_loc", "bounds"), integers("seq_lens", "rows")]
    query = info("query", TensorProto.FLOAT, "tokens", HEADS, HEAD_DIM)
    domain = "trt_edgellm"
    cache = ["key", "value", "pool", "slot_mapping"]
    attend = ["query", "present_pool", "block_table", "query_start_loc", "seq_lens", "sinks"]
    nodes = [
        helper.make_node("reshape_and_cache", cache, ["present_pool"], domain=domain),
        helper.make_node("paged_attention", attend, ["y"], domain=domain, **attributes),
    ]
    values = np.full(HEADS, -np.inf, np.float32) if sinks is None else sinks
    made = helper.make_graph(
        nodes,
        "attention",
        [query, *tokens, info("pool", TensorProto.FLOAT, *pool), integers("slot_mapping", "tokens"), *rows],
        [info("y", TensorProto.FLOAT, "tokens", HEADS, HEAD_DIM), info("present_pool", TensorProto.FLOAT, *pool)],
        [helper.make_tensor("sinks", TensorProto.FLOAT, [HEADS], values)],
    )
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(domain, 2)]
    return ir.serde.deserialize_model(helper.make_model(made, opset_imports=opsets, ir_version=10))


def session(
    attributes: dict, sinks: np.ndarray | None, parts: int, form: PagedForm, kernels: Kernels | None
) -> ort.InferenceSession:
    model = graph(attributes, sinks, parts)
    use_paged_attention(model, form, kernels)
    remove_dead_code(model)
    for value in [value for value in model.graph.inputs if not value.uses()]:
        model.graph.inputs.remove(value)
    lower_opset(model, installed_kernels())
    options = quiet_options()
    if CPU_DOMAIN in model.graph.opset_imports:
        register_cpu_library(options)
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def step(counts: list[int], past: list[int], rng: np.random.Generator) -> PackedInputs:
    totals = [n + p for n, p in zip(counts, past, strict=True)]
    pages = rng.permutation(SIZES.num_blocks).tolist()
    table = np.full((len(counts), 8), -1, np.int32)
    for row, total in enumerate(totals):
        for index in range(-(-total // SIZES.block_size)):
            table[row, index] = pages.pop()
    positions = np.concatenate([np.arange(p, t) for p, t in zip(past, totals, strict=True)])
    rows = np.repeat(np.arange(len(counts)), counts)
    slots = table[rows, positions // SIZES.block_size] * SIZES.block_size + positions % SIZES.block_size
    return PackedInputs(
        np.zeros(len(rows), np.int64),
        positions,
        np.array([0, *np.cumsum(counts)], np.int32),
        np.array(totals, np.int32),
        table,
        slots.astype(np.int32),
        np.full(len(counts), -1, np.int32),
        np.zeros(0, np.int32),
    )


def form_of(run: PagedRun) -> PagedForm:
    if run.is_ragged:
        return PagedForm.RAGGED
    return PagedForm.ONE_ROW if run.time > 1 else PagedForm.TOKEN_PER_ROW


# Rows that share a run, though some have more tokens than others.
@pytest.mark.parametrize("together", [[], [0, 1], [0, 1, 2, 3], [1, 2, 3]], ids=str)
@pytest.mark.parametrize(
    ("with_sinks", "parts"), [(False, 2), (True, 2), (False, 1)], ids=["no-sinks", "sinks", "latents"]
)
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_every_run_equals_the_eager_operators(
    attributes: dict, with_sinks: bool, parts: int, together: list[int]
) -> None:
    torch_ops.register()
    rng = np.random.default_rng(7)
    sinks = rng.standard_normal(HEADS).astype(np.float32) if with_sinks else None
    inputs = step([1, 5, 1, 9], [6, 0, 0, 4], rng)
    tokens = len(inputs.input_ids)
    query = rng.standard_normal((tokens, HEADS, HEAD_DIM)).astype(np.float32)
    new = rng.standard_normal((parts, tokens, KV_HEADS, HEAD_DIM)).astype(np.float32)[[0, -1]]
    pool = rng.standard_normal((parts, SIZES.num_blocks, SIZES.block_size, KV_HEADS, HEAD_DIM)).astype(np.float32)
    ops = torch.ops.trt_edgellm
    expected_pool = ops.reshape_and_cache.packed(*map(torch.from_numpy, (*new, pool, inputs.slot_mapping)))
    rows = [torch.from_numpy(a) for a in (inputs.block_table, inputs.query_start_loc, inputs.seq_lens)]
    expected = ops.paged_attention.packed(
        torch.from_numpy(query),
        expected_pool,
        *rows,
        None if sinks is None else torch.from_numpy(sinks),
        attributes.get("scale", 0.0),
        attributes.get("sliding_window", 0),
        attributes.get("softcap", 0.0),
    ).numpy()
    held = np.concatenate([pool, np.zeros_like(pool[:, :1])], axis=1).transpose(KV_POOL_ORDER).copy()
    shape = KvShape(KV_HEADS, attributes.get("sliding_window", 0), parts)
    for run in paged_runs(inputs, together=together):
        feeds = {"query": query[run.tokens], "key": new[0, run.tokens], "value": new[1, run.tokens], "pool": held}
        form = form_of(run)
        forms = {
            PagedForm.ONE_ROW: (None, NEWEST, installed_kernels()),
            PagedForm.TOKEN_PER_ROW: (None, installed_kernels()),
        }
        for kernels in forms.get(form, (None,)):
            found = session(attributes, sinks, parts, form, kernels)
            names = {value.name for value in found.get_inputs()}
            read = {**feeds, **run_feeds(inputs, run, [shape], SIZES, names)}
            y, updated = found.run(None, {name: array for name, array in read.items() if name in names})
            assert np.linalg.norm(y - expected[run.tokens]) < 1e-5 * np.linalg.norm(expected[run.tokens])
        held = updated
    np.testing.assert_array_equal(held.transpose(np.argsort(KV_POOL_ORDER))[:, :-1], expected_pool.numpy())


def test_single_tokens_share_a_run_and_padding_rows_are_in_none() -> None:
    inputs = step([1, 5, 1, 1], [6, 0, 0, 4], np.random.default_rng(0))
    inputs.seq_lens[3] = 0
    runs = [(run.rows.tolist(), run.tokens.tolist(), run.time) for run in paged_runs(inputs)]
    assert runs == [([0, 2], [0, 6], 1), ([1], [1, 2, 3, 4, 5], 5)]


def test_rows_that_run_together_are_packed_one_after_the_other() -> None:
    inputs = step([1, 3, 2, 6, 1], [6, 0, 0, 4, 2], np.random.default_rng(0))
    runs = [(run.tokens.tolist(), run.counts.tolist(), run.is_ragged) for run in paged_runs(inputs, (1,), [2, 1, 4])]
    assert runs == [([1, 2, 3, 4, 5, 12], [3, 2, 1], True), ([0], [1], False), ([6, 7, 8, 9, 10, 11], [6], False)]
    inputs.state_indices[:] = (3, 5, 1, 4, 2)
    first, *_ = paged_runs(inputs, together=[1, 2, 4])
    ordered, slots = by_slot(first, inputs, 9)
    assert (ordered.rows.tolist(), ordered.tokens.tolist(), slots) == ([2, 4, 1], [4, 5, 12, 1, 2, 3], slice(1, 6))


def test_longer_rows_in_neighbouring_slots_share_a_run() -> None:
    inputs = step([2, 3, 1, 2, 4, 2], [0] * 6, np.random.default_rng(0))
    # Row 3 is deferred, row 4 stores a checkpoint, and the slot between rows 5 and 1 is that of row 2.
    slots, checkpoints = np.array([3, 2, 1, 4, 5, 0], np.int32), np.array([[9, 8]], np.int32)
    inputs = replace(inputs, state_indices=slots, checkpoints=checkpoints)
    runs = paged_runs(inputs, alone=[3], joins=True)
    assert [run.rows.tolist() for run in runs] == [[2], [5], [1, 0], [3], [4]]


def test_a_window_reads_its_own_blocks_alone() -> None:
    inputs = step([1], [21], np.random.default_rng(0))
    run = PagedRun(np.array([0]), np.array([0]), np.array([1]))
    shapes = [KvShape(1, window) for window in (0, 5)]
    full, near = (run_feeds(inputs, run, [shape], SIZES, {shape.bias, shape.blocks("key")}) for shape in shapes)
    table = inputs.block_table[0].tolist()
    assert full[KvShape(1, 0).blocks("key")][0, 0].tolist() == table[:6]
    assert near[KvShape(1, 5).blocks("key")][0, 0].tolist() == table[4:6]
    assert np.isfinite(near[KvShape(1, 5).bias]).sum() == 5


def test_blocks_that_a_step_begins_and_does_not_fill_are_named() -> None:
    inputs = step([1, 6, 1], [4, 0, 2], np.random.default_rng(0))
    begun = begun_blocks(inputs, SIZES.block_size)
    assert begun.tolist() == sorted([inputs.block_table[0, 1], inputs.block_table[1, 1]])
