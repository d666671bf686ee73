"""What a user may choose about a verification."""

from __future__ import annotations

from dataclasses import dataclass

from artifact.dtypes import DType
from artifact.errors import RequestError

# Engines that compute every artifact in float32, whatever its own type.
FLOAT32_ENGINES = ("auto", "onnxruntime", "onnxruntime-portable")
# Relative L2 norm of the difference, float32 against float32; rounding in another order gives 1e-6.
DEFAULT_TOLERANCE = 1e-4
# An engine in 16 bits rounds every layer's values to 11 or 8 bits of mantissa, the reference to 24.
NARROW_TOLERANCES = {DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}


def default_tolerance(engine: str, dtype: DType) -> float:
    """The tolerance for an artifact of compute type ``dtype`` in the engine of that name."""
    return DEFAULT_TOLERANCE if engine in FLOAT32_ENGINES else NARROW_TOLERANCES.get(dtype, DEFAULT_TOLERANCE)


@dataclass(frozen=True)
class VerifyOptions:
    """Arguments of ``hybridge verify``. Prompts are random tokens of ``prompt_lengths``, from ``seed``.

    tolerance: largest relative error; None is that of ``default_tolerance``.
    engine: what runs the artifact; "auto" runs it twice, by the engine that generates and exactly as it was exported.
    """

    engine: str = "auto"
    prompt_lengths: tuple[int, ...] = (1, 7, 33)
    decode_steps: int = 16
    tolerance: float | None = None
    seed: int = 0

    def check(self, max_seq_len: int) -> VerifyOptions:
        """Return self; RequestError when a length is not positive or does not fit ``max_seq_len``."""
        if not self.prompt_lengths or min(self.prompt_lengths) < 1:
            raise RequestError(f"--prompt-lengths: expected positive lengths, found {list(self.prompt_lengths)}")
        if self.decode_steps < 0:
            raise RequestError(f"--decode-steps: expected 0 or more, found {self.decode_steps}")
        if self.tolerance is not None and not self.tolerance > 0:
            raise RequestError(f"--tolerance: expected a positive number, found {self.tolerance}")
        longest = max(self.prompt_lengths) + self.decode_steps
        if longest > max_seq_len:
            raise RequestError(
                f"the longest prompt with its decode steps has {longest} tokens, the artifact holds {max_seq_len}: "
                "pass shorter --prompt-lengths or fewer --decode-steps"
            )
        return self
