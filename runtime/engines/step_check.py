"""Whether a step's arrays fit the states that it runs on."""

from __future__ import annotations

from operator import add

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.dense import StepInputs


def check_step(inputs: StepInputs, batch: int, max_tokens: int, max_seq: int) -> None:
    """EngineError naming the first of shapes and lengths that a step of ``batch`` rows cannot have."""
    ids, context, past = inputs.input_ids, inputs.context_lengths, inputs.past_lengths
    if ids.ndim != 2 or ids.shape[0] != batch or context.shape != (batch,) or past.shape != (batch,):
        raise EngineError(
            f"expected input_ids [{batch}, seq] and lengths [{batch}], found {list(ids.shape)}, "
            f"{list(context.shape)} and {list(past.shape)}"
        )
    if not 1 <= ids.shape[1] <= max_tokens:
        raise EngineError(
            f"expected 1 to {max_tokens} tokens per row in one step, found {ids.shape[1]}: feed them in chunks"
        )
    # Plain integers: for a few rows, one NumPy reduction costs more than all of this.
    new, cached = context.tolist(), past.tolist()
    if min(new) < 0 or max(new) > ids.shape[1]:
        raise EngineError(f"expected context lengths in 0..{ids.shape[1]}, found {new}")
    if min(cached) < 0 or max(map(add, new, cached)) > max_seq:
        raise EngineError(f"expected past and new tokens within {max_seq} positions, found {cached} and {new}")
