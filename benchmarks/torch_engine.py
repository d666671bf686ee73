"""Tokens per second of the torch engine on a GPU, compared with transformers.

A 2.65 B hybrid model in bfloat16, and a random Qwen3-Next of twelve layers and eight experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.agreement import BFLOAT16_TOLERANCE, error_gate, random_prompt
from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.engine_runs import EngineRuns, device_name
from benchmarks.measure import note, spreads, take_turns
from benchmarks.peer import Peer
from benchmarks.random_checkpoint import GPU_MODEL, Config
from benchmarks.runner import Direction, Gate, Report, Target, require
from hybridge.runtime.engines.torch.engine import TorchEngine

DECODE_TITLE = "decode at batch {}, logits in host memory"
SPEED_UP_OF_EXPERTS = 3.0
# Distance of a token's preferences for two experts in its embedding, whose other entries are standard normal.
PREFERENCE = 4.0
# Widths of Qwen3-Next-80B-A3B, with twelve of its layers and eight of its experts, of which a token has two.
QWEN3_NEXT: Mapping[str, Any] = {
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


@dataclass(frozen=True)
class TorchEngineSettings:
    """Decoding of ``new_tokens`` after prompts of ``prompt_tokens`` in each of ``batches`` rows, and ``prompts`` of
    these lengths. decode_goals: tokens per second by batch size on an NVIDIA H200; prompt_goals: milliseconds by
    length. device: "cuda" or "cpu". work: a folder that keeps checkpoint and artifact."""

    device: str = "cuda"
    new_tokens: int = 128
    prompt_tokens: int = 512
    gate_tokens: int = 70
    gate_steps: int = 4
    repeats: int = 5
    batches: tuple[int, ...] = (1, 8)
    prompts: tuple[int, ...] = (512, 4096)
    work: str | None = None
    model: Config = field(default_factory=lambda: GPU_MODEL)
    decode_goals: Mapping[int, float] = field(default_factory=lambda: {1: 800.0, 8: 5500.0})
    prompt_goals: Mapping[int, float] = field(default_factory=lambda: {512: 9.8, 4096: 28.2})


def run(settings: TorchEngineSettings) -> Report:
    """Compare values with transformers, then measure."""
    with work_folder(settings.work) as work:
        gates, results = _compared(work, settings)
    targets = [
        *_targets(results["decode_tokens_per_s"], settings.decode_goals, DECODE_TITLE, "at least", "tokens/s"),
        *_targets(results["prompt_ms"], settings.prompt_goals, "prompt of {} tokens", "at most", "ms"),
    ]
    return Report(gates, results, tuple(targets))


@dataclass(frozen=True)
class ExpertsSettings(TorchEngineSettings):
    """As of the benchmark without experts; the goal is a ratio."""

    new_tokens: int = 64
    gate_steps: int = 16
    repeats: int = 3
    model: Config = field(default_factory=lambda: QWEN3_NEXT)


def run_experts(settings: ExpertsSettings) -> Report:
    """Compare logits with transformers in float32, then measure. The peer runs fla where that is installed.

    Values are compared at every position, so the model is made such that rounding cannot decide between experts. With
    the initial weights of transformers, routers are indifferent: a model of an eighth of the width, in bfloat16 and in
    float32 in transformers itself, takes other experts for 57 % of the last layer's tokens, and its logits differ by
    0.46.
    """
    with work_folder(settings.work) as work:
        if not (work / "checkpoint").exists():
            write_experts_checkpoint(work / "checkpoint", settings.model, settings.device)
        gates, results = _compared(work, settings)
    rates = results["decode_tokens_per_s"][1]
    ratio = rates["ours_greedy"].median / rates["transformers_greedy"].median
    title = "decode at batch 1, greedy, against transformers as installed"
    results["transformers_has_fla"] = find_spec("fla") is not None
    return Report(gates, results, (Target(title, ratio, "at least", SPEED_UP_OF_EXPERTS, "times"),))


def _compared(work: Path, settings: TorchEngineSettings) -> tuple[tuple[Gate, ...], dict[str, Any]]:
    artifact, checkpoint = prepared(work, settings), work / "checkpoint"
    with closing(TorchEngine(artifact, device=settings.device)) as engine:
        runs = EngineRuns(engine)
        gates = require(*_gates(runs, checkpoint, settings))
        return gates, {**_measured(runs, checkpoint, settings), "device": device_name(engine.device)}


def prepared(work: Path, settings: TorchEngineSettings) -> Path:
    """The artifact in the folder ``work``."""
    rows, longest = max(settings.batches), max(*settings.prompts, settings.prompt_tokens + settings.new_tokens)
    return linked_artifact(work, "artifact", settings.model, max_batch_size=rows, max_seq_len=longest)


def _targets(
    measured: Mapping[int, Any], goals: Mapping[int, float], title: str, direction: Direction, unit: str
) -> list[Target]:
    """Our medians with logits in host memory, of the sizes that have goals."""
    found = {size: measured[size]["ours"].median for size in goals if size in measured}
    return [Target(title.format(size), value, direction, goals[size], unit) for size, value in found.items()]


def write_experts_checkpoint(folder: Path, config: Mapping[str, Any], device: str) -> None:
    """Save a random qwen3_next model in bfloat16, made on ``device``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_next", **config), dtype=torch.bfloat16)
        with torch.no_grad():
            _make_decisive(model)
    model.save_pretrained(folder)


