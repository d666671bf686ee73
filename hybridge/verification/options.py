"""What a user may choose about a verification."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import RequestError

# Engines that compute every artifact in float32, whatever its own type.
FLOAT32_ENGINES = ("auto", "onnxruntime", "onnxruntime-portable")


def computed_type(engine: str, dtype: DType) -> DType:
    """The type in which ``engine`` computes an artifact of compute type ``dtype``."""
    return DType.FLOAT32 if engine in FLOAT32_ENGINES else dtype


# Relative L2 norm of the difference, float32 against float32; rounding in another order gives 1e-6.
DEFAULT_TOLERANCE = 1e-4
# An engine in 16 bits rounds every layer's values to 11 or 8 bits of mantissa, the reference to 24.
NARROW_TOLERANCES = {DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}
# The reference rounds keys and values to e4m3 as the artifact does, but next to the middle of two numbers to the other
# one now and then, which is a 16th of a number away.
E4M3_TOLERANCE = 1e-2


def default_tolerance(engine: str, dtype: DType, kv_scales: bool = False) -> float:
    """The tolerance for an artifact of compute type ``dtype``, with e4m3 in its pools or not, in that engine."""
    computed = NARROW_TOLERANCES.get(computed_type(engine, dtype), DEFAULT_TOLERANCE)
    return max(computed, E4M3_TOLERANCE) if kv_scales else computed


@dataclass(frozen=True)
class VerifyOptions:
    """Arguments of ``hybridge verify``. Prompts are random tokens of ``prompt_lengths``, from ``seed``.

    prompt_lengths: None for some that cross the chunks and sliding windows of the model (``lengths.default_lengths``).
    tolerance: largest relative error; None is that of ``default_tolerance``.
    engine: what runs the artifact; "auto" runs it twice, by the engine that generates and exactly as it was exported.
    """

    engine: str = "auto"
    prompt_lengths: tuple[int, ...] | None = None
    decode_steps: int = 16
    tolerance: float | None = None
    seed: int = 0

    def check(self, max_seq_len: int) -> VerifyOptions:
        """Return self; RequestError when a length is not positive or does not fit ``max_seq_len``."""
        lengths = (1,) if self.prompt_lengths is None else self.prompt_lengths
        if not lengths or min(lengths) < 1:
            raise RequestError(f"--prompt-lengths: expected positive lengths, found {list(lengths)}")
        if self.decode_steps < 0:
            raise RequestError(f"--decode-steps: expected 0 or more, found {self.decode_steps}")
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise RequestError(f"--tolerance: expected a positive finite number, found {self.tolerance}")
        longest = max(lengths) + self.decode_steps
        if longest > max_seq_len:
            raise RequestError(
                f"the longest prompt with its decode steps has {longest} tokens, the artifact holds {max_seq_len}: "
                "pass shorter --prompt-lengths or fewer --decode-steps"
            )
        return self
