"""A multi-token prediction head on the torch engine: on the model's device, weights of both there once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE
from artifact.names import layer_output
from runtime.engines.hidden_rows import HiddenRows
from runtime.engines.mtp_head import HeadInputs, MtpHead
from runtime.engines.torch.fusion import Phase
from runtime.engines.torch.hidden_states import HeadProgram, TorchRows
from runtime.engines.torch.paged_engine import TorchPagedEngine
from runtime.engines.torch.program import StepProgram


class TorchMtpHead(TorchPagedEngine, MtpHead):
    """The head of the artifact in ``folder``, whose model ``engine`` runs. Steps of both take turns in one stream."""

    _config_file: ClassVar[str] = MTP_CONFIG_FILE
    _model_file: ClassVar[str] = MTP_MODEL_FILE

    def __init__(self, folder: str | Path, engine: TorchPagedEngine) -> None:
        """Errors as of TorchPagedEngine."""
        self._open(folder, engine.device, engine.weights)

    def read_from(self, rows: HiddenRows) -> None:
        assert isinstance(rows, TorchRows), "the model's engine is a torch engine too"
        self._forget_recorded()
        self._rows = rows

    def run(self, inputs: HeadInputs) -> list[int | None]:
        return self.launch(inputs).best_tokens()

    def _program(self, phase: Phase, values: Sequence[str] = ()) -> StepProgram:
        value = layer_output(self.config.num_hidden_layers - 1)
        program = self._model.program(phase, (value,))
        return program if self._rows is None else HeadProgram(program, value, self._rows)
