#!/usr/bin/env python3
"""Trains a small hybrid language model on plain text and saves it as a Hugging Face checkpoint.

    python tools/train_demo_checkpoint.py --family nemotron_h --text moby-dick.txt king-james-bible.txt \\
        --held-out examples/text/heldout.txt --out examples/checkpoints/tiny-nemotron-h

tools/README.md says where the text comes from and how long it takes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from demo_training.batches import BatchPlan, training_batches
from demo_training.errors import TrainingInputError
from demo_training.evaluation import held_out_loss, windows_from_text
from demo_training.families import FAMILIES, Family, SpecialTokenIds, family_named
from demo_training.progress import ProgressFile
from demo_training.saving import save_checkpoint, write_report
from demo_training.text import Document, documents_from_files, text_from_file
from demo_training.tokenizer import tokenizer_from_text
from demo_training.training import TrainingPlan, TrainingResult, train

SHORT_WINDOWS = 4


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", required=True, choices=sorted(FAMILIES))
    parser.add_argument("--text", required=True, nargs="+", type=Path, help="UTF-8 files to train on")
    parser.add_argument("--held-out", required=True, type=Path, help="UTF-8 file that is measured, never trained on")
    parser.add_argument("--out", required=True, type=Path, help="folder of the checkpoint; must not exist")
    parser.add_argument("--steps", type=int, default=2800, help="0 saves the untrained model")
    parser.add_argument("--seconds", type=float, help="train for this time, instead of a number of steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--window", type=int, default=512, help="tokens in one held-out window")
    parser.add_argument("--progress", type=Path, help="file with the state of the run; an existing one is continued")
    parser.add_argument(
        "--config-json",
        type=json.loads,
        default={},
        metavar="JSON",
        help="config fields to replace, as an object",
    )
    return parser.parse_args(arguments)


def build(family: Family, documents: Sequence[Document], options: argparse.Namespace) -> tuple[Any, Any]:
    """A fresh model in float32 on the asked device, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(options.seed)
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    tokenizer = tokenizer_from_text((d.text for d in documents), options.vocab_size, max_length=8192)
    tokens = SpecialTokenIds(len(tokenizer), tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    config = family.config_from_tokens(tokens, **options.config_json)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(options.device)
    family.prepare(model)
    family.initialise(model)
    return model, tokenizer


def progress_of(options: argparse.Namespace) -> ProgressFile | None:
    """The file that keeps this run; it may be continued with another number of steps, rate or dropout."""
    if options.progress is None:
        return None
    names = ("family", "seed", "batch_size", "seq_len", "vocab_size", "config_json")
    return ProgressFile(options.progress, {name: getattr(options, name) for name in names})


def training_facts(options: argparse.Namespace, result: TrainingResult) -> dict[str, Any]:
    """How the weights came about."""
    import torch

    on_gpu = options.device == "cuda"
    return {
        "final_train_loss": result.final_train_loss if options.steps else None,
        "steps": result.tokens // (options.batch_size * options.seq_len),
        "tokens": result.tokens,
        "seconds": round(result.seconds, 1),
        "seed": options.seed,
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or "cpu",
        "batch_size": options.batch_size,
        "seq_len": options.seq_len,
        "learning_rate": options.learning_rate,
        "dropout": options.dropout,
        "text": [path.name for path in options.text],
    }


def held_out_facts(model: Any, family: Family, windows: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Losses of the saved weights; the last entry is from transformers as it comes."""
    stock = held_out_loss(model, windows)
    family.prepare(model)
    return {
        "text": options.held_out.name,
        "window": options.window,
        "computed_in": "float32 from the saved weights, dt clamped at time_step_limit where there is one",
        "all_windows": asdict(held_out_loss(model, windows)),
        f"first_{SHORT_WINDOWS}_windows": asdict(held_out_loss(model, windows[:SHORT_WINDOWS])),
        "all_windows_unchanged_transformers": asdict(stock),
    }


def measured_report(
    family: Family, options: argparse.Namespace, result: TrainingResult, windows: Any
) -> dict[str, Any]:
    """Reloads the saved checkpoint in float32 and describes it and its making."""
    import tokenizers
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(options.out, dtype=torch.float32)
    return {
        "family": options.family,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "training": training_facts(options, result),
        "held_out": held_out_facts(model, family, windows, options),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
    }


def check_options(options: argparse.Namespace) -> None:
    """Refuses what would fail only after minutes of work."""
    import torch

    if options.out.exists():
        raise TrainingInputError(f"expected --out to be a new folder, found {options.out}; move it away first")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise TrainingInputError("expected a CUDA GPU for --device cuda, found none; use --device cpu")
    for name in ("batch_size", "seq_len", "window"):
        if getattr(options, name) < 1:
            raise TrainingInputError(
                f"expected --{name.replace('_', '-')} of 1 or more, found {getattr(options, name)}"
            )
    if options.steps < 0:
        raise TrainingInputError(f"expected --steps of 0 or more, found {options.steps}")


def held_out_windows(tokenizer: Any, options: argparse.Namespace) -> Any:
    """The held-out text as windows; at least one."""
    windows = windows_from_text(tokenizer, text_from_file(options.held_out), options.window)
    if len(windows) == 0:
        raise TrainingInputError(
            f"expected {options.window} tokens or more in {options.held_out}, found fewer; lower --window"
        )
    return windows


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Trains, saves and measures; returns the report that was written."""
    check_options(options)
    family = family_named(options.family)
    documents = documents_from_files(options.text)
    model, tokenizer = build(family, documents, options)
    windows = held_out_windows(tokenizer, options)
    result = TrainingResult(float("nan"), 0, 0.0)
    if options.steps > 0:
        plan = BatchPlan(options.batch_size, options.seq_len, options.seed)
        training = TrainingPlan(options.steps, options.learning_rate, dropout=options.dropout, seconds=options.seconds)
        batches = training_batches(documents, tokenizer, plan)
        with family.training():
            result = train(model, batches, windows, training, progress_of(options))
    save_checkpoint(model, tokenizer, family, options.out)
    report = measured_report(family, options, result, windows)
    write_report(options.out, report)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report; 2 on bad input."""
    try:
        report = run(parse_arguments(arguments))
    except TrainingInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
