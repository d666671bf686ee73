"""Settings of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.settings import check_settings, setting
from hybridge.runtime.engines.factory import ENGINE_NAMES


@dataclass(frozen=True)
class EvaluateOptions:
    """Settings of ``hybridge.evaluate`` and ``hybridge evaluate``; SettingError names a bad value."""

    engine: str = setting(
        "auto",
        "Engine of artifacts: auto (the best available), onnxruntime, onnxruntime-portable, tensorrt or torch.",
        metavar="NAME",
        choices=ENGINE_NAMES,
    )
    window: int = setting(512, "Tokens of a window; its second half is scored.", metavar="N", least=2)
    windows: int | None = setting(
        None, "Maximum number of windows.", metavar="N", least=1, shown_default="all of the text"
    )

    exact_products: bool = setting(False, "Do not round inputs of quantised weights to 8 bits (onnxruntime).")

    def __post_init__(self) -> None:
        check_settings(self)
