"""Tokens per second of the torch engine on a GPU: a random Qwen3-Next of twelve layers and eight experts, in bfloat16.

The peer is transformers with what it finds installed: without fla it runs the gated delta rule in torch.

Values are compared at every position, so the model is made such that rounding cannot decide between experts. With the
weights that transformers begins with, routers are indifferent: a model of an eighth of the width, in bfloat16 and in
float32 in transformers itself, takes other experts for 57 % of the last layer's tokens, and its logits differ by 0.46.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.agreement import random_prompt, relative_error
from benchmarks.command import run_command
from benchmarks.engine_runs import EngineRuns
from benchmarks.progress import note
from benchmarks.report import Gate, Report, Target
from benchmarks.torch_engine import LOGITS_TOLERANCE, Goals, TorchEngineSettings, measured
from benchmarks.torch_peer import TorchPeer
from hybridge.runtime.engines.torch.engine import TorchEngine

NAME, REPEATS = "torch_engine_experts", 3
SPEED_UP = 3.0
# How far a token's likings for two experts are apart in its embedding, whose other entries are standard normal.
LIKING = 4.0
# Widths of Qwen3-Next-80B-A3B, with twelve of its layers and eight of its experts, of which a token has two.
FIELDS: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "num_hidden_layers": 12,
        "intermediate_size": 5120,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
)


@dataclass(frozen=True)
class ExpertsSettings:
    """The fields of the model's config.json, and what is measured. goals: which batch sizes and prompts."""

    fields: Mapping[str, Any] = field(default_factory=lambda: FIELDS)
    device: str = "cuda"
    new_tokens: int = 64
    prompt_tokens: int = 512
    gate_tokens: int = 70
    gate_steps: int = 16
    repeats: int = REPEATS
    batches: tuple[int, ...] = (1, 8)
    prompts: tuple[int, ...] = (512, 4096)

    @property
    def runs(self) -> TorchEngineSettings:
        """The same for the functions that measure; they take its numbers, not its shape."""
        goals = Goals(dict.fromkeys(self.batches, 0.0), dict.fromkeys(self.prompts, 0.0))
        return TorchEngineSettings(
            device=self.device,
            new_tokens=self.new_tokens,
            prompt_tokens=self.prompt_tokens,
            repeats=self.repeats,
            goals=goals,
        )

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "fields": dict(self.fields)}


def run(settings: ExpertsSettings) -> Report:
    """Write the checkpoint, compare logits with transformers in float32, then measure. It needs transformers."""
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        checkpoint, artifact = Path(name) / "checkpoint", Path(name) / "artifact"
        write_checkpoint(checkpoint, settings.fields, settings.device)
        note("checkpoint written")
        _export(checkpoint, artifact, settings)
        note("exported")
        engine = TorchEngine(artifact, device=settings.device)
        runs = EngineRuns(engine)
        note("engine made")
        try:
            gates = _gates(runs, checkpoint, settings)
            if not all(gate.passed for gate in gates):
                return Report(NAME, settings.to_json(), gates)
            results = measured(runs, checkpoint, settings.runs)
        finally:
            engine.close()
    results["transformers_has_fla"] = find_spec("fla") is not None
    return Report(NAME, settings.to_json(), gates, results, _targets(results))


def write_checkpoint(folder: Path, fields: Mapping[str, Any], device: str) -> None:
    """Save a random qwen3_next model in bfloat16, made on ``device``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_next", **fields), dtype=torch.bfloat16)
        with torch.no_grad():
            _make_decisive(model)
    model.save_pretrained(folder)


def _make_decisive(model: Any) -> None:
    """Let a token's embedding say which experts it likes, each layer in its own way, and no layer drown it out.

    The logits of experts that follow each other in a token's order are about 1 apart, so that none is negligible.
    """
    import torch

    layers, embedding = model.model.layers, model.model.embed_tokens.weight
    experts = layers[0].mlp.gate.weight.shape[0]
    ranks = torch.rand(embedding.shape[0], experts).argsort(-1)
    embedding.normal_()
    embedding[:, :experts] = LIKING * (ranks - (experts - 1) / 2)
    for layer in layers:
        layer.mlp.gate.weight.zero_()
        layer.mlp.gate.weight[torch.arange(experts), torch.randperm(experts)] = 1 / LIKING
        for name, parameter in layer.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
                parameter *= (2 * len(layers)) ** -0.5


def _export(checkpoint: Path, artifact: Path, settings: ExpertsSettings) -> None:
    from hybridge.exporter.export import export_checkpoint
    from hybridge.exporter.options import ExportOptions

    longest = max(*settings.prompts, settings.prompt_tokens + settings.new_tokens + settings.gate_steps)
    export_checkpoint(
        checkpoint, artifact, ExportOptions(max_batch_size=max(settings.batches), max_seq_len=longest, scan=False)
    )


def _gates(runs: EngineRuns, checkpoint: Path, settings: ExpertsSettings) -> tuple[Gate, ...]:
    """The worst position of every batch size."""
    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(runs.vocab_size, tokens + steps, seed=1)
    peer = TorchPeer(checkpoint, "float32", settings.device)
    try:
        expected = peer.logits(sequence)[tokens - 1 :]
    finally:
        peer.close()
    note("logits of transformers in float32 found")
    gates = []
    for batch in settings.batches:
        found = runs.logits(sequence, tokens, batch)
        worst = max(relative_error(*pair) for pair in zip(found, expected, strict=True))
        checks = f"logits of {batch} rows of {tokens} tokens and {steps} decode steps against transformers in float32"
        gates.append(Gate(f"{checks}, relative error", worst, LOGITS_TOLERANCE))
        note(f"{gates[-1].checks}: {worst:.2g}")
    return tuple(gates)


def _targets(results: Mapping[str, Any]) -> tuple[Target, ...]:
    rates = results["decode_tokens_per_s"]["1"]
    ratio = rates["ours_greedy"]["median"] / rates["transformers_greedy"]["median"]
    return (
        Target("decode at batch 1, greedy, against transformers as installed", ratio, "at least", SPEED_UP, "times"),
    )


def main() -> int:
    """The exit code: 0, or 1 when values were wrong."""
    return run_command(__doc__ or "", lambda repeats: run(ExpertsSettings(repeats=repeats)), REPEATS)


if __name__ == "__main__":
    sys.exit(main())
