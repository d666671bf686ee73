"""A multi-token prediction head on TensorRT: its engine, in the memory and on the stream of the model's engine."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from hybridge.artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE
from hybridge.artifact.engine_record import ENGINE_FILE, HEAD_FOLDER, read_engine_record
from hybridge.artifact.errors import EngineError
from hybridge.artifact.limits import ONNX_BYTES
from hybridge.artifact.untrusted_file import has_file, read_inside
from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.hidden_rows import NOWHERE, HiddenRows
from hybridge.runtime.engines.mtp_head import HeadInputs, MtpHead, finite
from hybridge.runtime.engines.tensorrt.paged.engine import TensorRTPagedEngine
from hybridge.runtime.engines.tensorrt.paged.hidden_rows import DeviceRows
from hybridge.runtime.engines.tensorrt.paged.result import DeviceResult
from hybridge.runtime.engines.tensorrt.paged.step_hidden import ReadHidden
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine


class TensorRTMtpHead(TensorRTPagedEngine, MtpHead):
    """The head of the artifact in ``folder``, whose model ``engine`` runs. Steps of both take turns in one stream.

    The steps in which the head continues from its own states are launched ahead: the tokens stay on the GPU.
    """

    _config_file: ClassVar[str] = MTP_CONFIG_FILE

    def __init__(self, folder: str | Path, engine: TensorRTPagedEngine) -> None:
        """EngineError where the build has no engine of the head, or one that cannot be loaded."""
        self._rows: DeviceRows | None = None
        built = _built_head(Path(folder), engine.built)
        super().__init__(folder, built, engine.memory, engine.library, owns_device=False)
        nbytes = self.bindings.largest.logits * self.bindings.hidden_row_bytes
        self._own = self.memory.allocate(nbytes, "the head's hidden states")
        self._resources.callback(self._own.free)

    def read_from(self, rows: HiddenRows) -> None:
        assert isinstance(rows, DeviceRows), "the model's engine is a TensorRT engine too"
        if rows.own < self.bindings.largest.logits or rows.count > self.bindings.num_hidden:
            raise EngineError(
                f"expected up to {self.bindings.num_hidden} rows of hidden states, for which the head's engine was "
                f"built, found {rows.count}: build it and the model's with one command"
            )
        self._settle()
        self._steps.use_hidden(ReadHidden(self.memory, rows, self._own))
        self._rows = rows

    def run(self, inputs: HeadInputs) -> list[list[int]]:
        if self._rows is None:
            raise EngineError("expected hidden states, found none: call read_from first")
        rows, size = self._rows, self.pools.sizes.block_size
        every = np.arange(len(inputs.seq_lens))
        active, last = every, self.launch(inputs)
        stored = np.flatnonzero(inputs.own_slots != NOWHERE)
        rows.copy((rows.own_first + stored).tolist(), inputs.own_slots[stored].tolist())
        found: list[list[int | None]] = [[] for _ in every]
        for index in range(inputs.autoregressive_steps):
            following, step = _own_step(inputs, index, size, rows.own_first)
            result = self.launch_next(last, step, Feeding([()] * len(every), {}))
            _append(found, active, last)
            if result is None:  # the host has to choose tokens
                step.input_ids[following] = [found[row][-1] or 0 for row in following]
                result = self.launch(step)
            active, last = following, result
        _append(found, active, last)
        return [finite(tokens) for tokens in found]


def _append(found: list[list[int | None]], rows: np.ndarray, result: DeviceResult) -> None:
    """Append the tokens of ``result`` for its ``rows``; the others are padding."""
    tokens = result.best_tokens()
    for row in rows.tolist():
        found[row].append(tokens[row])


def _own_step(inputs: HeadInputs, index: int, block_size: int, own_first: int) -> tuple[np.ndarray, HeadInputs]:
    """The rows of ``HeadInputs.own_step``, and that step in all rows, where the others are padding.

    Each row reads the head's state of its own row in the step before.
    """
    rows, step = inputs.own_step(index, block_size)
    count = len(inputs.seq_lens)

    def spread(array: np.ndarray, value: int) -> np.ndarray:
        whole = np.full((count, *array.shape[1:]), value, array.dtype)
        whole[rows] = array
        return whole

    bounds = np.arange(count + 1, dtype=np.int32)
    return rows, replace(
        step,
        input_ids=spread(step.input_ids, 0),
        positions=spread(step.positions, 0),
        query_start_loc=bounds,
        seq_lens=spread(step.seq_lens, 0),
        block_table=spread(step.block_table, -1),
        slot_mapping=spread(step.slot_mapping, -1),
        state_indices=spread(step.state_indices, -1),
        logits_indices=bounds[:-1],
        hidden_slots=own_first + np.arange(count),
        is_own=np.ones(count, np.int32),
        own_slots=spread(step.own_slots, 0),
        further=np.zeros(count, np.int32),
    )


def _built_head(artifact: Path, model: BuiltEngine) -> BuiltEngine:
    folder = model.folder / HEAD_FOLDER
    if not has_file(folder, ENGINE_FILE):
        raise EngineError(
            f"{folder}: expected the engine of the prediction head, found none: {model.build_again} "
            "--speculative-tokens N"
        )
    record = read_engine_record(folder / ENGINE_FILE)
    if (record.library, record.library_version) != (model.record.library, model.record.library_version):
        raise EngineError(f"{folder}: expected an engine of the model's build, found another: {model.build_again}")
    if hashlib.sha256(read_inside(artifact, MTP_MODEL_FILE, ONNX_BYTES)).hexdigest() != record.model_sha256:
        raise EngineError(f"{folder}: expected an engine of {MTP_MODEL_FILE}, found another: {model.build_again}")
    return BuiltEngine(folder, record, model.build_again)
