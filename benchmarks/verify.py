"""What ``hybridge verify`` finds for the checkpoints that ship and for a random one of 0.6 B, its time and memory.

python -m benchmarks.verify > benchmarks/results/verify.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hybridge
from benchmarks.machine import machine_json
from benchmarks.measured_process import run_measured
from hybridge.artifact.safetensors_file import read_safetensors

CHECKPOINTS = Path(__file__).resolve().parents[1] / "examples" / "checkpoints"
# Of Qwen3-0.6B, whose weights are random here: 0.6 G parameters in bfloat16.
LARGE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
}


def verified(checkpoint: Path, out: Path) -> dict[str, Any]:
    """The verdict on ``checkpoint``, exported to ``out``, the largest error of each scenario, wall time and memory.

    peak_over_float32: peak memory of the process over the bytes of the model in float32; None for a model that is
    smaller than the libraries that run it.
    """
    hybridge.export(checkpoint, out)
    use = run_measured(["-m", "hybridge", "verify", str(checkpoint), str(out), "--json", "--quiet"])
    report = json.loads(use.output)
    largest: dict[str, dict[str, float]] = {}
    for found in report["comparisons"]:
        scenarios = largest.setdefault(found["engine"], {})
        scenarios[found["scenario"]] = max(scenarios.get(found["scenario"], 0.0), found["error"])
    tensors = read_safetensors(checkpoint / "model.safetensors").tensors.values()
    wide = sum(4 * tensor.nbytes // tensor.dtype.itemsize for tensor in tensors)
    names = ("passed", "verdict", "model_type", "reference", "tolerance")
    return {
        **{name: report[name] for name in names},
        "wall_s": round(use.wall_s, 1),
        "peak_bytes": use.peak_rss,
        "peak_over_float32": round(use.peak_rss / wide, 2) if wide > 10**9 else None,
        "largest_errors": largest,
    }


def write_large(folder: Path) -> Path:
    """A checkpoint of ``LARGE`` with random weights in ``folder``."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**LARGE))
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        tensors[name] = (1 + 0.3 * noise if "norm" in name else 0.02 * noise).bfloat16()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(LARGE))
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 when a checkpoint is not verified. ``argv``: None for the arguments of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description="Verify and print one document.")
    parser.add_argument("--small", action="store_true", help="only the checkpoints that ship")
    arguments = parser.parse_args(argv)
    document: dict[str, Any] = {"benchmark": "verify", **machine_json(), "checkpoints": {}}
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        work = Path(name)
        checkpoints = sorted(path for path in CHECKPOINTS.iterdir() if path.is_dir())
        if not arguments.small:
            checkpoints.append(write_large(work / "random-qwen3-0.6b"))
        for checkpoint in checkpoints:
            document["checkpoints"][checkpoint.name] = verified(checkpoint, work / f"{checkpoint.name}.out")
    print(json.dumps(document, indent=2))
    return 0 if all(found["passed"] for found in document["checkpoints"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
