"""Steps that contradict themselves or name what the pools do not have are refused before anything runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.packed_check import check_packed
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.step_limits import StepLimits
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import paged_config

LIMITS, SIZES = StepLimits(64, 4), PoolSizes(9, 16, 3)
CONFIG = paged_config(HYBRID)


def ints(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


# 40 tokens in blocks 8, 0 and 4 after none, one token in blocks 2 and 3 after 17, and a padding row.
STEP = PackedInputs(
    input_ids=np.arange(42),
    positions=np.array([*range(40), 17, 0]),
    query_start_loc=ints(0, 40, 41, 42),
    seq_lens=ints(40, 18, 0),
    block_table=ints([8, 0, 4], [2, 3, -1], [-1, -1, -1]),
    slot_mapping=ints(*range(128, 144), *range(0, 16), *range(64, 72), 49, -1),
    state_indices=ints(2, 0, -1),
    logits_indices=ints(39, 40, 41),
)


def changed(name: str, place: object, value: int) -> PackedInputs:
    array = getattr(STEP, name).copy()
    array[place] = value
    return replace(STEP, **{name: array})


WITH_CHECKPOINTS = replace(STEP, state_indices=ints(2, -1, -1), checkpoints=ints([15, 1], [38, 0]))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (replace(WITH_CHECKPOINTS, checkpoints=ints(15, 1)), r"checkpoints \[n, 2\], found \[2\]"),
        (
            replace(WITH_CHECKPOINTS, checkpoints=ints([15, 3])),
            "slots of checkpoints from 0 to 2, as the pools are, found 3 to 3",
        ),
        (
            replace(WITH_CHECKPOINTS, checkpoints=ints([15, -1])),
            "slots of checkpoints from 0 to 2, as the pools are, found -1 to -1",
        ),
        (
            replace(WITH_CHECKPOINTS, checkpoints=ints([15, 2])),
            r"slots of checkpoints that are no row's and differ, found \[2\]",
        ),
        (
            replace(WITH_CHECKPOINTS, checkpoints=ints([15, 1], [17, 1])),
            r"slots of checkpoints that are no row's and differ, found \[1, 1\]",
        ),
        (replace(WITH_CHECKPOINTS, checkpoints=ints([17, 1], [15, 0])), r"none the last of its row, found \[17, 15\]"),
        (replace(WITH_CHECKPOINTS, checkpoints=ints([39, 1])), r"none the last of its row, found \[39\]"),
        (replace(WITH_CHECKPOINTS, checkpoints=ints([-1, 1])), r"none the last of its row, found \[-1\]"),
        (replace(WITH_CHECKPOINTS, checkpoints=ints([42, 1])), r"none the last of its row, found \[42\]"),
        (
            replace(WITH_CHECKPOINTS, deferred=np.array([True, False, False])),
            "checkpoints of rows that are not deferred, found one that is",
        ),
    ],
)
def test_checkpoints_have_slots_of_their_own(step: PackedInputs, words: str) -> None:
    check_packed(WITH_CHECKPOINTS, LIMITS, CONFIG, SIZES, 40, takes_checkpoints=True)
    with pytest.raises(EngineError, match=words):
        check_packed(step, LIMITS, CONFIG, SIZES, 40, takes_checkpoints=True)
    with pytest.raises(EngineError, match="expected no `checkpoints` for this engine, found some: correct the step"):
        check_packed(WITH_CHECKPOINTS, LIMITS, CONFIG, SIZES)


def test_a_step_within_its_pools_passes() -> None:
    check_packed(STEP, LIMITS, CONFIG, SIZES)
    check_packed(replace(STEP, logits_indices=ints()), LIMITS, CONFIG, SIZES)
    check_packed(changed("slot_mapping", 3, 143), LIMITS, CONFIG, SIZES)
    check_packed(changed("logits_indices", 0, 0), LIMITS, CONFIG, SIZES)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (changed("block_table", (0, 1), 9), "block_table from -1 to 8, as the pools are, found -1 to 9"),
        (changed("block_table", (2, 2), -2), "block_table from -1 to 8, as the pools are, found -2 to 8"),
        (changed("slot_mapping", 40, 144), "slot_mapping from -1 to 143, as the pools are, found -1 to 144"),
        (changed("slot_mapping", 0, -2), "slot_mapping from -1 to 143, as the pools are, found -2 to 143"),
        (changed("state_indices", 1, 3), "state_indices from -1 to 2, as the pools are, found -1 to 3"),
        (changed("state_indices", 0, -5), "state_indices from -1 to 2, as the pools are, found -5 to 0"),
        (changed("seq_lens", 0, 49), "4 columns of block_table for a row of 49 tokens in blocks of 16, found 3"),
        (replace(STEP, block_table=ints([8], [2], [-1])), "3 columns of block_table for a row of 40 tokens"),
        (changed("logits_indices", 2, 42), "logits_indices from 0 to 41, found 39 to 42"),
        (changed("logits_indices", 0, -1), "logits_indices from 0 to 41, found -1 to 41"),
        (changed("query_start_loc", 1, 41), "4 rising bounds from 0 to 42"),
        (replace(STEP, deferred=np.array([False, True, False])), "deferred of 3 rows of at most 0 tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(step: PackedInputs, words: str) -> None:
    with pytest.raises(EngineError, match=f"expected {words}.*: correct the step"):
        check_packed(step, LIMITS, CONFIG, SIZES)


def test_a_wide_table_is_checked_as_a_whole() -> None:
    table = np.full((3, 64), -1, np.int32)
    table[:, :3] = STEP.block_table
    check_packed(replace(STEP, block_table=table), LIMITS, CONFIG, SIZES)
    for value in (9, -2):
        wrong = table.copy()
        wrong[1, 63] = value
        with pytest.raises(EngineError, match="block_table from -1 to 8"):
            check_packed(replace(STEP, block_table=wrong), LIMITS, CONFIG, SIZES)


@pytest.mark.parametrize(("kinds", "sizes"), [(PURE_ATTENTION, PoolSizes(9, 16, 0)), (PURE_MAMBA, PoolSizes(1, 16, 3))])
def test_models_without_one_kind_of_memory_name_none(kinds: tuple, sizes: PoolSizes) -> None:
    nowhere = np.full(42, -1, np.int32)
    step = replace(STEP, state_indices=ints(-1, -1, -1))
    if kinds is PURE_MAMBA:
        step = replace(STEP, block_table=ints([-1], [-1], [-1]), slot_mapping=nowhere)
    check_packed(step, LIMITS, paged_config(kinds), sizes)
    with pytest.raises(EngineError, match="as the pools are"):
        check_packed(STEP, LIMITS, paged_config(kinds), sizes)
