"""What a user may choose about a verification."""

from __future__ import annotations

from dataclasses import dataclass

from artifact.errors import RequestError

# Relative L2 norm of the difference, float32 against float32; rounding in another order gives 1e-6.
DEFAULT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class VerifyOptions:
    """Arguments of ``hybridge verify``. Prompts are random tokens of ``prompt_lengths``, from ``seed``.

    engine: what runs the artifact; "auto" runs it twice, by the engine that generates and exactly as it was exported.
    """

    engine: str = "auto"
    prompt_lengths: tuple[int, ...] = (1, 7, 33)
    decode_steps: int = 16
    tolerance: float = DEFAULT_TOLERANCE
    seed: int = 0

    def check(self, max_seq_len: int) -> VerifyOptions:
        """Return self; RequestError when a length is not positive or does not fit ``max_seq_len``."""
        if not self.prompt_lengths or min(self.prompt_lengths) < 1:
            raise RequestError(f"--prompt-lengths: expected positive lengths, found {list(self.prompt_lengths)}")
        if self.decode_steps < 0:
            raise RequestError(f"--decode-steps: expected 0 or more, found {self.decode_steps}")
        if not self.tolerance > 0:
            raise RequestError(f"--tolerance: expected a positive number, found {self.tolerance}")
        longest = max(self.prompt_lengths) + self.decode_steps
        if longest > max_seq_len:
            raise RequestError(
                f"the longest prompt with its decode steps has {longest} tokens, the artifact holds {max_seq_len}: "
                "pass shorter --prompt-lengths or fewer --decode-steps"
            )
        return self
