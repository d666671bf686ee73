"""The benchmark of generate() does not need a package that refuses its models."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch", reason="the peer needs torch")
pytest.importorskip("transformers", reason="the peer is transformers")

from benchmarks import accelerated_generate
from benchmarks.accelerated_generate import PLAIN, AcceleratedSettings


def _refused(x: int) -> int:
    raise RuntimeError("requires strides to be multiples of 8")


def test_transformers_computes_with_its_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import hub_kernels

    wrap = getattr(hub_kernels, "use_kernel_func_from_hub_with_fallback", None)
    if wrap is None:
        pytest.skip("this transformers calls no installed packages by itself")
    package = ModuleType("causal_conv1d")
    monkeypatch.setattr(package, "causal_conv1d_fn", _refused, raising=False)
    monkeypatch.setitem(sys.modules, "causal_conv1d", package)
    function = wrap("causal_conv1d_fn", "causal_conv1d")(lambda x: 2 * x)
    with pytest.raises(RuntimeError, match="multiples of 8"):
        function(1)

    class Model:
        vocab_size = 7

        def __init__(self, *_: object, **__: object) -> None: ...

        def accelerated(self, *_: object, **__: object) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def generate(self, prompt: np.ndarray, new_tokens: int) -> list[int]:
            return [function(1)] * new_tokens

        def generate_seconds(self, prompts: np.ndarray, new_tokens: int) -> float:
            return float(function(1))

    monkeypatch.setattr(accelerated_generate, "Peer", Model)
    report = accelerated_generate.run(AcceleratedSettings(engines="onnxruntime", repeats=1))
    assert all(set(each["token_ms"]) == {PLAIN, "onnxruntime"} for each in report.results.values())
