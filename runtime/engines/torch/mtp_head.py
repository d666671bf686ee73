"""A multi-token prediction head on the torch engine: on the model's device, weights of both there once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch

from hybridge.artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE
from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import layer_output
from hybridge.runtime.engines.hidden_rows import HiddenRows
from hybridge.runtime.engines.mtp_head import HeadInputs, MtpHead, finite
from hybridge.runtime.engines.torch.autoregressive_steps import AutoregressiveSteps
from hybridge.runtime.engines.torch.fusion import Phase
from hybridge.runtime.engines.torch.hidden_states import HeadProgram, TorchRows
from hybridge.runtime.engines.torch.paged_decode import padded_blocks, padded_rows
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.program import StepProgram


class TorchMtpHead(TorchPagedEngine, MtpHead):
    """The head of the artifact in ``folder``, whose model ``engine`` runs. Steps of both take turns in one stream.

    A proposal is two launches on a GPU, of the step over what is certain and of all steps from the head's own.
    """

    _config_file: ClassVar[str] = MTP_CONFIG_FILE
    _model_file: ClassVar[str] = MTP_MODEL_FILE

    def __init__(self, folder: str | Path, engine: TorchPagedEngine) -> None:
        """Errors as of TorchPagedEngine."""
        self._autoregressive_steps: dict[tuple[int, int, int], AutoregressiveSteps] = {}
        self._tokens = torch.empty(0)
        self._open(folder, engine.device, engine.weights)

    def read_from(self, rows: HiddenRows) -> None:
        assert isinstance(rows, TorchRows), "the model's engine is a torch engine too"
        self._forget_recorded()
        self._rows = rows
        self._tokens = self.device.zeros(rows.first, dtype=torch.int64)

    @property
    def autoregressive_steps(self) -> Mapping[tuple[int, int, int], AutoregressiveSteps]:
        """Prepared GPU steps that continue from the head's own states, by number of steps, rows and blocks."""
        return self._autoregressive_steps

    def run(self, inputs: HeadInputs) -> list[list[int]]:
        if self._rows is None:
            raise EngineError("expected hidden states, found none: call read_from first")
        first, own = self.launch(inputs), None
        if inputs.autoregressive_steps:
            own = self._prepared(inputs)
            own.launch(inputs)
        found = [[token] for token in first.best_tokens()]
        if own is not None:
            # best_tokens has waited for the first step alone.
            self.device.synchronize()
            own.add_tokens(found)
        return [finite(tokens) for tokens in found]

    def _prepared(self, inputs: HeadInputs) -> AutoregressiveSteps:
        """The steps that continue from the step ``inputs``."""
        rows = [int((inputs.further > index).sum()) for index in range(inputs.autoregressive_steps)]
        blocks = inputs.block_table.shape[1]
        if not self.device.is_gpu:
            return self._made(rows, blocks)
        most, blocks = padded_rows(rows[0], self.limits.max_rows), padded_blocks(blocks, self.pools.sizes.block_size)
        key = len(rows), most, blocks
        if key not in self._autoregressive_steps:
            self._autoregressive_steps[key] = self._made([most] * len(rows), blocks)
        return self._autoregressive_steps[key]

    def _made(self, rows: Sequence[int], blocks: int) -> AutoregressiveSteps:
        program = self._program(Phase.DECODE)
        assert isinstance(program, HeadProgram)
        return AutoregressiveSteps(self.device, program, self.pools, rows, blocks)

    def _forget_recorded(self) -> None:
        super()._forget_recorded()
        self._autoregressive_steps.clear()

    def _program(self, phase: Phase, values: Sequence[str] = ()) -> StepProgram:
        value = layer_output(self.config.num_hidden_layers - 1)
        program = self._model.program(phase, (*dict.fromkeys((value, *values)),))
        return program if self._rows is None else HeadProgram(program, value, self._rows, self._tokens)
