"""Matrix products."""

from __future__ import annotations

import torch

from hybridge.runtime.engines.torch.node_context import Builder

ROWS: dict[str, Builder] = {"MatMul": lambda context: torch.matmul}
