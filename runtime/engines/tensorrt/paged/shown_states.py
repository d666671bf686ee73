"""The hidden states that the steps of a model's engine write."""

from __future__ import annotations

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory
from hybridge.runtime.engines.tensorrt.paged.hidden_rows import DeviceRows
from hybridge.runtime.engines.tensorrt.paged.paged_steps import PagedSteps
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings
from hybridge.runtime.engines.tensorrt.paged.step_hidden import ShownHidden, StepHidden
from hybridge.runtime.engines.tensorrt.paged.step_parts import StepPart
from hybridge.trt_plugins.rewrites.hidden_states import HiddenForm


class ShownStates:
    """The rows for an engine's output of hidden states: bound from the start, even if nothing reads them."""

    def __init__(self, memory: DeviceMemory, steps: PagedSteps, bindings: StepBindings, config: RuntimeConfig) -> None:
        """OutOfDeviceMemory when there is too little memory."""
        self._memory, self._steps, self._bindings, self._config = memory, steps, bindings, config
        self._rows: DeviceRows | None = None
        self._is_read = False
        if self.exist:
            self._make(0)

    @property
    def exist(self) -> bool:
        """Whether the engine has the output."""
        return self._bindings.hidden is HiddenForm.SHOWN

    def show(self, reserved: int) -> DeviceRows:
        """New rows, with ``reserved`` slots for the caller, in place of the previous ones; no step may be pending."""
        if not self.exist:
            raise EngineError(
                "expected an engine that shows hidden states, found one without: run hybridge build-engine again with "
                "--speculative-tokens for an artifact with a prediction head"
            )
        self._is_read = True
        return self._make(reserved)

    def collect(self, part: StepPart, whole: PackedInputs) -> None:
        """Collect the rows of ``part``; to be called once it is enqueued."""
        if self._rows is not None and self._is_read and part.inputs is not whole:
            self._rows.collect(part.tokens)

    def join(self, whole: PackedInputs) -> None:
        """Join the collected rows of ``whole``; to be called once all its parts are enqueued."""
        if self._rows is not None and self._is_read:
            self._rows.join(len(whole.input_ids))

    def free(self) -> None:
        """Release the rows; calling it twice is allowed."""
        self._steps.use_hidden(StepHidden())
        if self._rows is not None:
            self._rows.free()
            self._rows = None

    def _make(self, reserved: int) -> DeviceRows:
        self.free()
        tokens, own = self._bindings.most_tokens, self._bindings.largest.logits
        dtype = self._config.dtype
        self._rows = DeviceRows(self._memory, reserved, tokens, own, self._config.hidden_size, dtype)
        self._steps.use_hidden(ShownHidden(self._rows))
        return self._rows
