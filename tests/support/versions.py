"""Marks of tests that need newer versions of packages than Python 3.10 can install."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest


def _before(package: str, *release: int) -> bool:
    """Whether ``package`` is installed in a version before ``release``."""
    try:
        numbers = version(package).split(".")[: len(release)]
    except PackageNotFoundError:
        return False
    return tuple(map(int, numbers)) < release


OLD_ONNXRUNTIME = _before("onnxruntime", 1, 24)
OLD_TRANSFORMERS = _before("transformers", 5, 23)

needs_opset_24 = pytest.mark.skipif(OLD_ONNXRUNTIME, reason="an ONNX Runtime before 1.24 does not know opset 24")
needs_repeated_heads = pytest.mark.skipif(
    OLD_TRANSFORMERS, reason="the delta rule of a transformers before 5.23 does not repeat heads"
)


def skip_without_family(model_type: str) -> None:
    """Skip where the installed transformers is too old to have ``model_type``."""
    if OLD_TRANSFORMERS:
        from transformers import CONFIG_MAPPING

        if model_type not in CONFIG_MAPPING:
            pytest.skip(f"transformers {version('transformers')} has no {model_type}")


def skip_ungrouped_norms(family: str) -> None:
    """Skip where the installed transformers computes wrong gated norms of several groups."""
    if OLD_TRANSFORMERS and family in ("bamba", "granitemoehybrid", "mamba2"):
        pytest.skip("a transformers before 5.23 ignores the groups of gated norms")


def skip_without_delta_rule_kernels(family: str, engine: str = "onnxruntime") -> None:
    """Skip where the installed ONNX Runtime cannot roll back draft tokens of the gated delta rule."""
    if OLD_ONNXRUNTIME and engine == "onnxruntime" and family in ("qwen3_next", "qwen3_5", "olmo_hybrid"):
        pytest.skip("an ONNX Runtime before 1.24 cannot roll back draft tokens of the gated delta rule")
