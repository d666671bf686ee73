"""Settings of a verification."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import SettingError
from hybridge.artifact.kv_dtypes import E4M3_BYTES
from hybridge.artifact.settings import bad_value, check_settings, checked_int, setting
from hybridge.runtime.engines.factory import ENGINE_NAMES, NETWORK_ENGINES
from hybridge.runtime.engines.rollback.modes import AUTO, REPLAY, SNAPSHOT

# Engines that compute every artifact in float32, whatever its own type.
FLOAT32_ENGINES = ("auto", "onnxruntime", "onnxruntime-portable")


# Engines that do not return the outputs of layers.
_FUSED_ENGINES = ("tensorrt",)


def shows_layers(engine: str) -> bool:
    """Whether ``engine`` returns the output of each layer."""
    return engine not in _FUSED_ENGINES


def computed_type(engine: str, dtype: DType, float32: bool = False) -> DType:
    """The type in which ``engine`` computes an artifact of compute type ``dtype``; ``float32``: as it was told."""
    return DType.FLOAT32 if float32 or engine in FLOAT32_ENGINES else dtype


# Relative L2 norm of the difference, float32 against float32; rounding in another order gives 1e-6.
DEFAULT_TOLERANCE = 1e-4
# An engine in 16 bits rounds every layer's values to 11 or 8 bits of mantissa, the reference to 24.
NARROW_TOLERANCES = {DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}
# The reference rounds keys and values to e4m3 as the artifact does, but a value close to the middle of two e4m3 numbers
# may be rounded to the other one, a relative difference of 1/16.
E4M3_TOLERANCE = 1e-2
# So do recurrent states of 8 bits, with the difference of 1/127 of a row's largest number, or of 1/16 of a number.
STATE_TOLERANCES = {DType.INT8: 5e-3, E4M3_BYTES: 2e-2}
# Rounded inputs of products may differ in the same way. In an engine that does not return the input of each layer, the
# difference grows from layer to layer.
ROUNDED_TOLERANCE = 5e-2


def default_tolerance(
    engine: str,
    dtype: DType,
    kv_scales: bool = False,
    rounded_inputs: bool = False,
    float32: bool = False,
    states: DType | None = None,
) -> float:
    """The tolerance for an artifact of compute type ``dtype`` in that engine; ``float32``: as in ``computed_type``.

    kv_scales: its pools hold e4m3. rounded_inputs: products round their inputs. states: the type of recurrent states of
    8 bits, None for others.
    """
    ties = rounded_inputs and not shows_layers(engine)
    computed = NARROW_TOLERANCES.get(computed_type(engine, dtype, float32), DEFAULT_TOLERANCE)
    stored = max(E4M3_TOLERANCE * kv_scales, STATE_TOLERANCES[states] if states else 0.0)
    return max(computed, stored, ROUNDED_TOLERANCE * ties)


@dataclass(frozen=True)
class VerifyOptions:
    """Settings of ``hybridge.verify`` and ``hybridge verify``; SettingError names a bad value.

    Prompts are random tokens of ``prompt_lengths``, from ``seed``.

    prompt_lengths: None for lengths that cross the model's chunks and sliding windows (``lengths.default_lengths``).
    tolerance: largest relative error; None is that of ``default_tolerance``.
    engine: what runs the artifact; "auto" runs it twice, with the engine that generates and exactly as it was exported.
    speculative_tokens: also check steps with that many draft tokens per row, on engines that can roll them back.
    draft_states: how these take the states back; "auto" is the engine's choice.
    float32: a "tensorrt-network" computes 16-bit tensors in float32 instead of rounding each to its declared type.
    """

    engine: str = setting(
        "auto",
        "auto (the engine that generates, then the file as exported), onnxruntime, onnxruntime-portable, tensorrt, "
        "tensorrt-network (the network that TensorRT's parser makes, computed without a GPU), tensorrt-network-native "
        "(the same without plugins) or torch.",
        metavar="NAME",
        choices=ENGINE_NAMES,
    )
    prompt_lengths: tuple[int, ...] | None = None
    decode_steps: int = setting(16, "Tokens generated after each prompt.", metavar="N", least=0)
    tolerance: float | None = setting(
        None,
        "Maximum relative error of a tensor.",
        metavar="X",
        shown_default="1e-4; more for engines in 16 bits",
    )
    speculative_tokens: int = setting(0, "Also check steps with N draft tokens (paged).", metavar="N", least=0, most=15)
    draft_states: str = setting(
        AUTO,
        "Roll draft tokens back by snapshot or replay.",
        metavar="HOW",
        choices=(AUTO, SNAPSHOT, REPLAY),
        shown_default="the engine's choice",
    )
    float32: bool = setting(False, "Compute 16-bit tensors in float32 (tensorrt-network).")
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.float32 and self.engine not in NETWORK_ENGINES:
            raise SettingError(
                f"float32: expected the engine {' or '.join(NETWORK_ENGINES)}, found {self.engine}: leave it out"
            )
        if self.prompt_lengths is not None and not self.prompt_lengths:
            raise bad_value("prompt_lengths", "at least one length", self.prompt_lengths)
        for length in self.prompt_lengths or ():
            checked_int("prompt_lengths", length)
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise bad_value("tolerance", "a positive finite number", self.tolerance)

    def check(self, max_seq_len: int) -> VerifyOptions:
        """Return self; SettingError when the lengths do not fit ``max_seq_len``."""
        longest = max(self.prompt_lengths or (1,)) + self.decode_steps
        if longest > max_seq_len:
            raise SettingError(
                f"expected at most {max_seq_len} tokens (max_seq_len) in a prompt with its decode steps, found "
                f"{longest}: pass shorter `prompt_lengths` or fewer `decode_steps`"
            )
        return self
