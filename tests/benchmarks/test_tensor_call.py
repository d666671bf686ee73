"""A benchmark's call keeps the memory that it launches kernels on."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("torch", reason="the kernel benchmarks need torch")

import torch

from benchmarks.kernels import tensor_call
from hybridge.trt_plugins.kernels.call import CallPlan


class Device:
    """Binds nothing."""

    def bind(self, plan: CallPlan) -> CallPlan:
        return plan


def test_its_memory_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []

    def empty(*arguments: Any, **more: Any) -> Any:
        tensor = torch.zeros(*arguments, **more)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(tensor_call.torch, "empty", empty)
    tensors = [torch.ones(3), torch.ones(5)]
    made += [weakref.ref(tensor) for tensor in tensors]
    call = tensor_call.TensorCall(Device(), CallPlan((), workspace_bytes=1000), [tensors[0], None], [tensors[1]])  # type: ignore[arg-type]
    tensors.clear()
    gc.collect()
    assert len(made) == 3 and all(tensor() is not None for tensor in made)
    workspace = made[-1]()
    assert workspace is not None
    first, end = workspace.data_ptr(), workspace.data_ptr() + workspace.numel()
    assert first <= call._workspace and call._workspace + 1000 <= end and call._workspace % 256 == 0
    del call, workspace
    gc.collect()
    assert all(tensor() is None for tensor in made)
