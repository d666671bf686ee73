"""Optimization profiles: the shapes that an engine accepts and is tuned for."""

from __future__ import annotations

from dataclasses import dataclass

from artifact.config import RuntimeConfig
from artifact.engine_record import ProfileRecord
from artifact.errors import UnsupportedError
from trt_plugins.build.options import BuildOptions
from trt_plugins.build.presets import Preset

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True)
class Limits:
    """What one engine serves: batch rows, and positions of its KV caches."""

    max_batch_size: int
    max_seq_len: int


def engine_limits(config: RuntimeConfig, preset: Preset, options: BuildOptions) -> Limits:
    """The options, else the preset capped by the artifact; UnsupportedError when an option exceeds the artifact."""
    limits = []
    for flag, asked, preset_value, exported in (
        ("--max-batch", options.max_batch_size, preset.max_batch_size, config.max_batch_size),
        ("--max-seq-len", options.max_seq_len, preset.max_seq_len, config.max_seq_len),
    ):
        if asked is not None and asked > exported:
            raise UnsupportedError(
                f"{flag}: expected at most {exported}, which the artifact was exported with, found {asked}: "
                f"export it again with {flag} {asked}"
            )
        limits.append(asked or min(preset_value, exported))
    return Limits(*limits)


def engine_profiles(config: RuntimeConfig, preset: Preset, limits: Limits) -> list[ProfileRecord]:
    """The profiles "prefill" (1 to the preset's max_seq new tokens) and "decode" (1 new token), in that order.

    Batch runs from 1 to ``limits.max_batch_size`` in both; the caches have ``limits.max_seq_len`` positions.
    """
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
