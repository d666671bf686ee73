"""What a step needs on the host until it is done; steps that are launched ahead take turns with two of these."""

from __future__ import annotations

from contextlib import ExitStack

from hybridge.runtime.engines.tensorrt.memory import DeviceMemory
from hybridge.runtime.engines.tensorrt.paged.row_feeding import RowFeeding
from hybridge.runtime.engines.tensorrt.paged.step_arrays import StepArrays
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings
from hybridge.runtime.engines.tensorrt.step_sampling import StepSampling


class StepTurn:
    """``arrays``: the inputs, ``sampling``: settings and tokens, ``feeding``: how rows are fed, None if none is."""

    def __init__(self, memory: DeviceMemory, bindings: StepBindings, workspace: int, chained: bool) -> None:
        """``chained``: only for steps that are launched ahead. ``workspace``: as in StepSampling.

        OutOfDeviceMemory when there is too little memory.
        """
        self._owned = ExitStack()
        sizes = [bindings.decode_size] if chained else bindings.largest_sizes
        logits = bindings.buckets if chained else bindings.sampled_rows
        try:
            self.arrays = StepArrays(memory, bindings.inputs, sizes)
            self._owned.callback(self.arrays.free)
            self.sampling = StepSampling(memory, bindings.vocab_size, logits, workspace)
            self._owned.callback(self.sampling.free)
            self.feeding = RowFeeding(memory, bindings.buckets[-1]) if bindings.chains else None
            if self.feeding is not None:
                self._owned.callback(self.feeding.free)
        except BaseException:
            self._owned.close()
            raise

    def free(self) -> None:
        """Release the memory; calling it twice is allowed."""
        self._owned.close()
