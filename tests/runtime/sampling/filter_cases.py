"""Filters of a request that each sampler must apply exactly, whatever its vocabulary."""

from __future__ import annotations

from typing import Any

FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 50, "top_p": 0.9},
    {"top_k": 5000},
    {"top_p": 1e-6},
    {"top_p": 0.5},
    {"top_p": 0.97},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 200, "top_p": 0.95, "min_p": 0.01},
)
