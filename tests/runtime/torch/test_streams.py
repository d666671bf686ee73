"""All work on the device is enqueued in the engine's stream: nothing orders it with work of another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hybridge.runtime.engines.torch import engine as engine_module
from hybridge.runtime.engines.torch.device import TorchDevice
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.runtime.onnxruntime.steps import relative_error, step_inputs


class Stream(TorchDevice):
    """A GPU as far as memory and streams go, whose memory is host memory; knows whether its stream is current."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__("cpu")
        self.is_gpu, self.is_current = True, False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:  # type: ignore[override]
        before, self.is_current = self.is_current, True
        try:
            yield
        finally:
            self.is_current = before

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        with self.active():  # the host's own work
            return torch.zeros(shape, dtype=dtype)

    def mapped(self, *shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        host = self.pinned(*shape, dtype=dtype)
        return host, host[...]


class Elsewhere(TorchDispatchMode):
    """Notes the operators that run while the stream is not current; views are no work."""

    def __init__(self, device: Stream) -> None:
        super().__init__()
        self.device, self.found, self.seen = device, [], 0  # type: ignore[var-annotated]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += self.device.is_current
        if not self.device.is_current and not func.is_view:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_no_work_leaves_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "TorchDevice", Stream)
    made = HandMade(Plan())
    engine = engine_module.TorchEngine(made.write(tmp_path / "artifact"))
    device, tokens = engine.device, np.arange(3, 15)
    assert isinstance(device, Stream)
    with Elsewhere(device) as elsewhere:
        first = engine.allocate_states(2, 16)
        engine.step(step_inputs([tokens[:4], tokens[:2]], [0, 0]), first)
        engine.step(step_inputs([tokens[4:5], tokens[2:3]], [4, 2]), first)
        first.reserve(20)
        engine.decoder([0], first).step([int(tokens[5])], [5])
        second = engine.allocate_states(1, 24)
        for name, buffer in first.buffers.items():
            second.buffers[name].take_row(0, buffer, 0, 6)
            buffer.copy_row(0, 1)
            buffer.write_row(1, buffer.read_row(0))
            buffer.zero_rows([1])
        logits = engine.decoder([0], second).step([int(tokens[6])], [6])[0]
        states = second.memory.tensors
        engine.close()
    assert relative_error(logits, made.logits(tokens[:7])[-1]) < 1e-5
    assert elsewhere.found == [] and elsewhere.seen > 100 and states


def test_the_watch_sees_work_elsewhere() -> None:
    device = Stream()
    with Elsewhere(device) as elsewhere:
        with device.active():
            device.zeros(3, dtype=torch.float32)
        tensor = torch.zeros(3)
        tensor[:2].fill_(1.0)
    assert elsewhere.found == ["aten.zeros.default", "aten.fill_.Scalar"] and elsewhere.seen == 1
