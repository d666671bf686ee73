"""Optimization profiles: the shapes that an engine accepts and is tuned for."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.bindings import BLOCK_SIZE, NUM_BLOCKS, NUM_SLOTS
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.engine_record import ProfileRecord
from hybridge.artifact.errors import SettingError
from hybridge.artifact.paged import MAX_BLOCKS, NUM_LOGITS, PAGED, ROW_BOUNDS, ROWS, TOKENS
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.presets import Preset

PREFILL, DECODE = "prefill", "decode"
# Tokens of a block of the KV pools that an engine is built for.
PAGED_BLOCK_SIZE = 16


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
    config: RuntimeConfig, preset: Preset, limits: Limits, speculative_tokens: int = 0
) -> list[ProfileRecord]:
    """The profiles "prefill" (1 to the preset's max_seq new tokens) and "decode" (1 new token), in that order.

    Batch runs from 1 to ``limits.max_batch_size`` in both; the caches have ``limits.max_seq_len`` positions. In the
    paged layout the tokens are those of all rows together, a row of "decode" has up to ``speculative_tokens`` draft
    tokens behind its own, and the pools hold up to as much as that many rows can have.
    """
    if config.layout == PAGED:
        return [_paged_profile(name, config, preset, limits, 1 + speculative_tokens) for name in (PREFILL, DECODE)]
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


def _paged_profile(name: str, config: RuntimeConfig, preset: Preset, limits: Limits, of_row: int) -> ProfileRecord:
    """``name`` prefill: steps of rows of any lengths; decode: up to ``of_row`` tokens a row."""
    decodes = name == DECODE
    rows = (1, min(preset.decode_opt_batch, limits.max_batch_size), limits.max_batch_size)
    most = max(preset.prefill_max_seq, limits.max_batch_size)
    slots = limits.max_batch_size * of_row
    tokens = (1, *(n * of_row for n in rows[1:])) if decodes else (1, min(preset.prefill_opt_seq, most), most)
    row_blocks = -(-limits.max_seq_len // PAGED_BLOCK_SIZE)
    blocks = (1, max(1, row_blocks // 2), row_blocks)
    axes = {
        TOKENS: tokens,
        ROWS: rows,
        ROW_BOUNDS: tuple(n + 1 for n in rows),
        NUM_LOGITS: (1, *(n * of_row for n in rows[1:])),
        MAX_BLOCKS: blocks,
        NUM_BLOCKS: (1, limits.max_batch_size * row_blocks, limits.max_batch_size * row_blocks),
        BLOCK_SIZE: (PAGED_BLOCK_SIZE,) * 3,
        NUM_SLOTS: (1, slots, slots),
    }
    sizes = [{axis: bounds[i] for axis, bounds in axes.items()} for i in range(3)]
    return ProfileRecord(name, {b.name: [list(b.resolve(**s)) for s in sizes] for b in config.bindings.inputs})
