"""Settings of a conformance run."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.errors import SettingError
from hybridge.artifact.settings import check_settings, setting


@dataclass(frozen=True)
class ConformanceOptions:
    """Settings of ``hybridge conformance``; SettingError names a bad value."""

    model: str | None = setting(None, "Name of the model.", metavar="NAME", shown_default="the server's first")
    prompts: int = setting(12, "Distinct prompts per scenario.", metavar="N", least=1, most=1024)
    batch: int = setting(64, "Maximum number of concurrent requests.", metavar="N", least=1, most=1024)
    max_tokens: int = setting(24, "Maximum tokens of an answer.", metavar="N", least=1, most=65536)
    longest: int = setting(600, "Words of the longest prompt.", metavar="N", least=8, most=1_000_000)
    seed: int = setting(0, "Seed of the prompts' words.", metavar="N", least=0)
    tie: float = setting(
        0.01,
        "A differing token is a tie if the two most likely tokens differ by at most this log-probability.",
        metavar="X",
    )
    timeout: float = setting(120.0, "Seconds to wait for an answer.", metavar="SECONDS")

    def __post_init__(self) -> None:
        check_settings(self)
        for name, least in (("tie", 0.0), ("timeout", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
                raise SettingError(f"{name}: expected a number of at least {least:g}, found {value!r}")
