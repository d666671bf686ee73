"""The device memory of a dense engine, computed from engine.json."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.engine_record import EngineRecord
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.binding_check import AGAIN
from hybridge.runtime.engines.tensorrt.binding_plan import BindingPlan, recorded_plan, samples
from hybridge.runtime.engines.tensorrt.memory import aligned
from hybridge.runtime.engines.tensorrt.state_memory import StateLayout
from hybridge.runtime.engines.tensorrt.step_io import token_layout
from hybridge.runtime.engines.tensorrt.step_sampling import mapped_bytes, staged_bytes, workspace_bytes


@dataclass(frozen=True)
class DenseMemoryPlan:
    """Bytes of device memory, and counts.

    engines: the engine file. activations: shared by all contexts and the sampling kernels. inputs: of the largest step;
    logits: of a decode step and, where every token has logits, of the largest prompt; sampling: tables of a decode
    step; as much pinned host memory for these three. sampled: pinned host memory for tokens. row: the states of one row
    at full length, in all buffers; rows: of the largest batch. graphs: captured decode steps of one batch, without
    sampling and with it, each with a context, beside one context for prompts; their memory is TensorRT's own and not
    counted.
    """

    engines: int
    activations: int
    inputs: int
    logits: int
    sampling: int
    sampled: int
    row: int
    rows: int
    graphs: int

    @property
    def fixed(self) -> int:
        """All but the states."""
        return self.engines + self.activations + self.inputs + self.logits + self.sampling

    @property
    def contexts(self) -> int:
        """Execution contexts."""
        return self.graphs + 1


def dense_memory_plan(record: EngineRecord) -> DenseMemoryPlan:
    """The plan for the dense engine of ``record``; EngineError where that is incomplete."""
    plan = recorded_plan(record)
    try:
        return _plan(record, plan)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"engine.json: expected axes of a dense engine, found another {error}: {AGAIN}") from error


def _plan(record: EngineRecord, plan: BindingPlan) -> DenseMemoryPlan:
    rows, vocab = plan.max_batch_size, int(plan.logits.shape[-1]) if samples(plan) else 0
    workspace = workspace_bytes(rows, vocab) if vocab else 0
    return DenseMemoryPlan(
        engines=record.nbytes,
        activations=aligned(max(1, record.scratch_bytes, workspace)),
        inputs=token_layout(plan, plan.max_batch_size, plan.max_step_tokens)[1],
        logits=_logits_bytes(plan),
        sampling=max(1, staged_bytes(rows, vocab)) if vocab else 0,
        sampled=max(1, mapped_bytes(rows, vocab)) if vocab else 0,
        row=StateLayout.of(plan, 1).nbytes,
        rows=StateLayout.of(plan, plan.max_batch_size).nbytes,
        graphs=(1 + 2 * bool(vocab)) * (1 + plan.takes_turns),
    )


def _logits_bytes(plan: BindingPlan) -> int:
    decode, prompt = (plan.nbytes(plan.logits, plan.max_batch_size, tokens) for tokens in (1, plan.max_step_tokens))
    return decode + prompt if plan.all_logits else decode
