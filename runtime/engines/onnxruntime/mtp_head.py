"""A multi-token prediction head on ONNX Runtime: mtp.onnx as the paged engine runs graphs, over pools of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE
from artifact.errors import EngineError
from artifact.names import HIDDEN_STATES, IS_OWN
from runtime.engines.hidden_rows import ArrayRows, HiddenRows
from runtime.engines.mtp_head import HeadInputs, MtpHead
from runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from runtime.engines.onnxruntime.paged_feeds import PagedRun
from runtime.engines.paged import PackedInputs
from runtime.sampling import best_tokens


class MtpHeadEngine(OnnxRuntimePagedEngine, MtpHead):
    """Runs the head of the artifact in ``folder`` in float32."""

    _config_file: ClassVar[str] = MTP_CONFIG_FILE
    _model_file: ClassVar[str] = MTP_MODEL_FILE

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        super().__init__(folder, threads)
        self._rows: ArrayRows | None = None
        self._show(np.empty((self.limits.max_tokens, self.config.hidden_size), np.float32))

    def read_from(self, rows: HiddenRows) -> None:
        assert isinstance(rows, ArrayRows), "the model's engine computes in host memory too"
        self._rows = rows

    def run(self, inputs: HeadInputs) -> list[int | None]:
        if self._rows is None:
            raise EngineError("expected hidden states, found none: call read_from first")
        found = best_tokens(self.step(inputs))
        assert self._hidden is not None
        self._rows.array[inputs.own_places] = self._hidden[inputs.logits_indices]
        return found

    def _more_feeds(self, inputs: PackedInputs, run: PagedRun) -> Mapping[str, np.ndarray]:
        assert isinstance(inputs, HeadInputs) and self._rows is not None
        hidden = self._rows.array[inputs.hidden_places[run.tokens]]
        return {HIDDEN_STATES: hidden, IS_OWN: inputs.is_own[run.tokens]}
