"""Decoding and prompts of a random Qwen3-Next with experts on a GPU, beside transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.agreement import random_prompt
from benchmarks.artifacts import linked_artifact, work_folder
from benchmarks.engine_runs import EngineRuns, device_name
from benchmarks.measure import note, spreads, take_turns
from benchmarks.peer import Peer
from benchmarks.random_checkpoint import Config
from benchmarks.runner import Report, Target, require
from benchmarks.torch_engine import TorchEngineSettings, compared_logits, decode_rates, prepared, step_limits
from benchmarks.traffic import serve
from hybridge.runtime.engines.torch.engine import TorchEngine
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.prefix_cache.settings import OFF
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings

# Distance of a token's preferences for two experts in its embedding, whose other entries are standard normal.
_PREFERENCE = 4.0
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
class ExpertsSettings(TorchEngineSettings):
    """As without experts. Goals are ratios to transformers: of rates, and of the times of served prompts."""

    new_tokens: int = 64
    gate_steps: int = 16
    repeats: int = 3
    model: Config = field(default_factory=lambda: QWEN3_NEXT)
    decode_ratio: float = 3.0
    prompt_ratio: float = 1.0


def run(settings: ExpertsSettings) -> Report:
    """Compare logits with transformers in float32, then measure. The peer runs fla where that is installed.

    A served prompt is one that a serving loop gets: its steps are recorded at the second use.
    """
    with work_folder(settings.work) as work:
        if not (work / "checkpoint").exists():
            write_experts_checkpoint(work / "checkpoint", settings.model, settings.device)
        artifact, checkpoint = prepared(work, settings), work / "checkpoint"
        paged = linked_artifact(work, "artifact-paged", settings.model, layout="paged", **step_limits(settings))
        with closing(TorchEngine(artifact, settings.device)) as engine:
            runs = EngineRuns(engine)
            gates = require(*compared_logits(runs, checkpoint, settings))
            with closing(TorchPagedEngine(paged, settings.device)) as server:
                results = _measured(runs, server, checkpoint, settings)
            results |= {"device": device_name(engine.device), "transformers_has_fla": find_spec("fla") is not None}
    rates, times = results["decode_tokens_per_s"][settings.batches[0]], results["prompt_ms"]
    ratio = rates["ours_greedy"].median / rates["transformers_greedy"].median
    title = f"decode at batch {settings.batches[0]}, greedy, against transformers"
    targets = [Target(title, ratio, "at least", settings.decode_ratio, "times")]
    for length, each in times.items():
        ratio = each["transformers"].median / each["ours_served"].median
        title = f"served prompt of {length} tokens against transformers"
        targets.append(Target(title, ratio, "at least", settings.prompt_ratio, "times"))
    return Report(gates, results, tuple(targets))


def _measured(
    runs: EngineRuns, server: TorchPagedEngine, checkpoint: Path, settings: ExpertsSettings
) -> dict[str, Any]:
    peer = Peer(checkpoint, dtype="bfloat16", device=settings.device)
    loop = ServingLoop(server, ServingSettings(max_rows=max(settings.batches), prefix_cache=OFF), (), None)
    prompts: dict[int, Any] = {}
    for length in settings.prompts:
        prompt = random_prompt(runs.vocab_size, length, seed=2)[None]
        contestants: dict[str, Callable[[], float]] = {
            "ours": lambda prompt=prompt: runs.prompt_seconds(prompt),  # type: ignore[misc]
            "ours_served": lambda prompt=prompt: float(  # type: ignore[misc]
                serve(loop, prompt.tolist(), [0.0], 1).first_token[0]
            ),
            "transformers": lambda prompt=prompt: peer.prefill_seconds(prompt),  # type: ignore[misc]
        }
        prompts[length] = dict(spreads(take_turns(contestants, settings.repeats, warmup=3), 1e3))
        note(f"prompts of {length} tokens measured")
    rates = {batch: decode_rates(runs, peer, batch, settings) for batch in settings.batches}
    return {"decode_tokens_per_s": rates, "prompt_ms": prompts}


def write_experts_checkpoint(folder: Path, config: Mapping[str, Any], device: str) -> None:
    """Save a random qwen3_next model in bfloat16, made on ``device``, whose routers rounding does not change.

    With the initial weights of transformers, routers are indifferent: a model of an eighth of the width, in bfloat16
    and in float32 in transformers itself, takes other experts for 57 % of the last layer's tokens.
    """
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
    embedding[:, :experts] = _PREFERENCE * (ranks - (experts - 1) / 2)
    for layer in layers:
        layer.mlp.gate.weight.zero_()
        layer.mlp.gate.weight[torch.arange(experts), torch.randperm(experts)] = 1 / _PREFERENCE
        for name, parameter in layer.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
                parameter *= (2 * len(layers)) ** -0.5
