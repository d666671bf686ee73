"""A multi-token prediction head on ONNX Runtime: mtp.onnx, run like graphs of the paged engine, over its own pools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from hybridge.artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import HIDDEN_STATES, IS_OWN
from hybridge.runtime.engines.hidden_rows import ArrayRows, HiddenRows
from hybridge.runtime.engines.mtp_head import HeadInputs, MtpHead, finite
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.onnxruntime.paged_feeds import PagedRun
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.sampling import best_tokens


class MtpHeadEngine(OnnxRuntimePagedEngine, MtpHead):
    """Runs the head of the artifact in ``folder`` in float32. exact_products: as in EngineOptions."""

    _config_file: ClassVar[str] = MTP_CONFIG_FILE
    _model_file: ClassVar[str] = MTP_MODEL_FILE

    def __init__(self, folder: str | Path, threads: int | None = None, exact_products: bool = False) -> None:
        super().__init__(folder, threads, exact_products=exact_products)
        self._rows: ArrayRows | None = None
        self._show(np.empty((self.limits.max_tokens, self.config.hidden_size), np.float32))

    def read_from(self, rows: HiddenRows) -> None:
        assert isinstance(rows, ArrayRows), "the model's engine computes in host memory too"
        self._rows = rows

    def run(self, inputs: HeadInputs) -> list[list[int]]:
        if self._rows is None:
            raise EngineError("expected hidden states, found none: call read_from first")
        found = [[token] for token in self._best(inputs)]
        for index in range(inputs.autoregressive_steps):
            rows, step = inputs.own_step(index, self.pools.sizes.block_size)
            # Nothing after a token that is None is valid.
            step.input_ids[...] = [found[row][-1] or 0 for row in rows]
            for row, token in zip(rows, self._best(step), strict=True):
                found[row].append(token)
        return [finite(tokens) for tokens in found]

    def _best(self, inputs: HeadInputs) -> list[int | None]:
        """The most likely token after each row; the row's own hidden state is stored."""
        assert self._rows is not None
        found = best_tokens(self.step(inputs))
        (hidden,) = self._shown.values()
        self._rows.array[inputs.own_slots] = hidden[inputs.logits_indices]
        return found

    def _more_feeds(self, inputs: PackedInputs, run: PagedRun) -> Mapping[str, np.ndarray]:
        assert isinstance(inputs, HeadInputs) and self._rows is not None
        hidden = self._rows.array[inputs.hidden_slots[run.tokens]]
        return {HIDDEN_STATES: hidden, IS_OWN: inputs.is_own[run.tokens]}
