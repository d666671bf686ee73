"""Optimization profiles: the shapes that an engine accepts and is tuned for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybridge.artifact.bindings import BLOCK_SIZE, NUM_BLOCKS, NUM_SLOTS
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.engine_record import ProfileRecord
from hybridge.artifact.errors import SettingError
from hybridge.artifact.paged import MAX_BLOCKS, NUM_HIDDEN, NUM_LOGITS, PAGED, ROW_BOUNDS, ROWS, TOKENS
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.presets import Preset

PREFILL, DECODE = "prefill", "decode"
# Tokens of a block of the KV pools that an engine is built for.
PAGED_BLOCK_SIZE = 16
# Sequences of full length that a prefix cache has room for, beside those that run.
CACHED_SEQUENCES = 64
# Hidden states of one row that a drafter may keep besides those of a step, and the head's own.
HIDDEN_ROWS_EACH = 40
_MOST_ELEMENTS = (1 << 31) - 1


@dataclass(frozen=True)
class Limits:
    """Limits of one engine: batch rows, and positions of its KV caches."""

    max_batch_size: int
    max_seq_len: int


def engine_limits(config: RuntimeConfig, preset: Preset, options: BuildOptions) -> Limits:
    """The options, else the preset capped by the artifact; SettingError when an option exceeds the artifact."""
    limits = []
    for name, option, preset_value, exported in (
        ("max_batch_size", options.max_batch_size, preset.max_batch_size, config.max_batch_size),
        ("max_seq_len", options.max_seq_len, preset.max_seq_len, config.max_seq_len),
    ):
        if option is not None and option > exported:
            raise SettingError(
                f"{name}: expected at most {exported}, which the artifact was exported with, found {option}: "
                f"export it again with `{name}={option}`"
            )
        limits.append(option or min(preset_value, exported))
    return Limits(*limits)


def engine_profiles(
    config: RuntimeConfig, preset: Preset, limits: Limits, speculative_tokens: int = 0, cached: int = CACHED_SEQUENCES
) -> list[ProfileRecord]:
    """The profiles "prefill" (1 to the preset's max_seq new tokens) and "decode" (1 new token), in that order.

    Batch runs from 1 to ``limits.max_batch_size`` in both; the caches have ``limits.max_seq_len`` positions. In the
    paged layout the tokens are those of all rows together, a row of "decode" has up to ``speculative_tokens`` draft
    tokens behind its own, and the pools hold up to what all rows and ``cached`` sequences of a prefix cache take.
    """
    if config.layout == PAGED:
        return [
            _paged_profile(name, config, preset, limits, 1 + speculative_tokens, cached) for name in (PREFILL, DECODE)
        ]
    longest = min(preset.prefill_max_seq, limits.max_seq_len)
    ranges = {
        PREFILL: (preset.prefill_opt_batch, (1, min(preset.prefill_opt_seq, longest), longest)),
        DECODE: (preset.decode_opt_batch, (1, 1, 1)),
    }
    profiles = []
    for name, (opt_batch, seqs) in ranges.items():
        batches = (1, min(opt_batch, limits.max_batch_size), limits.max_batch_size)
        shapes = {
            binding.name: [
                list(binding.resolve(batch=batch, seq=seq, max_seq=limits.max_seq_len))
                for batch, seq in zip(batches, seqs, strict=True)
            ]
            for binding in config.bindings.inputs
        }
        profiles.append(ProfileRecord(name, shapes))
    return profiles


def row_buckets(config: RuntimeConfig, limits: Limits) -> list[int]:
    """The numbers of rows whose decode steps a paged engine captures: 1, 2, 4, 8, multiples of 8 and the most."""
    if config.layout != PAGED:
        return []
    most = limits.max_batch_size
    return sorted({most, *(rows for rows in (1, 2, 4, *range(8, most, 8)) if rows < most)})


def _paged_profile(
    name: str, config: RuntimeConfig, preset: Preset, limits: Limits, of_row: int, cached: int
) -> ProfileRecord:
    """``name`` prefill: steps of rows of any lengths; decode: up to ``of_row`` tokens a row.

    With draft tokens there is one row more: padding, which takes the tokens that the other rows leave.
    """
    decodes, padding = name == DECODE, int(of_row > 1)
    most_rows = limits.max_batch_size
    rows = (1, min(preset.decode_opt_batch, most_rows), most_rows + padding)
    most = max(preset.prefill_max_seq, most_rows)
    few = (1, rows[1] * of_row, most_rows * of_row + padding)
    tokens = few if decodes else (1, min(preset.prefill_opt_seq, most), most)
    row_blocks = -(-limits.max_seq_len // PAGED_BLOCK_SIZE)
    snapshots = most_rows * of_row * padding
    axes = {
        TOKENS: tokens,
        ROWS: rows,
        ROW_BOUNDS: tuple(n + 1 for n in rows),
        NUM_LOGITS: few,
        MAX_BLOCKS: (1, max(1, row_blocks // 2), row_blocks),
        # One block more a row: a shared block is copied before it is released.
        NUM_BLOCKS: _pool_range(config, NUM_BLOCKS, most_rows * (row_blocks + 1), cached * row_blocks),
        BLOCK_SIZE: (PAGED_BLOCK_SIZE,) * 3,
        # Those of a step, and what a drafter keeps of each row.
        NUM_HIDDEN: (1, most + 1, max(most, few[-1]) + HIDDEN_ROWS_EACH * (most_rows + 8)),
        NUM_SLOTS: _pool_range(config, NUM_SLOTS, most_rows + snapshots, cached),
    }
    sizes = [{axis: bounds[i] for axis, bounds in axes.items()} for i in range(3)]
    return ProfileRecord(name, {b.name: [list(b.resolve(**s)) for s in sizes] for b in config.bindings.inputs})


def _pool_range(config: RuntimeConfig, axis: str, of_rows: int, cached: int) -> tuple[int, int, int]:
    """Blocks or slots: the least, what all rows take, and the most, within what TensorRT can count in a tensor."""
    units = [
        math.prod(b.resolve(**{axis: 1, BLOCK_SIZE: PAGED_BLOCK_SIZE}))
        for b in config.bindings.states
        if axis in b.shape
    ]
    most = min(of_rows + cached, _MOST_ELEMENTS // max(units, default=1))
    return 1, min(of_rows, most), most
