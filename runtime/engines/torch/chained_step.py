"""A decode step that is launched while the step before it runs, and gets its tokens on the GPU."""

from __future__ import annotations

from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.paged_decode import PagedDecodeStep
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.runtime.engines.torch.paged_result import TorchStepResult
from hybridge.runtime.engines.torch.program import StepProgram
from hybridge.runtime.engines.torch.row_feeding import RowFeeding
from hybridge.runtime.engines.torch.sampling_memory import TorchSampling


class ChainedStep:
    """The step of ``size`` (rows, blocks). It may be launched again once its last run is done."""

    def __init__(
        self,
        device: TorchDevice,
        program: StepProgram,
        pools: TorchPools,
        size: tuple[int, int],
        chooser: TorchSampling | None,
    ) -> None:
        """``chooser``: as in PagedDecodeStep; no other step may use it."""
        self._chooser, self._feeding = chooser, RowFeeding(device, size[0])
        self.decode = PagedDecodeStep(device, program, pools, *size, chooser, self._feeding)

    def launch(self, inputs: PackedInputs, before: TorchStepResult, feeding: Feeding) -> TorchStepResult:
        """Enqueue the step ``inputs``, whose rows get tokens of ``before`` unless these end them."""
        self.prepare(inputs, before, feeding)
        return self.run(inputs)

    def prepare(self, inputs: PackedInputs, before: TorchStepResult, feeding: Feeding) -> None:
        """``launch`` up to what it enqueues, which ``run`` does."""
        before.feed(self._feeding, feeding)
        if self._chooser is not None:
            self._chooser.fill(feeding.samplings)
        self.decode.fill(inputs)

    def run(self, inputs: PackedInputs) -> TorchStepResult:
        """Enqueue the step ``inputs``, which has been prepared."""
        return self.decode.run(inputs)