def _make_decisive(model: Any) -> None:
    """Encode in a token's embedding which experts it prefers, each layer in its own way, and scale down the layers.

    The logits of experts that follow each other in a token's order are about 1 apart, so that none is negligible.
    """
    import torch

    layers, embedding = model.model.layers, model.model.embed_tokens.weight
    experts = layers[0].mlp.gate.weight.shape[0]
    ranks = torch.rand(embedding.shape[0], experts).argsort(-1)
    embedding.normal_()
    embedding[:, :experts] = PREFERENCE * (ranks - (experts - 1) / 2)
    for layer in layers:
        layer.mlp.gate.weight.zero_()
        layer.mlp.gate.weight[torch.arange(experts), torch.randperm(experts)] = 1 / PREFERENCE
        for name, parameter in layer.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
                parameter *= (2 * len(layers)) ** -0.5


def _gates(runs: EngineRuns, checkpoint: Path, settings: TorchEngineSettings) -> list[Gate]:
    """Logits after a prompt, its second part in a later chunk, and after single tokens, of every batch size."""
    tokens, steps = settings.gate_tokens, settings.gate_steps
    sequence = random_prompt(runs.vocab_size, tokens + steps, seed=1)
    with closing(Peer(checkpoint, device=settings.device)) as peer:
        expected = peer.logits(sequence)[tokens - 1 :]
    gates = []
    for batch in settings.batches:
        checks = f"logits of {batch} rows of {tokens} tokens and {steps} decode steps against transformers in float32"
        gates.append(error_gate(checks, runs.logits(sequence, tokens, batch), expected, BFLOAT16_TOLERANCE))
        note(f"{checks}: {gates[-1].value:.2g}")
    return gates


def _measured(runs: EngineRuns, checkpoint: Path, settings: TorchEngineSettings) -> dict[str, Any]:
    """Ours and the peer's in turns."""
    peer = Peer(checkpoint, dtype="bfloat16", device=settings.device)
    return {
        "decode_tokens_per_s": {batch: _decode(runs, peer, batch, settings) for batch in settings.batches},
        "prompt_ms": {length: _prompt(runs, peer, length, settings) for length in settings.prompts},
    }


def _decode(runs: EngineRuns, peer: Peer, batch: int, settings: TorchEngineSettings) -> dict[str, Any]:
    length, count = settings.prompt_tokens, settings.new_tokens
    prompt = random_prompt(runs.vocab_size, batch * length, seed=2).reshape(batch, length)
    contestants: dict[str, Callable[[], float]] = {
        "ours": lambda: batch / runs.step_seconds(prompt, count, greedy=False),
        "ours_greedy": lambda: batch / runs.step_seconds(prompt, count, greedy=True),
        "transformers_greedy": lambda: batch / peer.step_seconds(prompt, count),
    }
    rates = take_turns(contestants, settings.repeats)
    note(f"decoding of {batch} rows measured")
    return dict(spreads(rates))


def _prompt(runs: EngineRuns, peer: Peer, length: int, settings: TorchEngineSettings) -> dict[str, Any]:
    prompt = random_prompt(runs.vocab_size, length, seed=2)[None]
    contestants: dict[str, Callable[[], float]] = {
        "ours": lambda: runs.prompt_seconds(prompt),
        "transformers": lambda: peer.prefill_seconds(prompt),
    }
    times = take_turns(contestants, settings.repeats, warmup=2)
    note(f"prompts of {length} tokens measured")
    return dict(spreads(times, 1e3))
