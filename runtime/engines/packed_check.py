"""Whether the arrays of a packed step fit together, and the pools."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.step_limits import StepLimits

# Numbers that are looked at one by one.
_FEW = 32


def check_packed(
    inputs: PackedInputs,
    limits: StepLimits,
    config: RuntimeConfig,
    sizes: PoolSizes,
    most_deferred: int = 0,
    takes_checkpoints: bool = False,
) -> None:
    """EngineError when the arrays contradict each other, the limits, the artifact of ``config``, or name a place that
    pools of ``sizes`` do not have.

    ``most_deferred``: tokens of a row whose states may be deferred. ``takes_checkpoints``: whether the engine takes
    ``checkpoints``.
    """
    problem = _shape_problem(inputs, limits, most_deferred) or _place_problem(inputs, sizes, bool(config.kv_layers))
    if not problem and inputs.checkpoints is not None:
        problem = (
            _checkpoint_problem(inputs.checkpoints, inputs, sizes)
            if takes_checkpoints
            else "no `checkpoints` for this engine, found some"
        )
    if problem:
        raise EngineError(f"expected {problem}: correct the step")


def _shape_problem(inputs: PackedInputs, limits: StepLimits, most_deferred: int) -> str:
    """An error's text after "expected"; empty if nothing is wrong."""
    tokens, rows = len(inputs.input_ids), len(inputs.seq_lens)
    bounds = inputs.query_start_loc
    if not 1 <= rows <= limits.max_rows or not rows <= tokens <= limits.max_tokens:
        return (
            f"1 to {limits.max_rows} rows of 1 token or more and at most {limits.max_tokens} tokens, found {rows} rows "
            f"and {tokens} tokens"
        )
    if bounds.shape != (rows + 1,) or bounds[0] != 0 or bounds[-1] != tokens or (bounds[1:] <= bounds[:-1]).any():
        return f"{rows + 1} rising bounds from 0 to {tokens} in query_start_loc, found {bounds.tolist()}"
    if inputs.positions.shape != (tokens,) or inputs.slot_mapping.shape != (tokens,):
        return (
            f"positions and slot_mapping of {tokens} tokens, found {list(inputs.positions.shape)} and "
            f"{list(inputs.slot_mapping.shape)}"
        )
    if inputs.block_table.shape[:1] != (rows,) or inputs.state_indices.shape != (rows,):
        return (
            f"block_table and state_indices of {rows} rows, found {list(inputs.block_table.shape)} and "
            f"{list(inputs.state_indices.shape)}"
        )
    if inputs.deferred is not None:
        longest = max(np.diff(bounds)[inputs.deferred], default=0) if inputs.deferred.shape == (rows,) else 0
        if inputs.deferred.shape != (rows,) or longest > most_deferred:
            return (
                f"deferred of {rows} rows of at most {most_deferred} tokens, found {list(inputs.deferred.shape)} and "
                f"rows of up to {longest}"
            )
    low, high = _range(inputs.logits_indices)
    if inputs.logits_indices.size and not 0 <= low <= high < tokens:
        return f"logits_indices from 0 to {tokens - 1}, found {low} to {high}"
    return ""


def _place_problem(inputs: PackedInputs, sizes: PoolSizes, has_kv: bool) -> str:
    """Kernels do not check indices: a wrong one accesses memory of other sequences or outside the pools."""
    room = sizes.num_blocks * sizes.block_size
    for name, array, count in (
        ("block_table", inputs.block_table, sizes.num_blocks),
        ("slot_mapping", inputs.slot_mapping, room),
        ("state_indices", inputs.state_indices, sizes.num_slots),
    ):
        low, high = _range(array)
        if low < -1 or high >= count:
            return f"{name} from -1 to {count - 1}, as the pools are, found {low} to {high}"
    columns, longest = inputs.block_table.shape[1], _range(inputs.seq_lens)[1]
    if has_kv and longest > columns * sizes.block_size:
        return (
            f"{-(-longest // sizes.block_size)} columns of block_table for a row of {longest} tokens in blocks of "
            f"{sizes.block_size}, found {columns}"
        )
    return ""


def _checkpoint_problem(checkpoints: np.ndarray, inputs: PackedInputs, sizes: PoolSizes) -> str:
    if checkpoints.ndim != 2 or checkpoints.shape[1] != 2:
        return f"checkpoints [n, 2], found {list(checkpoints.shape)}"
    # They are few: sets take less time than NumPy here.
    tokens, slots = checkpoints[:, 0].tolist(), checkpoints[:, 1].tolist()
    if slots and not 0 <= min(slots) <= max(slots) < sizes.num_slots:
        found = f"{min(slots)} to {max(slots)}"
        return f"slots of checkpoints from 0 to {sizes.num_slots - 1}, as the pools are, found {found}"
    if len(set(slots)) != len(slots) or not set(slots).isdisjoint(inputs.state_indices.tolist()):
        return f"slots of checkpoints that are no row's and differ, found {slots}"
    bounds = inputs.query_start_loc.tolist()
    inside = set(tokens).isdisjoint([bound - 1 for bound in bounds]) and all(0 <= each < bounds[-1] for each in tokens)
    if not inside or any(after <= before for before, after in pairwise(tokens)):
        return f"ascending tokens of checkpoints, none the last of its row, found {tokens}"
    if inputs.deferred is not None and any(inputs.deferred[bisect_right(bounds, each) - 1] for each in tokens):
        return "checkpoints of rows that are not deferred, found one that is"
    return ""


def _range(array: np.ndarray) -> tuple[int, int]:
    """The smallest and the largest number; -1 twice if there is none."""
    if array.size > _FEW:
        return int(array.min()), int(array.max())
    numbers = array.ravel().tolist()  # less than a reduction takes
    return (min(numbers), max(numbers)) if numbers else (-1, -1)


def check_token_ids(ids: np.ndarray, vocab_size: int) -> None:
    """EngineError where the vocabulary lacks one of ``ids``."""
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise EngineError(f"expected token ids from 0 to {vocab_size - 1}, found {ids.min()} to {ids.max()}")
