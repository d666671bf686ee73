"""Engines of a prediction head whose steps get hidden states by token and position, so that all scenarios run on them.

Each is the head used for generation, or, for engines that only verify, the same graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hybridge.artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE
from hybridge.runtime.engines.factory import NETWORK_ENGINES, ONNXRUNTIME, TENSORRT_NETWORK, TORCH
from hybridge.runtime.engines.hidden_rows import NOWHERE, ArrayRows
from hybridge.runtime.engines.mtp_head import HeadInputs
from hybridge.runtime.engines.onnxruntime.mtp_head import MtpHeadEngine
from hybridge.runtime.engines.onnxruntime.paged_portable import PortablePagedEngine
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.verification.head_states import HeadStates

PORTABLE = "onnxruntime-portable"
HEAD_ENGINES = (ONNXRUNTIME, PORTABLE, *NETWORK_ENGINES, TORCH)
"""Engines whose head a verification can run. TensorRT's own head returns only tokens."""


def open_head(folder: Path, name: str, states: HeadStates, float32: bool = False) -> PagedEngine:
    """The head of the artifact in ``folder`` on the engine ``name``, one of HEAD_ENGINES.

    float32: as of VerifyOptions. ArtifactError or EngineError where it cannot be opened.
    """
    if name == ONNXRUNTIME:
        return _FastHead(folder, states)
    if name == PORTABLE:
        return _PortableHead(folder, states)
    if name == TORCH:
        return _torch_head(folder, states)
    return _network_head(folder, name, states, float32)


@dataclass(frozen=True, eq=False, kw_only=True)
class _GivenStates(PackedInputs):
    """A step of the graph as it is, with the hidden states [tokens, hidden] themselves."""

    hidden_states: np.ndarray
    is_own: np.ndarray


def _fields(inputs: PackedInputs) -> dict[str, Any]:
    return {field.name: getattr(inputs, field.name) for field in fields(PackedInputs)}


def _head_inputs(inputs: PackedInputs, states: HeadStates, first: int) -> HeadInputs:
    """``inputs`` of a head that reads the table of ``states`` from the slot ``first`` on."""
    rows = len(inputs.logits_indices)
    return HeadInputs(
        **_fields(inputs),
        hidden_slots=first + states.rows(inputs.input_ids, inputs.positions),
        is_own=states.is_own(inputs.input_ids, inputs.positions),
        own_slots=np.full(rows, NOWHERE, np.int64),
        further=np.zeros(len(inputs.seq_lens), np.int32),
    )


class _FastHead(MtpHeadEngine):
    def __init__(self, folder: Path, states: HeadStates) -> None:
        super().__init__(folder, exact_products=True)
        rows = ArrayRows(0, len(states.table), self.config.hidden_size)
        rows.of_step[...] = states.table
        self.read_from(rows)
        self._states, self._first = states, rows.first

    def step(self, inputs: PackedInputs) -> np.ndarray:
        return super().step(_head_inputs(inputs, self._states, self._first))


class _PortableHead(PortablePagedEngine):
    _config_file: ClassVar[str] = MTP_CONFIG_FILE
    _model_file: ClassVar[str] = MTP_MODEL_FILE

    def __init__(self, folder: Path, states: HeadStates) -> None:
        super().__init__(folder)
        self._states = states

    def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
        ids, positions = inputs.input_ids, inputs.positions
        hidden = self._states.table[self._states.rows(ids, positions)]
        given = _GivenStates(**_fields(inputs), hidden_states=hidden, is_own=self._states.is_own(ids, positions))
        return super().step_values(given, values)


def _torch_head(folder: Path, states: HeadStates) -> PagedEngine:
    import torch

    from hybridge.runtime.engines.torch.hidden_states import TorchRows
    from hybridge.runtime.engines.torch.mtp_head import TorchMtpHead
    from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine

    class TorchHead(TorchMtpHead):
        def __init__(self, model: TorchPagedEngine) -> None:
            super().__init__(folder, model)
            shape = len(states.table), self.config.hidden_size
            rows = TorchRows(model.device, 0, *shape, self.config.dtype)
            with model.device.active():
                rows.tensor[rows.first :][: len(states.table)] = torch.from_numpy(states.table).to(rows.tensor)
            self.read_from(rows)
            self._model_engine, self._first = model, rows.first

        def step(self, inputs: PackedInputs) -> np.ndarray:
            return super().step(_head_inputs(inputs, states, self._first))

        def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
            return super().step_values(_head_inputs(inputs, states, self._first), values)

        def close(self) -> None:
            super().close()
            self._model_engine.close()

    with ExitStack() as on_error:
        model = TorchPagedEngine(folder)
        on_error.callback(model.close)
        head = TorchHead(model)
        on_error.pop_all()
    return head


def _network_head(folder: Path, name: str, states: HeadStates, float32: bool) -> PagedEngine:
    from hybridge.runtime.engines.tensorrt_network.mtp_head import (
        HiddenRowInputs,
        NativeNetworkMtpHead,
        NetworkMtpHead,
    )

    kind: Any = NetworkMtpHead if name == TENSORRT_NETWORK else NativeNetworkMtpHead

    class NetworkHead(kind):  # type: ignore[misc]  # one of two classes
        def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
            ids, positions = inputs.input_ids, inputs.positions
            given = HiddenRowInputs(
                **_fields(inputs),
                hidden_rows=states.table,
                hidden_slots=states.rows(ids, positions),
                is_own=states.is_own(ids, positions),
            )
            found: dict[str, np.ndarray] = super().step_values(given, values)
            return found

    engine: PagedEngine = NetworkHead(folder, float32)
    return engine
