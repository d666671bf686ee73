"""The torch engine for paged artifacts: packed steps on a CUDA GPU with this project's kernels, or on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from hybridge.artifact.names import LOGITS, layer_output
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.runtime.engines.chained_steps import Feeding, PreparedNext
from hybridge.runtime.engines.packed_check import check_packed, check_token_ids
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.pooled import PackingEngine
from hybridge.runtime.engines.rollback.draft_inputs import DraftInputs
from hybridge.runtime.engines.rollback.modes import AUTO, SNAPSHOT, chosen_modes
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.engines.torch.advance_step import AdvanceStep
from hybridge.runtime.engines.torch.chained_step import ChainedStep
from hybridge.runtime.engines.torch.deferred_states import MOST_DEFERRED, DeferredStates, RollbackLimits
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.fusion import Phase
from hybridge.runtime.engines.torch.fusion.state_rings import RingLayer
from hybridge.runtime.engines.torch.hidden_states import ShowingProgram, TorchRows
from hybridge.runtime.engines.torch.model import TorchModel
from hybridge.runtime.engines.torch.packed_step import PackedStep, StepShape
from hybridge.runtime.engines.torch.paged_decode import PagedDecodeStep
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.runtime.engines.torch.paged_result import TorchStepResult
from hybridge.runtime.engines.torch.paged_steps import PagedSteps
from hybridge.runtime.engines.torch.program import StepProgram
from hybridge.runtime.engines.torch.ringed_pools import RingedPools
from hybridge.runtime.engines.torch.state_rings import RingProgram, ring_bytes
from hybridge.runtime.engines.torch.step_memory import StepMemory
from hybridge.runtime.engines.torch.step_shapes import padded_tokens
from hybridge.runtime.engines.torch.weights import WeightStore
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling

# Tokens of a block in the trial step that finds the sizes of stored inputs.
_TRIED_BLOCK = 16


class TorchPagedEngine(PackingEngine[TorchPools]):
    """Runs a paged artifact's graph in its declared types, and updates the pools in place.

    On a GPU steps are padded to recurring shapes. The first step of a shape plans its kernel calls, and
    from the second on it is one launch of a CUDA graph.
    """

    name: ClassVar[str] = "torch"
    _model_file: ClassVar[str] = MODEL_FILE

    def __init__(self, folder: str | Path, device: str | None = None, chains_steps: bool = True) -> None:
        """Load the artifact in ``folder``; arguments and errors are those of ``TorchEngine``.

        chains_steps: whether ``launch_next`` is offered, which it is on a GPU alone.
        """
        self._open(folder, TorchDevice(device), chains_steps=chains_steps)

    def _open(
        self, folder: str | Path, device: TorchDevice, shared: WeightStore | None = None, chains_steps: bool = False
    ) -> None:
        """Load the graph on ``device``; weights that are in ``shared`` too are loaded once."""
        super().__init__(folder)
        self._chains_steps = chains_steps and device.is_gpu
        self._device = device
        self._step_tokens = device.step_tokens
        self._specs = self.config.bindings.states
        self._model = TorchModel(self._folder, self.config, device, self._model_file, shared)
        self._rows: TorchRows | None = None
        self._deferred: DeferredStates | None = None
        self._memory = StepMemory(self._device)
        self._steps = PagedSteps(self._device, self.limits, self._memory, self.config.vocab_size, self.chains_steps)
        self._ring_layers: tuple[RingLayer, ...] = ()
        # Made now, so that an artifact that this engine cannot run is refused before the first token.
        self._program(Phase.PREFILL)
        self._program(Phase.DECODE)

    @property
    def slot_bytes(self) -> int:
        return super().slot_bytes + ring_bytes(self._ring_layers)

    @property
    def shows_values(self) -> bool:
        return True

    @property
    def shows_hidden_states(self) -> bool:
        return True

    def show_hidden_states(self, reserved: int) -> TorchRows:
        self._device.synchronize()
        self._forget_recorded()
        self._rows = TorchRows(
            self._device, reserved, self.limits.max_tokens, self.config.hidden_size, self.config.dtype
        )
        return self._rows

    @property
    def device(self) -> TorchDevice:
        """The device."""
        return self._device

    @property
    def weights(self) -> WeightStore:
        """The weights that its graph reads."""
        return self._model.weights

    @property
    def decode_steps(self) -> Mapping[tuple[int, int], PagedDecodeStep]:
        """The steps that have been prepared on a GPU, by rows and blocks."""
        return self._steps.decode

    @property
    def sampling_steps(self) -> Mapping[tuple[int, int, bool], PagedDecodeStep]:
        """Decode steps that sample tokens, by rows, blocks and whether likely tokens are listed."""
        return self._steps.sampling

    @property
    def chained_steps(self) -> Mapping[tuple[int, int, bool, bool], ChainedStep]:
        """Decode steps that are fed on the GPU, by rows, blocks, turn and whether they sample tokens."""
        return self._steps.chained

    @property
    def draft_steps(self) -> Mapping[StepShape, PackedStep]:
        """The steps of rows with draft tokens that have been prepared on a GPU, by shape."""
        return self._steps.drafts

    @property
    def mixed_steps(self) -> Mapping[StepShape, PackedStep]:
        """The steps with rows of any length that have been prepared on a GPU, by shape, the latest last."""
        return self._steps.mixed

    @property
    def runs_ahead(self) -> bool:
        return self._device.is_gpu

    def allocate_pools(self, sizes: PoolSizes) -> None:
        self._device.synchronize()
        self._forget_steps()
        self._make_pools(sizes)

    def use_state_rings(self, rows: int) -> None:
        self._device.synchronize()
        self._forget_steps()
        self._ring_layers = self._model.ring_layers()
        self._steps.ring_rows = rows if self._ring_layers else None

    @property
    def max_rollback_tokens(self) -> int:
        return MOST_DEFERRED if self.config.recurrent_layers else 0

    @property
    def rollback_token_bytes(self) -> int:
        return self._deferred_states().token_bytes if self.config.recurrent_layers else 0

    @property
    def rollback_modes(self) -> Mapping[str, str]:
        return {} if self._deferred is None else self._deferred.modes

    @property
    def advance_steps(self) -> Sequence[AdvanceStep]:
        """The prepared GPU steps that advance deferred states."""
        return () if self._deferred is None else self._deferred.advance_steps

    def prepare_rollback(self, rows: int, tokens: int, mode: str | Mapping[str, str] = AUTO) -> None:
        self._device.synchronize()
        self._forget_steps()
        limits, before = self._rollback_limits(rows, tokens), self._deferred
        try:
            chosen = chosen_modes(self._trial(limits).costs(), mode)
            snapshots = frozenset(name for name, mode in chosen.items() if mode == SNAPSHOT)
            if snapshots:
                self._trial(limits, snapshots)
        except BaseException:
            self._deferred = before
            raise

    def advance(self, accepted: np.ndarray) -> None:
        if self._deferred is not None:
            self._deferred.advance(accepted)

    def step(self, inputs: PackedInputs) -> np.ndarray:
        return self.launch(inputs).all_logits()

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> TorchStepResult:
        self._check(inputs)
        # The memory of the previous step is reused.
        self._device.synchronize()
        inputs = self._deferring(inputs)
        self._prepare_rings(inputs)
        if not self._device.is_gpu:
            return self._run(inputs, ())[0]
        return self._steps.launch(inputs, self.pools, self._program, self._states_of(inputs), samplings)

    @property
    def samples_in_steps(self) -> bool:
        return self._device.is_gpu

    @property
    def chooses_later(self) -> bool:
        return self._device.is_gpu

    def choose(self, result: StepResult, samplings: Mapping[int, TokenSampling]) -> TorchStepResult:
        assert isinstance(result, TorchStepResult)
        return self._steps.choose(result, samplings)

    @property
    def chains_steps(self) -> bool:
        return self._chains_steps

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> TorchStepResult | None:
        assert isinstance(result, TorchStepResult)
        if self._deferred is not None or self._rows is not None:
            return None
        if self._ring_layers and len(inputs.input_ids) > len(inputs.seq_lens):
            return None  # it would flush rings that the step before it still writes
        self._check(inputs)
        self._prepare_rings(inputs)
        return self._steps.launch_next(result, inputs, self.pools, self._program, feeding)

    @property
    def prepares_next(self) -> bool:
        return not self._ring_layers

    def prepare_next(
        self, result: StepResult, samplings: Mapping[int, TokenSampling], inputs: PackedInputs, feeding: Feeding
    ) -> PreparedNext | None:
        assert isinstance(result, TorchStepResult) and self.prepares_next
        if self._deferred is not None or self._rows is not None:
            return None
        self._check(inputs)
        return self._steps.prepare_next(result, samplings, inputs, feeding, self.pools.sizes.block_size)

    def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
        self._check(inputs)
        inputs = self._deferring(inputs)
        self._prepare_rings(inputs)
        result, found = self._run(inputs, values)
        with self._device.active():
            inner = {name: found[name][: len(inputs.input_ids)].float().cpu().numpy() for name in values}
        return {LOGITS: result.all_logits(), **inner}

    def read_pool(self, name: str) -> np.ndarray:
        return self.pools.read(name)

    def fill_pools(self, value: float) -> None:
        self.pools.fill(value)

    def free_memory(self) -> int | None:
        free = self._memory.free()
        return free if free is None or self._deferred is None else max(0, free - self._deferred.snapshot_bytes)

    def memory_use(self) -> Mapping[str, int]:
        waiting = {} if self._deferred is None else {"draft tokens": self._deferred.nbytes}
        return {**self._model.weights.memory_use(), **self._memory.use(), **waiting}

    def close(self) -> None:
        self._device.synchronize()
        self._forget_steps()
        self._model.close()

    def _forget_steps(self) -> None:
        """Give up the pools and what was recorded over them."""
        self._forget_recorded()
        self._pools = None

    def _make_pools(self, sizes: PoolSizes) -> None:
        snapshots = {} if self._deferred is None else self._deferred.snapshot_slots
        if self._ring_layers:
            self._pools = RingedPools(self._specs, sizes, self._device, snapshots, self._ring_layers)
        else:
            self._pools = TorchPools(self._specs, sizes, self._device, snapshots)
        if self._deferred is not None:
            self._deferred.bind(self._pools)

    def _prepare_rings(self, inputs: PackedInputs) -> None:
        """A step that does not use rings finds whole states."""
        if isinstance(self._pools, RingedPools):
            slots = inputs.state_indices.ravel().tolist()
            if self._steps.phase_of(inputs) is Phase.RING:
                self._pools.rings.use(slots)
            else:
                self._pools.flush(slots)

    def _deferring(self, inputs: PackedInputs) -> PackedInputs:
        """``inputs`` in the graph's form where they defer states; ends what was deferred before."""
        if self._deferred is not None:
            self._deferred.forget()
        if inputs.deferred is None or not inputs.deferred.any():
            return inputs
        return self._deferred_states().inputs(inputs)

    def _deferred_states(self) -> DeferredStates:
        if self._deferred is None:
            before, self._pools = self._pools, None
            self._deferred = self._trial(self._rollback_limits(self.limits.max_rows, MOST_DEFERRED))
            self._pools = before
            if before is not None:
                self._deferred.bind(before)
        return self._deferred

    def _rollback_limits(self, rows: int, tokens: int) -> RollbackLimits:
        return RollbackLimits(rows, tokens, padded_tokens(rows * (1 + tokens)))

    def _trial(self, limits: RollbackLimits, snapshots: frozenset[str] = frozenset()) -> DeferredStates:
        """Deferred states with these limits; a trial step in small pools finds the sizes of stored inputs."""
        state_bytes = {spec.name: spec.unit_bytes for spec in self._specs if not spec.grows}
        operators = self._model.pool_operators()
        self._deferred = found = DeferredStates(self._device, limits, operators, state_bytes, snapshots)
        self._make_pools(PoolSizes(1, _TRIED_BLOCK, 1))
        ids, one = np.zeros(2, np.int64), np.zeros(1, np.int32)
        positions, first = np.arange(2), np.arange(2, dtype=np.int32)
        step = PackedInputs(ids, positions, 2 * first, one + 2, one[None], first, one, one, one == 0)
        self._run(found.inputs(step), ())
        self._device.synchronize()
        self._pools = None
        return found

    def _forget_recorded(self) -> None:
        self._steps.forget()

    def _program(self, phase: Phase, values: Sequence[str] = ()) -> StepProgram:
        """The program of a step, which also writes hidden states where they are needed."""
        deferred = self._deferred if phase is Phase.DRAFT else None
        snapshots = frozenset[str]() if deferred is None else deferred.snapshots
        shown = layer_output(self.config.num_hidden_layers - 1)
        if self._rows is not None:
            values = (*dict.fromkeys((shown, *values)),)
        program: StepProgram = self._model.program(phase, values, snapshots)
        if phase is Phase.RING and isinstance(self._pools, RingedPools):
            program = RingProgram(program, self._pools.rings)
        return program if self._rows is None else ShowingProgram(program, shown, self._rows)

    def _run(self, inputs: PackedInputs, values: Sequence[str]) -> tuple[TorchStepResult, Mapping[str, torch.Tensor]]:
        """A step that is not recorded, and the outputs of its program."""
        program = self._program(self._steps.phase_of(inputs), values)
        return self._steps.run(inputs, self.pools, program, self._states_of(inputs))

    def _states_of(self, inputs: PackedInputs) -> DeferredStates | None:
        return self._deferred if isinstance(inputs, DraftInputs) else None

    def _check(self, inputs: PackedInputs) -> None:
        most = self.max_rollback_tokens if self._deferred is None else self._deferred.limits.tokens
        check_packed(inputs, self.limits, self.config, self.pools.sizes, most)
        check_token_ids(inputs.input_ids, self.config.vocab_size)
