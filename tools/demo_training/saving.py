"""Writing a trained model the way its family ships: bf16 weights, float32 where it matters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demo_training.chat import END
from demo_training.families import Family

REPORT_NAME = "training_report.json"
# transformers clamps dt at time_step_min, which otherwise only says where dt_bias begins. So small a number clamps
# none, as the Mamba2 paper and its kernels have it; 0 would have no logarithm when a model is made from the config.
NO_CLAMP = 1e-20


def to_shipped_types(model: Any, family: Family) -> None:
    """bf16 parameters in place, but float32 for the family's precision-critical ones."""
    import torch

    for name, parameter in model.named_parameters():
        if not name.endswith(family.fp32_suffixes):
            parameter.data = parameter.data.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16


def save_checkpoint(model: Any, tokenizer: Any, family: Family, out: Path) -> None:
    """Writes model, config, generation config and tokenizer with transformers' own writers."""
    from transformers import GenerationConfig

    to_shipped_types(model.to("cpu"), family)
    if hasattr(model.config, "time_step_min"):
        model.config.time_step_min = NO_CLAMP
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(END)],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def write_report(out: Path, report: Mapping[str, Any]) -> None:
    """The training report as JSON beside the weights."""
    text = json.dumps(report, indent=2, sort_keys=False) + "\n"
    (out / REPORT_NAME).write_text(text, encoding="utf-8")
