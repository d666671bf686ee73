"""Fused graphs compute what the file says, and every family gets its fused form."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx_ir as ir
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.bindings import BATCH, MAX_SEQ, SEQ
from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.engines.artifact_graph import read_model
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.fusion import Phase, fuse_graph
from hybridge.runtime.engines.torch.fusion.attention import fuse_attention
from hybridge.runtime.engines.torch.fusion.linear import linears
from hybridge.runtime.engines.torch.fusion.projections import merge_projections
from hybridge.runtime.engines.torch.fusion.row_order import ORDERED_ROWS
from hybridge.runtime.engines.torch.graph import LENGTHS, clean_graph, is_constant
from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.lengths import StepLengths
from hybridge.runtime.engines.torch.program import compile_program
from hybridge.runtime.engines.torch.tensors import torch_from_dtype
from hybridge.runtime.engines.torch.weights import WeightStore
from tests.runtime.torch.planned_kernels import AlignedWeights
from tests.support.artifacts import ArtifactCache
from tests.support.export_cases import CASES, ExportCase, case_params

CPU = TorchDevice("cpu")
# Relative norm between two orders of rounding.
TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
ROOM = 16
# Of any artifact; only packed steps defer states (test_deferred_states.py) or keep rings (test_state_rings.py).
PHASES = (Phase.PREFILL, Phase.DECODE)


def run(
    folder: Path,
    graph: ir.Graph,
    config: RuntimeConfig,
    context: list[int],
    past: list[int],
    kernels: KernelRunner | None = None,
) -> dict:
    """One step from states of random numbers; the states that the program changed in place are outputs too."""
    generator = torch.Generator().manual_seed(7)
    sizes = {BATCH: len(context), SEQ: max(context), MAX_SEQ: ROOM}
    states = {
        spec.name: torch.randn(spec.resolve(**sizes), generator=generator).to(torch_from_dtype(spec.dtype))
        for spec in config.bindings.states
    }
    feeds = {
        "input_ids": torch.randint(0, config.vocab_size, (len(context), max(context)), generator=generator),
        "context_lengths": torch.tensor(context, dtype=torch.int32),
        "past_lengths": torch.tensor(past, dtype=torch.int32),
        LENGTHS: StepLengths(max(context), tuple(context), tuple(past), ROOM),
        **states,
    }
    weights = WeightStore(folder, CPU.torch) if kernels is None else AlignedWeights(folder, CPU.torch)
    found = compile_program(graph.inputs, graph.outputs, weights, kernels).run(feeds)
    if found["logits"].ndim == 3:  # those of padding do not matter
        valid = torch.arange(max(context)) < torch.tensor(context)[:, None]
        found["logits"] = found["logits"] * valid[..., None]
    return found


def assert_same(found: dict, expected: dict, tolerance: float) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        error = (found[name].double() - value.double()).norm() / value.double().norm()
        assert error < tolerance, (name, float(error))


@pytest.mark.parametrize("case", case_params())
@pytest.mark.parametrize("phase", PHASES)
def test_a_fused_graph_computes_what_the_file_says(phase: Phase, case: ExportCase, artifacts: ArtifactCache) -> None:
    exported = case.get(artifacts)
    config, folder = exported.config, exported.folder
    plain, fused = read_model(folder), read_model(folder)
    fuse_attention(plain.graph)
    clean_graph(plain.graph)
    fuse_graph(fused, phase, merge=True)
    steps = [([1, 1, 1], [0, 9, 3])] if phase is Phase.DECODE else [([5, 5], [0, 0]), ([4, 1, 3], [2, 0, 9])]
    for context, past in steps:
        expected = run(folder, plain.graph, config, context, past)
        assert_same(run(folder, fused.graph, config, context, past), expected, TOLERANCES[config.dtype.value])


@pytest.mark.parametrize("case", case_params())
def test_every_layer_gets_its_fused_form(case: ExportCase, artifacts: ArtifactCache) -> None:
    exported = case.get(artifacts)
    config, model = exported.config, read_model(exported.folder)
    fuse_graph(model, Phase.PREFILL, merge=False)
    kinds = Counter(node.op_type for node in model.graph)
    assert kinds["CachedAttention"] == len(config.kv_layers)
    assert kinds["GroupedNorm"] == config.layer_types.count("mamba")
    assert (kinds["LastToken"] > 0) is not config.all_logits
    assert not set(kinds) & {"MatMul", "cached_attention", "attention_step", "GatherND"}
    assert not set(kinds) & {"RotaryEmbedding", "Greater", "Relu"}
    assert kinds["GatedNorm"] == config.layer_types.count("gated_delta_net")
    assert kinds["TopKSoftmax"] == kinds["routed_experts"]
    assert kinds["Softplus"] == config.layer_types.count("gated_delta_net")
    if "gated_delta_net" not in config.layer_types:
        assert not kinds["Sigmoid"]


def test_products_absorb_the_operators_around_them(artifacts: ArtifactCache) -> None:
    exported = CASES["nemotron_h bf16 as fp16"].get(artifacts)
    model = read_model(exported.folder)
    fuse_graph(model, Phase.DECODE, merge=False)
    found: Counter[str] = Counter()
    for node in linears(model.graph):
        found[node.attributes["activation"].as_string()] += 1
        found["residual"] += node.inputs[4] is not None
        found["norm"] += node.inputs[5] is not None
        found["float32"] += node.attributes.get_int("dtype") == int(ir.DataType.FLOAT)
    # M*-M: in_proj and out_proj twice, q, k, v, o, up (relu2), down and the head; q, k and v share one norm.
    assert found == {"none": 10, "relu2": 1, "residual": 4, "norm": 4, "float32": 1}


@pytest.mark.parametrize(
    ("case", "products", "of_last_tokens"),
    [
        # M*-M: in_proj and out_proj, q, k, v, o, up, down, in_proj in two, out_proj, the head. z is read with the gate.
        ("nemotron_h bf16 as fp16", 12, 3),
        # Of the last layer o, gate and up as one, and down, then the head; before it two more.
        ("qwen3 fp32, window", 13, 4),
    ],
)
def test_what_only_the_logits_need_is_of_last_tokens(
    case: str, products: int, of_last_tokens: int, artifacts: ArtifactCache
) -> None:
    model = read_model(CASES[case].get(artifacts).folder)
    fuse_graph(model, Phase.PREFILL, merge=False)
    ranks = Counter(len(node.outputs[0].shape or ()) for node in linears(model.graph))
    assert ranks == {3: products - of_last_tokens, 2: of_last_tokens}


def test_projections_of_one_x_become_one(artifacts: ArtifactCache) -> None:
    exported = CASES["nemotron_h bf16 as fp16"].get(artifacts)
    model = read_model(exported.folder)
    fuse_graph(model, Phase.DECODE, merge=False)
    before = len(list(linears(model.graph)))
    merge_projections(model.graph)
    assert before - len(list(linears(model.graph))) == 2


def test_parts_of_a_product_become_slices_of_it(artifacts: ArtifactCache) -> None:
    exported = CASES["qwen3_next experts bf16 as fp16"].get(artifacts)
    model = read_model(exported.folder)
    fuse_graph(model, Phase.DECODE, merge=True)
    kinds = Counter(node.op_type for node in model.graph if not is_constant(node.outputs[0]))
    # One layer puts queries, keys and values of all heads together, the other one queries and gates.
    assert sum(node.op_type == ORDERED_ROWS for node in model.graph) == len(exported.config.layer_types) == 2
    assert kinds["Concat"] == 0
