"""Whether the arrays of a packed step fit together."""

from __future__ import annotations

import numpy as np

from artifact.errors import EngineError
from runtime.engines.paged import PackedInputs, StepLimits


def check_packed(inputs: PackedInputs, limits: StepLimits, speculative_tokens: int = 0, most_held: int = 0) -> None:
    """EngineError when the arrays contradict each other, the limits, or an artifact of ``speculative_tokens``.

    ``most_held``: tokens of a row whose states may be held.
    """
    tokens, rows = len(inputs.input_ids), len(inputs.seq_lens)
    bounds = inputs.query_start_loc
    problem, columns, accepted = "", "", inputs.num_accepted_tokens
    slots: tuple[int, ...] = (rows,)
    if accepted is not None and speculative_tokens:
        slots, columns = (rows, 1 + speculative_tokens), f" with {1 + speculative_tokens} slots each"
    if not 1 <= rows <= limits.max_rows or not rows <= tokens <= limits.max_tokens:
        problem = (
            f"1 to {limits.max_rows} rows of 1 token or more and at most {limits.max_tokens} tokens, found {rows} rows "
            f"and {tokens} tokens"
        )
    elif bounds.shape != (rows + 1,) or bounds[0] != 0 or bounds[-1] != tokens or (np.diff(bounds) < 1).any():
        problem = f"{rows + 1} rising bounds from 0 to {tokens} in query_start_loc, found {bounds.tolist()}"
    elif inputs.positions.shape != (tokens,) or inputs.slot_mapping.shape != (tokens,):
        problem = (
            f"positions and slot_mapping of {tokens} tokens, found {list(inputs.positions.shape)} and "
            f"{list(inputs.slot_mapping.shape)}"
        )
    elif inputs.block_table.shape[:1] != (rows,) or inputs.state_indices.shape != slots:
        problem = (
            f"block_table and state_indices of {rows} rows{columns}, found {list(inputs.block_table.shape)} and "
            f"{list(inputs.state_indices.shape)}"
        )
    elif accepted is not None and (not speculative_tokens or accepted.shape != (rows,)):
        wanted = f"of {rows} rows" if speculative_tokens else "of an artifact exported with --speculative-tokens alone"
        problem = f"num_accepted_tokens {wanted}, found {list(accepted.shape)}"
    elif inputs.held is not None:
        longest = max(np.diff(bounds)[inputs.held], default=0) if inputs.held.shape == (rows,) else 0
        if inputs.held.shape != (rows,) or accepted is not None or longest > most_held:
            problem = (
                f"held of {rows} rows of at most {most_held} tokens without num_accepted_tokens, found "
                f"{list(inputs.held.shape)} and rows of up to {longest}"
            )
    if problem:
        raise EngineError(f"expected {problem}: correct the step")


def check_accepted(accepted: np.ndarray, counts: np.ndarray) -> None:
    """EngineError when a row's states are to advance by other than 0 to ``counts`` [rows] tokens, 0 if not held."""
    if accepted.shape != counts.shape:
        raise EngineError(f"expected tokens to advance by for {len(counts)} rows, found {list(accepted.shape)}")
    wrong = (accepted < 0) | (accepted > counts)
    if wrong.any():
        row = int(wrong.argmax())
        raise EngineError(f"row {row}: expected 0 to {counts[row]} tokens to advance by, found {accepted[row]}")
