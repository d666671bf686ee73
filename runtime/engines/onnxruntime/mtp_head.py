"""A multi-token prediction head on ONNX Runtime: its file as it is, over packed rows and pools of its own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from artifact.config import MTP_CONFIG_FILE
from artifact.names import LOGITS, layer_output
from runtime.engines.mtp_head import HeadInputs, MtpHead
from runtime.engines.onnxruntime.paged_portable import PortablePagedEngine
from runtime.sampling import best_tokens


class MtpHeadEngine(PortablePagedEngine, MtpHead):
    """Runs mtp.onnx of an artifact, in float32."""

    _config_file: ClassVar[str] = MTP_CONFIG_FILE
    _model_file: ClassVar[str] = "mtp.onnx"

    def run(self, inputs: HeadInputs) -> tuple[list[int | None], np.ndarray]:
        name = layer_output(self.config.num_hidden_layers - 1)
        found = self.step_values(inputs, (name,))
        return best_tokens(found[LOGITS]), found[name]
