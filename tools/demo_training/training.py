"""The optimisation loop."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from demo_training.evaluation import held_out_loss
from demo_training.progress import ProgressFile

# The speed is measured between these two steps.
_MEASURED = (20, 60)


@dataclass(frozen=True)
class TrainingPlan:
    """AdamW with linear warm-up and cosine decay to a tenth of a percent of the peak rate.

    seconds: replaces ``steps`` by as many as fit into this time at the first steps' speed.
    """

    steps: int
    learning_rate: float = 3e-3
    warmup_fraction: float = 0.03
    weight_decay: float = 0.1
    dropout: float = 0.1
    gradient_norm: float = 1.0
    report_every: int = 100
    seconds: float | None = None

    def fitted(self, step: int, elapsed: float, each: float) -> TrainingPlan:
        """The plan with as many steps as fit, after ``step`` in ``elapsed`` seconds, at ``each`` seconds per step."""
        assert self.seconds is not None
        return replace(self, steps=step + max(1, int((self.seconds - elapsed) / each)), seconds=None)


@dataclass(frozen=True)
class TrainingResult:
    """final_train_loss averages the last 50 steps (all, when fewer); dropout is on in it."""

    final_train_loss: float
    tokens: int
    seconds: float


def learning_rate_at(plan: TrainingPlan, step: int) -> float:
    """Rate of the step with index `step`, counted from 0."""
    warmup = max(1, round(plan.steps * plan.warmup_fraction))
    if step < warmup:
        return plan.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, plan.steps - warmup)
    return plan.learning_rate * max(1e-3, 0.5 * (1 + math.cos(math.pi * progress)))


def add_residual_dropout(model: Any, probability: float) -> list[Any]:
    """Drops mixer outputs before they join the residual stream; returns the hooks to remove."""

    def drop(module: nn.Module, _inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (nn.functional.dropout(output[0], probability, module.training), *output[1:])
        return nn.functional.dropout(output, probability, module.training)

    names = (
        "mixer",
        "mlp",
        "self_attn",
        "linear_attn",
        "mamba",
        "feed_forward",
        "embeddings",
        "embed_tokens",
    )
    mixers = [module for name, module in model.named_modules() if name.rsplit(".", 1)[-1] in names]
    return [mixer.register_forward_hook(drop) for mixer in mixers]


def _optimizer(model: Any, plan: TrainingPlan) -> torch.optim.AdamW:
    """Weight decay on matrices only: norms, biases, convolutions and A_log, D, dt_bias are free."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": plan.weight_decay},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95))


def _step(model: Any, optimizer: torch.optim.Optimizer, rows: torch.Tensor, max_norm: float) -> torch.Tensor:
    """One update from int64 [rows, tokens + 1]; returns the loss."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.detach()


def train(
    model: Any,
    batches: Iterator[np.ndarray],
    held_out: np.ndarray,
    plan: TrainingPlan,
    progress: ProgressFile | None = None,
) -> TrainingResult:
    """Trains in place; held-out loss is only reported, it selects nothing.

    With ``progress`` the run goes on after the steps that its file holds; the batches of those are passed over.
    """
    optimizer = _optimizer(model, plan)
    hooks = add_residual_dropout(model, plan.dropout)
    model.train()
    done, earlier = progress.restore(model, optimizer) if progress else ([], 0.0)
    losses: list[torch.Tensor | float] = [*done]
    rows_of_steps = itertools.islice(batches, len(losses), None)
    tokens, start = 0, time.monotonic() - earlier
    marks: list[float] = []
    while len(losses) < plan.steps:
        step = len(losses)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(plan, step)
        rows = torch.from_numpy(next(rows_of_steps)).to(model.device)
        losses.append(_step(model, optimizer, rows, plan.gradient_norm))
        tokens = (step + 1) * rows.shape[0] * (rows.shape[1] - 1)
        if plan.seconds is not None and len(losses) in _MEASURED:
            float(losses[-1])  # waits for the device
            marks.append(time.monotonic() - start)
            if len(marks) == 2:
                plan = plan.fitted(step + 1, marks[1], (marks[1] - marks[0]) / (_MEASURED[1] - _MEASURED[0]))
        seconds = time.monotonic() - start
        if progress and (step + 1) % progress.every == 0:
            progress.write(model, optimizer, [float(loss) for loss in losses], seconds)
        if (step + 1) % plan.report_every == 0 or step + 1 == plan.steps:
            _report(model, held_out, plan, losses, tokens, seconds)
    for hook in hooks:
        hook.remove()
    model.eval()
    return TrainingResult(_mean(losses[-50:]), tokens, time.monotonic() - start)


def _report(
    model: Any,
    held_out: np.ndarray,
    plan: TrainingPlan,
    losses: list[torch.Tensor | float],
    tokens: int,
    seconds: float,
) -> None:
    unseen = held_out_loss(model, held_out)
    print(
        f"step {len(losses)}/{plan.steps}: train loss {_mean(losses[-plan.report_every :]):.4f}, "
        f"held-out loss {unseen.loss:.4f}, {tokens / seconds:.0f} tokens/s, {seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _mean(losses: list[torch.Tensor | float]) -> float:
    return sum(float(loss) for loss in losses) / len(losses)
