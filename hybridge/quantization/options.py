"""Settings of a quantisation."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.errors import SettingError
from hybridge.artifact.settings import bad_value, check_settings, setting
from hybridge.exporter.rounding.roles import FORMATS, GROUP_SIZES, INT4, INT8

RTN, MSE, AWQ, GPTQ = "rtn", "mse", "awq", "gptq"
CPU, CUDA = "cpu", "cuda"
METHODS = (RTN, MSE, AWQ, GPTQ)
_DEFAULT_GROUPS = {INT4: 32, INT8: 128}


@dataclass(frozen=True)
class QuantizeOptions:
    """Settings of ``hybridge.quantize`` and ``hybridge quantize``; SettingError names a bad value."""

    format: str = setting(
        INT4, "Type of the weights: int4, int8, fp8 (e4m3), nvfp4 or mxfp4.", metavar="TYPE", choices=FORMATS
    )
    group_size: int | None = setting(
        None,
        "Columns that share a scale (int4, int8): 16, 32, 64 or 128.",
        metavar="N",
        least=GROUP_SIZES[-1],
        most=GROUP_SIZES[0],
        shown_default="32 (int4), 128 (int8)",
    )
    bits: float | None = setting(
        None,
        "Average bits per weight, scales included: a mix of int4, int8 and unchanged matrices by sensitivity.",
        metavar="N",
        least=4,
        most=12,
        shown_default="off",
    )
    method: str = setting(
        MSE,
        "rtn (scales from the largest weight), mse (scales with the least squared error), "
        "awq or gptq (mse, calibrated).",
        metavar="NAME",
        choices=METHODS,
    )
    text: str | None = setting(
        None,
        "Calibration text in UTF-8 (awq, gptq, --bits).",
        metavar="FILE",
        shown_default="the model's own samples",
    )
    zero_points: bool = setting(False, "Zero points of int4: more precise, not for TensorRT.")
    keep_head: bool = setting(False, "Do not quantise the LM head.")
    device: str = setting(CPU, "cpu or cuda (calibration, gptq).", metavar="NAME", choices=(CPU, CUDA))
    resume: bool = setting(False, "Continue an interrupted run.")
    overwrite: bool = setting(False, "Replace a checkpoint that hybridge quantize wrote.")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.text is not None and not self.is_calibrated:
            raise SettingError(f"text: expected none for the method {self.method} without `bits`, found {self.text}")
        if self.bits is not None and not (isinstance(self.bits, int | float) and 4 <= self.bits <= 12):
            raise bad_value("bits", "a number from 4 to 12", self.bits)
        if self.bits is not None and self.format != INT4:
            raise SettingError(f"format: expected {INT4} with `bits`, which mixes formats, found {self.format}")
        if self.bits is not None and self.group_size is not None:
            raise SettingError(f"group_size: expected none with `bits`, which mixes them, found {self.group_size}")
        if self.zero_points and self.format != INT4:
            raise SettingError(f"format: expected {INT4} with `zero_points`, found {self.format}")
        if self.device != CPU and not self.is_calibrated:
            raise SettingError(
                f"device: expected {CPU} for the method {self.method} without `bits`, found {self.device}"
            )
        if self.group_size is None:
            return
        if self.group_size not in GROUP_SIZES:
            raise SettingError(
                f"group_size: expected {', '.join(map(str, reversed(GROUP_SIZES)))}, found {self.group_size}"
            )
        if self.format not in _DEFAULT_GROUPS:
            raise SettingError(f"group_size: expected none for {self.format}, found {self.group_size}: leave it out")

    @property
    def is_calibrated(self) -> bool:
        """Whether the method runs the model on a text or on its own samples."""
        return self.method in (AWQ, GPTQ) or self.bits is not None

    def group_of(self, format: str) -> int:
        """Columns that share a scale in the weights of an integer format, where that divides their columns."""
        return self.group_size or _DEFAULT_GROUPS[format]
