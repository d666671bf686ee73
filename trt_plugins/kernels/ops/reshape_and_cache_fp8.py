"""The kernel of ``reshape_and_cache_fp8``, as the catalog wants it."""

from __future__ import annotations

from hybridge.trt_plugins.kernels.ops.reshape_and_cache import plan_fp8 as plan
from hybridge.trt_plugins.kernels.ops.reshape_and_cache import sources_fp8 as sources

__all__ = ["plan", "sources"]
