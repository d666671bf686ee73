"""A training run on disk, so that an interrupted run can be continued."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from demo_training.errors import TrainingInputError


@dataclass(frozen=True)
class ProgressFile:
    """Where a run is kept, what it must agree on to be continued, and after how many steps it is written."""

    path: Path
    facts: Mapping[str, Any]
    every: int = 100

    def restore(self, model: Any, optimizer: torch.optim.Optimizer) -> tuple[list[float], float]:
        """Losses of the steps done and seconds spent; none without a file.

        TrainingInputError when the file is of another run.
        """
        if not self.path.exists():
            return [], 0.0
        saved = torch.load(self.path, map_location="cpu", weights_only=True)
        found = saved["facts"]
        other = sorted(name for name, value in self.facts.items() if found.get(name) != value)
        if other:
            raise TrainingInputError(
                f"expected {self.path} to be of a run with the same {', '.join(other)}, found "
                f"{', '.join(str(found.get(name)) for name in other)}; name another --progress file"
            )
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        return list(saved["losses"]), float(saved["seconds"])

    def write(self, model: Any, optimizer: torch.optim.Optimizer, losses: list[float], seconds: float) -> None:
        """Replace the file in one step, so that it is always whole."""
        fresh = self.path.with_name(self.path.name + ".new")
        state = {
            "facts": dict(self.facts),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "losses": losses,
            "seconds": seconds,
        }
        torch.save(state, fresh)
        os.replace(fresh, self.path)
