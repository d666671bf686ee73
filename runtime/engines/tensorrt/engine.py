"""The TensorRT engine: a built engine of an artifact on this machine's GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.dense import Decoder, DenseEngine, StateSet, StepInputs
from hybridge.runtime.engines.step_check import check_step
from hybridge.runtime.engines.tensorrt.binding_plan import DECODE, PREFILL, BindingPlan, binding_plan, samples
from hybridge.runtime.engines.tensorrt.bound_context import BoundContext
from hybridge.runtime.engines.tensorrt.decode_step import DecodeStep
from hybridge.runtime.engines.tensorrt.dense_decoder import DeviceDecoder, SampledStep
from hybridge.runtime.engines.tensorrt.engine_tensors import engine_tensors
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary
from hybridge.runtime.engines.tensorrt.memory import Allocation, DeviceMemory, aligned
from hybridge.runtime.engines.tensorrt.opened_device import open_device
from hybridge.runtime.engines.tensorrt.pending_step import PendingStep
from hybridge.runtime.engines.tensorrt.plan_check import load_plan
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine, find_engine
from hybridge.runtime.engines.tensorrt.state_memory import StateMemory, StatePool
from hybridge.runtime.engines.tensorrt.states import DeviceStateSet, too_long
from hybridge.runtime.engines.tensorrt.step_io import LogitsStage, TokenStage
from hybridge.runtime.engines.tensorrt.step_sampling import StepSampler, StepSampling, workspace_bytes
from hybridge.runtime.sampling import TokenSampling

T = TypeVar("T")


class TensorRTEngine(DenseEngine):
    """Runs an engine that ``hybridge build-engine`` made of the artifact, in the types of the artifact.

    All work goes to one stream. A step of several tokens per row runs in the context of the prefill profile, which
    is bound to the states of each set; a step of one token runs in a ``DecodeStep`` of its state memory.
    """

    name: ClassVar[str] = "tensorrt"

    def __init__(
        self, config: RuntimeConfig, built: BuiltEngine, memory: DeviceMemory, library: RuntimeLibrary
    ) -> None:
        """Load the engine ``built`` with ``library`` onto the GPU of ``memory``; both then belong to this engine.

        EngineError: the file is damaged, refused or not what its record says, or there is too little memory.
        """
        self.config, self.built = config, built
        self._memory, self._library = memory, library
        self._pending: PendingStep[Any] | None = None
        self._closed = False
        # By states, their turn, and whether tokens are sampled: no (None), or with lists of likely tokens or without.
        self._decode_steps: dict[tuple[StateMemory, int, bool | None], DecodeStep] = {}
        self._sets: weakref.WeakSet[DeviceStateSet] = weakref.WeakSet()
        # Closed in the reverse order: contexts before the engine, the engine before the runtime.
        self._resources = ExitStack()
        self._resources.callback(memory.close)
        self._resources.callback(library.close)
        try:
            self._engine: Any = load_plan(library, built)
            self._resources.callback(self._drop_engine)
            self._plan: BindingPlan = binding_plan(config, built.record, engine_tensors(library.trt, self._engine))
            self._allocate()
        except BaseException:
            self._resources.close()
            raise

    @classmethod
    def from_folder(cls, folder: Path, engine_folder: str | Path | None = None) -> TensorRTEngine:
        """The engine of the artifact ``folder`` that fits this machine, or the one in ``engine_folder`` (a folder, or
        the name of one in ``folder``/engines).

        EngineError: no GPU, no library, no engine that fits, or as for a new engine. ArtifactError: no artifact.
        """
        config = read_config(folder)
        built = find_engine(folder, engine_folder)
        return cls(config, built, *open_device(built))

    def _allocate(self) -> None:
        memory, plan, owns = self._memory, self._plan, self._resources.callback
        vocab = self.config.vocab_size if samples(plan) else 0
        # The sampling kernels run after the engine, when its activations are no longer needed.
        workspace = workspace_bytes(plan.max_batch_size, vocab) if vocab else 0
        nbytes = aligned(max(1, self._engine.device_memory_size_v2, workspace))
        self._scratch: Allocation = memory.allocate(nbytes, "activations")
        owns(self._scratch.free)
        self._tokens = TokenStage(memory, plan)
        owns(self._tokens.free)
        self._decode_logits, self._prefill_logits = LogitsStage(memory, plan), LogitsStage(memory, plan)
        owns(self._decode_logits.free)
        owns(self._prefill_logits.free)
        # Never moved: the decode graphs hold the address.
        self._decode_logits.reserve(plan.max_batch_size, 1)
        self._sampling: StepSampling | None = None
        if vocab:
            sizes = range(1, plan.max_batch_size + 1)
            self._sampling = StepSampling(memory, vocab, sizes, self._scratch.address)
            owns(self._sampling.free)
        self._marker = memory.marker()
        owns(self._marker.close)
        self._prefill = self._context(PREFILL, fixed_shapes=False)
        owns(self._prefill.close)
        self._pool = StatePool(memory, plan, plan.max_batch_size, self._discard)
        owns(self._pool.close)

    @property
    def state_specs(self) -> tuple[Binding, ...]:
        return tuple(state.spec for state in self._plan.states)

    @property
    def max_batch_size(self) -> int:
        return self._plan.max_batch_size

    @property
    def max_seq_len(self) -> int:
        return self._plan.max_seq_len

    @property
    def max_step_tokens(self) -> int:
        return self._plan.max_step_tokens

    def allocate_states(self, batch: int, max_seq: int) -> DeviceStateSet:
        self._check_open()
        self.check_batch(batch, "build the engine with a larger `max_batch_size`")
        if max_seq > self.max_seq_len:
            raise too_long(max_seq, self.max_seq_len)
        self._memory.enter()
        states = DeviceStateSet(self._plan, self._memory, self._pool, batch)
        self._sets.add(states)
        return states

    def step(self, inputs: StepInputs, states: StateSet) -> np.ndarray:
        return self.submit(inputs, states).read()

    def submit(self, inputs: StepInputs, states: StateSet) -> PendingStep[np.ndarray]:
        """Enqueue a step without waiting for its logits; the states count as advanced at once.

        Everything else is as in ``step``; a failure on the GPU is raised when the logits are read.
        """
        own = self._prepare(inputs, states)
        batch, tokens = inputs.input_ids.shape
        logits = self._run_decode(own.memory, batch) if tokens == 1 else self._run_prefill(own, tokens)
        return self._submitted(own, lambda: logits.read(batch, tokens))

    def decoder(self, rows: Sequence[int], states: StateSet) -> Decoder:
        assert isinstance(states, DeviceStateSet)
        return DeviceDecoder(self, rows, states, self.submit_sampled)

    def submit_sampled(
        self, inputs: StepInputs, states: DeviceStateSet, samplings: Mapping[int, TokenSampling]
    ) -> PendingStep[SampledStep] | None:
        """Like ``submit``, with tokens chosen on the GPU. samplings: by batch row; others get the most likely token.

        None, and nothing is enqueued, where no kernel has the vocabulary.
        """
        if self._sampling is None:
            return None
        own, batch = self._prepare(inputs, states), states.batch
        sampler = self._sampling.of(batch, samplings)
        if sampler is None:
            return None
        self._run_decode(own.memory, batch, sampler)
        logits = partial(self._decode_logits.read_now, batch)
        return self._submitted(own, lambda: SampledStep(sampler, logits))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for states in self._sets:
            states.invalidate()
        # A failure of the last step is no reason to keep anything.
        for end in (self._finish_pending, self._memory.enter, self._memory.synchronize):
            with suppress(EngineError):
                end()
        self._resources.close()

    def _prepare(self, inputs: StepInputs, states: StateSet) -> DeviceStateSet:
        """Wait for the step before, and write ``inputs``, which have to fit ``states``."""
        self._check_open()
        if not isinstance(states, DeviceStateSet) or states not in self._sets:
            raise EngineError(f"expected states allocated by this engine, found {type(states).__name__} of another")
        check_step(inputs, states.batch, self.max_step_tokens, states.max_seq)
        self._memory.enter()
        # The pinned tokens and logits of the step before are about to be overwritten.
        self._finish_pending()
        self._tokens.write(inputs)
        return states

    def _submitted(self, states: DeviceStateSet, read: Callable[[], T]) -> PendingStep[T]:
        states.memory.advance()
        self._marker.record()
        pending = PendingStep(self._marker, read)
        self._pending = pending
        return pending

    def _run_decode(self, memory: StateMemory, batch: int, sampler: StepSampler | None = None) -> LogitsStage:
        key = memory, memory.turn, None if sampler is None else sampler.lists
        if key not in self._decode_steps:
            self._decode_steps[key] = self._decode_step(memory, batch, sampler)
        self._decode_steps[key].run()
        return self._decode_logits

    def _decode_step(self, memory: StateMemory, batch: int, sampler: StepSampler | None) -> DecodeStep:
        # TensorRT needs a separate context for each captured graph.
        context = self._context(DECODE, fixed_shapes=True)
        self._bind(context, memory, batch, 1, self._decode_logits)
        if sampler is None:
            return DecodeStep(self._memory, context, lambda run: self._around(run, batch, 1, self._decode_logits))
        address = self._decode_logits.address

        def sampled(enqueue: Callable[[], None]) -> None:
            self._tokens.upload(batch, 1)
            enqueue()
            sampler.enqueue(address)

        return DecodeStep(self._memory, context, sampled)

    def _run_prefill(self, states: DeviceStateSet, tokens: int) -> LogitsStage:
        stage = self._prefill_logits if self.config.all_logits else self._decode_logits
        stage.reserve(states.batch, tokens)
        self._bind(self._prefill, states.memory, states.batch, tokens, stage)
        self._around(self._prefill.enqueue, states.batch, tokens, stage)
        return stage

    def _around(self, enqueue: Callable[[], None], batch: int, tokens: int, logits: LogitsStage) -> None:
        self._tokens.upload(batch, tokens)
        enqueue()
        logits.download(batch, tokens)

    def _bind(self, context: BoundContext, memory: StateMemory, batch: int, tokens: int, logits: LogitsStage) -> None:
        addresses = {**self._tokens.addresses(batch, tokens), **memory.addresses()}
        context.bind({**addresses, self._plan.logits.name: logits.address}, self._plan.shapes(batch, tokens))

    def _context(self, profile: str, fixed_shapes: bool) -> BoundContext:
        scratch = (self._scratch.address, self._scratch.nbytes)
        index = self._plan.profiles[profile]
        return BoundContext(self._library, self._engine, index, scratch, self._memory.stream, fixed_shapes)

    def _discard(self, memory: StateMemory) -> None:
        """Release what was bound to memory that is about to be freed."""
        with suppress(EngineError):  # errors of steps are raised where their results are read
            self._memory.synchronize()
        for key in [key for key in self._decode_steps if key[0] is memory]:
            self._decode_steps.pop(key).close()

    def _finish_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.finish()

    def _drop_engine(self) -> None:
        self._engine = None

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("expected an open engine, found one that was closed: create it again")
