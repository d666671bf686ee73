"""Runs a dense artifact by computing the network that TensorRT's parser makes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from hybridge.artifact.bindings import Binding
from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.dense import DenseEngine, StateSet, StepInputs, read_dense_config
from hybridge.runtime.engines.step_check import check_step
from hybridge.runtime.engines.tensorrt.states import too_long
from hybridge.runtime.engines.tensorrt_network.parsed import parse_artifact
from hybridge.runtime.engines.tensorrt_network.profile_shapes import check_within
from hybridge.runtime.engines.tensorrt_network.states import check_values, computed_specs, run_in_place
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.state_memory import StatePool
from hybridge.runtime.engines.torch.states import TorchStateSet
from hybridge.trt_plugins.build.profiles import PREFILL


class NetworkEngine(DenseEngine):
    """Computes an artifact's network on the CPU, in its declared types; plugins run operators' references."""

    name: ClassVar[str] = "tensorrt-network"
    _plugins: ClassVar[str] = "auto"

    def __init__(self, folder: str | Path, widen: bool = False) -> None:
        """Parse the artifact in ``folder``; ``widen``: compute 16-bit tensors in float32.

        Errors as in ``parse_artifact``, and EngineError for another layout.
        """
        self.config = read_dense_config(Path(folder))
        parsed = parse_artifact(Path(folder), widen, plugins=self._plugins)
        self._plan, self._network, self.notes = parsed.plan, parsed.network, parsed.notes
        self._specs = computed_specs(self.config.bindings.states, widen)
        self._device = TorchDevice("cpu")
        self._pool = StatePool(self._specs, self._device)
        prefill = next(profile.shapes for profile in self._plan.profiles if profile.name == PREFILL)
        self._step_tokens = prefill[INPUT_IDS][-1][1]

    @property
    def state_specs(self) -> tuple[Binding, ...]:
        return self._specs

    @property
    def max_step_tokens(self) -> int:
        return self._step_tokens

    @property
    def shows_values(self) -> bool:
        return True

    def allocate_states(self, batch: int, max_seq: int) -> TorchStateSet:
        self.check_batch(batch)
        if max_seq > self.max_seq_len:
            raise too_long(max_seq, self.max_seq_len)
        # The network's caches have a fixed length.
        return TorchStateSet(self._specs, self._device, self._pool, batch, self.max_seq_len, self.max_seq_len)

    def step(self, inputs: StepInputs, states: StateSet) -> np.ndarray:
        return self.step_values(inputs, states, ())[self.config.result.name]

    def step_values(self, inputs: StepInputs, states: StateSet, values: Sequence[str]) -> dict[str, np.ndarray]:
        assert isinstance(states, TorchStateSet)
        check_values(self._network, values)
        check_step(inputs, states.batch, self.max_step_tokens, states.max_seq)
        arrays = {
            INPUT_IDS: inputs.input_ids,
            CONTEXT_LENGTHS: inputs.context_lengths,
            PAST_LENGTHS: inputs.past_lengths,
        }
        check_within(self._plan.profiles, {name: array.shape for name, array in arrays.items()})
        return self._run(arrays, states.memory.tensors, values)

    def close(self) -> None:
        self._pool.close()

    def _run(
        self, arrays: Mapping[str, np.ndarray], states: Mapping[str, torch.Tensor], values: Sequence[str]
    ) -> dict[str, np.ndarray]:
        found = run_in_place(self._network, self._specs, arrays, states, values)
        return {name: found[name].float().numpy() for name in (self.config.result.name, *values)}


class NativeNetworkEngine(NetworkEngine):
    """The same network without plugins: every operator consists of TensorRT layers."""

    name: ClassVar[str] = "tensorrt-network-native"
    _plugins: ClassVar[str] = "off"
