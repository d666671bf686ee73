"""Export of a random Qwen3.5 text model of four layers: time of the command, and nodes of the graph."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from benchmarks.agreement import checkpoint_gate
from benchmarks.command import run_command
from benchmarks.measure import Spread
from benchmarks.measured_process import ProcessUse, run_measured
from benchmarks.report import Report, Target

NAME, REPEATS = "export_qwen3_5", 5
MOST_SECONDS, MOST_NODES = 6.0, 599
THREADS = 2
# Sizes of Qwen3.5-0.8B, but for the layers and the vocabulary: three gated delta nets and one attention layer.
FIELDS: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 32768,
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "intermediate_size": 3584,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
)


@dataclass(frozen=True)
class ExportSettings:
    """The fields of the model's config.json."""

    fields: Mapping[str, Any] = field(default_factory=lambda: FIELDS)
    repeats: int = REPEATS


def run(settings: ExportSettings) -> Report:
    """Write the checkpoint, check one export of it, then measure exports with the page cache warm."""
    described = {**settings.fields, "model_type": "qwen3_5_text", "dtype": "bfloat16"}
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        checkpoint, out = Path(name) / "checkpoint", Path(name) / "out"
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            pool.submit(write_checkpoint, checkpoint, dict(settings.fields)).result()
            _export(checkpoint, out)
            gate = pool.submit(checkpoint_gate, checkpoint, out, THREADS, 70, 2).result()
        if not gate.passed:
            return Report(NAME, described, (gate,))
        uses = [_export(checkpoint, out) for _ in range(settings.repeats)]
        nodes = node_counts(onnx.load(out / "model.onnx", load_external_data=False))
    seconds = Spread.of(use.wall_s for use in uses).to_json()
    results = {"wall_s": seconds, "cpu_s": Spread.of(use.cpu_s for use in uses).to_json(), "nodes": nodes}
    targets = (
        Target("wall time", seconds["median"], "at most", MOST_SECONDS, "s"),
        Target("nodes of the graph and of its functions", sum(nodes.values()), "at most", MOST_NODES, "nodes"),
    )
    return Report(NAME, described, (gate,), results, targets)


def write_checkpoint(folder: Path, fields: dict[str, Any]) -> None:
    """Save a random qwen3_5_text model in bfloat16."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text", **fields))
    model.to(torch.bfloat16).save_pretrained(folder)


def node_counts(model: onnx.ModelProto) -> dict[str, int]:
    """Nodes of the main graph and of each function, each with the nodes of graphs inside nodes."""
    counts = {"main graph": _nodes(model.graph.node)}
    for function in model.functions:
        name = f"{function.name} {function.overload}".strip()
        counts[name] = _nodes(function.node)
    return counts


def _nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    inner = (a.g.node for node in nodes for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
    return sum(1 for _ in nodes) + sum(_nodes(graph) for graph in inner)


def _export(checkpoint: Path, out: Path) -> ProcessUse:
    return run_measured(("-m", "hybridge", "export", str(checkpoint), str(out), "--overwrite", "--quiet"))


if __name__ == "__main__":
    sys.exit(run_command(__doc__ or "", lambda repeats: run(ExportSettings(repeats=repeats)), REPEATS))
