"""Hybridge: export, verify, build and run hybrid language models at the edge.

    import hybridge

    hybridge.export("path/to/checkpoint", "out", dtype="float16")
    llm = hybridge.LLM("out")
    for piece in llm.generate("Once upon a time", max_new_tokens=64, stream=True):
        print(piece.text, end="")

Every name is imported when it is first used: running an artifact needs neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hybridge.artifact import errors
from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.version import __version__

if TYPE_CHECKING:
    from hybridge.api import build_engine, evaluate, export, inspect, quantize, verify
    from hybridge.runtime.async_llm import AsyncLLM
    from hybridge.runtime.llm import LLM
    from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
    from hybridge.runtime.sampling import SamplingParams
    from hybridge.runtime.serving.settings import ServingSettings
    from hybridge.runtime.speculation import DraftModel, SpeculationSettings
    from hybridge.transformers_host.accelerate import accelerate

__all__ = [
    "LLM",
    "AsyncLLM",
    "DraftModel",
    "HybridgeError",
    "PrefixCacheSettings",
    "SamplingParams",
    "ServingSettings",
    "SpeculationSettings",
    "__version__",
    "accelerate",
    "build_engine",
    "errors",
    "evaluate",
    "export",
    "inspect",
    "quantize",
    "verify",
]

_HOMES = {
    "LLM": "hybridge.runtime.llm",
    "AsyncLLM": "hybridge.runtime.async_llm",
    "DraftModel": "hybridge.runtime.speculation",
    "PrefixCacheSettings": "hybridge.runtime.prefix_cache.settings",
    "SamplingParams": "hybridge.runtime.sampling",
    "ServingSettings": "hybridge.runtime.serving.settings",
    "SpeculationSettings": "hybridge.runtime.speculation",
    "accelerate": "hybridge.transformers_host.accelerate",
    "build_engine": "hybridge.api",
    "evaluate": "hybridge.api",
    "export": "hybridge.api",
    "inspect": "hybridge.api",
    "quantize": "hybridge.api",
    "verify": "hybridge.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hybridge' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
