"""Options of an export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridge.artifact.config import LAYOUTS
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import SettingError
from hybridge.artifact.kv_dtypes import E4M3_BYTES, FP8_E4M3
from hybridge.artifact.limits import POSITIONS, ROWS
from hybridge.artifact.paged import PAGED
from hybridge.artifact.settings import bad_value, check_settings, checked_choice, setting
from hybridge.artifact.state_dtypes import STATES_8BIT, has_state_scales, state_dtype_from_name, state_dtype_name
from hybridge.exporter.rounding.roles import BITS, FORMATS
from hybridge.exporter.weights.placing import MODES

COMPUTE_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
KV_DTYPES = ("auto", FP8_E4M3)
REQUIRED, OPTIONAL = "required", "optional"
KERNELS = (REQUIRED, OPTIONAL)
AUTO = "auto"
# Also the short names of other tools.
_FLOAT_NAMES = ("float32", "float16", "bfloat16", "fp32", "fp16", "half", "bf16")
STATE_DTYPE_NAMES = (*_FLOAT_NAMES, *STATES_8BIT)
DTYPE_NAMES = (AUTO, *_FLOAT_NAMES)
_TYPES, _GRAPH, _WEIGHTS, _OUTPUT = "Types", "Graph", "Weights", "Output"


@dataclass(frozen=True)
class ExportOptions:
    """Options of ``hybridge.export``, which describes them, and ``hybridge export``. SettingError names a bad value.

    ``dtype`` None takes the checkpoint's type, ``max_seq_len`` None the checkpoint's own limit.
    ``head`` False leaves out the head: the graph returns the hidden states of every token, for callers with their own.
    """

    dtype: DType | None = setting(
        None,
        "Compute type: float16 (fp16), bfloat16 (bf16), float32 (fp32) or auto (the checkpoint's).",
        metavar="TYPE",
        shown_default=AUTO,
        group=_TYPES,
    )
    state_dtype: DType = setting(
        DType.FLOAT32,
        "Recurrent states: float32 (fp32), float16 (fp16), bfloat16 (bf16), int8 or fp8_e4m3.",
        metavar="TYPE",
        shown_default="float32",
        group=_TYPES,
    )
    state_rings: bool = setting(False, "Write recurrent states once in 16 decoded tokens.", group=_GRAPH)
    kv_dtype: str = setting(
        AUTO, "Keys and values: auto (as --dtype) or fp8_e4m3 (paged).", metavar="TYPE", choices=KV_DTYPES, group=_TYPES
    )
    layout: str = setting(
        "dense",
        "KV caches: dense (one row per sequence) or paged (blocks, for serving).",
        metavar="LAYOUT",
        choices=LAYOUTS,
        group=_GRAPH,
    )
    max_batch_size: int = setting(
        8, "Maximum batch size.", flag="--max-batch", metavar="N", least=1, most=ROWS, group=_GRAPH
    )
    max_seq_len: int | None = setting(
        None,
        "Maximum tokens of a sequence.",
        metavar="N",
        least=1,
        most=POSITIONS,
        shown_default="the checkpoint's",
        group=_GRAPH,
    )
    all_logits: bool = setting(False, "Logits of every token, not only the last.", group=_GRAPH)
    mtp: bool = setting(True, "Leave out the multi-token prediction head (paged).", flag="--no-mtp", group=_GRAPH)
    rounded_inputs: bool = setting(
        True,
        "Do not round inputs of products where a quantised checkpoint does.",
        flag="--no-rounded-inputs",
        group=_GRAPH,
    )
    kernels: str = setting(
        REQUIRED,
        "optional: accept sizes that no CUDA kernel supports.",
        metavar="WHICH",
        choices=KERNELS,
        group=_GRAPH,
    )
    head: bool = True
    weights: str = setting(
        AUTO,
        "Weight files: reflink, link (hard links), copy, or auto (the first of these that works).",
        metavar="HOW",
        choices=MODES,
        group=_WEIGHTS,
    )
    quantize: str | None = setting(
        None,
        "Round matrices to the nearest int4, int8, fp8, nvfp4 or mxfp4; LM heads to 8 bits.",
        metavar="TYPE",
        choices=FORMATS,
        shown_default="as stored",
        group=_WEIGHTS,
    )
    quantize_embedding: str | None = setting(
        None,
        "Round the embedding (with a tied head) to int4 or int8.",
        metavar="TYPE",
        choices=tuple(BITS),
        shown_default="as stored",
        group=_WEIGHTS,
    )
    scan: bool = setting(
        True, "Skip the search for weights beyond the range of the compute type.", flag="--no-scan", group=_WEIGHTS
    )
    full_hash: bool = setting(False, "Hash all weight bytes into the manifest.", group=_WEIGHTS)
    ignore_config_fields: tuple[str, ...] = setting(
        (),
        "Accept this unknown config field (repeatable).",
        flag="--ignore-config-field",
        metavar="NAME",
        group=_WEIGHTS,
    )
    overwrite: bool = setting(False, "Replace an earlier export, its engines included.", group=_OUTPUT)

    def __post_init__(self) -> None:
        check_settings(self)
        known = ", ".join(d.value for d in COMPUTE_DTYPES)
        if self.dtype is not None and self.dtype not in COMPUTE_DTYPES:
            raise bad_value("dtype", f"one of {known}", self.dtype.value)
        if self.state_dtype not in COMPUTE_DTYPES and not has_state_scales(self.state_dtype):
            raise bad_value("state_dtype", f"one of {known}, {', '.join(STATES_8BIT)}", self.state_dtype.value)
        if self.state_rings and has_state_scales(self.state_dtype):
            raise SettingError(
                f"state_rings: expected states of 16 or 32 bits, found state_dtype "
                f"{state_dtype_name(self.state_dtype)}: leave one of them out"
            )
        if self.layout == PAGED:
            self._check_paged()
        else:
            self._check_dense()

    @classmethod
    def named(cls, dtype: str = AUTO, state_dtype: str = "float32", **settings: Any) -> ExportOptions:
        """The options with types by name, also in short: "fp16", "half", "bf16", "fp32"."""
        checked_choice("dtype", dtype, DTYPE_NAMES)
        checked_choice("state_dtype", state_dtype, STATE_DTYPE_NAMES)
        compute = None if dtype == AUTO else DType.named(dtype)
        return cls(compute, state_dtype_from_name(state_dtype), **settings)

    def kv_cache_dtype(self, dtype: DType) -> DType:
        """Type of the tensors that hold keys and values of a model that computes in ``dtype``."""
        return E4M3_BYTES if self.kv_dtype == FP8_E4M3 else dtype

    def _check_paged(self) -> None:
        for name, given in (("`all_logits`", self.all_logits), ("`head=False`", not self.head)):
            if given:
                raise SettingError(
                    f"layout: expected no {name} with {PAGED}, found both: a step of this layout returns the logits of "
                    "the tokens that its input logits_indices names; leave one of them out"
                )

    def _check_dense(self) -> None:
        if self.kv_dtype == FP8_E4M3:
            raise SettingError(
                f"kv_dtype: expected `layout={PAGED!r}` for {FP8_E4M3}, whose pools have a scale for every token and "
                f"head, found {self.layout}: choose that layout, or leave it out"
            )
