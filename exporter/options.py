"""What a user may choose about an export."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.config import LAYOUTS
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.kv_dtypes import E4M3_BYTES, FP8_E4M3
from hybridge.artifact.paged import PAGED
from hybridge.exporter.models.hf_config import LARGEST_SIZE
from hybridge.exporter.weights.placing import MODES

MOST_SPECULATIVE_TOKENS = 15
COMPUTE_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
KV_DTYPES = ("auto", FP8_E4M3)
REQUIRED, OPTIONAL = "required", "optional"
KERNELS = (REQUIRED, OPTIONAL)


@dataclass(frozen=True)
class ExportOptions:
    """Arguments of ``hybridge export``.

    ``dtype`` None takes the checkpoint's type; ``kv_dtype`` "auto" holds keys and values in it, "fp8_e4m3" in 8 bits
    with a scale for every token and head, in the paged layout; ``max_seq_len`` None takes the checkpoint's own limit.
    ``weights`` is "reflink", "link" (hard links), "copy", or "auto": the first of these that the file system can do.
    ``head`` False leaves out the head: the graph ends in the hidden states of every token, for callers with their own.
    ``kernels`` "required" refuses sizes of recurrent layers that the CUDA kernels do not run; "optional" exports them
    for ONNX Runtime and for TensorRT's own layers.
    ``speculative_tokens``: how many candidate tokens a row may have behind its own in one step of the paged layout.
    ``mtp``: write the checkpoint's multi-token prediction head beside a paged graph, where it has one that is known.
    ``ignore_config_fields`` names config fields that are known to be harmless though Hybridge does not know them.
    """

    dtype: DType | None = None
    state_dtype: DType = DType.FLOAT32
    kv_dtype: str = "auto"
    layout: str = "dense"
    kernels: str = REQUIRED
    speculative_tokens: int = 0
    mtp: bool = True
    max_batch_size: int = 8
    max_seq_len: int | None = None
    all_logits: bool = False
    head: bool = True
    weights: str = "auto"
    overwrite: bool = False
    scan: bool = True
    full_hash: bool = False
    ignore_config_fields: tuple[str, ...] = ()

    def check(self) -> ExportOptions:
        """Return self, or raise UnsupportedError naming the option that cannot be honoured."""
        for name, dtype in (("--dtype", self.dtype), ("--state-dtype", self.state_dtype)):
            if dtype is not None and dtype not in COMPUTE_DTYPES:
                known = ", ".join(d.value for d in COMPUTE_DTYPES)
                raise UnsupportedError(f"{name}: expected one of {known}, found {dtype.value}")
        if self.layout not in LAYOUTS:
            raise UnsupportedError(f"--layout: expected {' or '.join(LAYOUTS)}, found {self.layout}")
        if self.layout == PAGED and (self.all_logits or not self.head):
            name = "--all-logits" if self.all_logits else "head=False"
            raise UnsupportedError(
                f"--layout paged: expected no {name}, found it: the input logits_indices names the tokens whose logits "
                "a step returns; leave it out"
            )
        if self.kernels not in KERNELS:
            raise UnsupportedError(f"--kernels: expected {' or '.join(KERNELS)}, found {self.kernels}")
        self._check_kv_dtype()
        self._check_speculative_tokens()
        if self.weights not in MODES:
            raise UnsupportedError(f"--weights: expected one of {', '.join(MODES)}, found {self.weights}")
        for name, value in (("--max-batch", self.max_batch_size), ("--max-seq-len", self.max_seq_len)):
            if value is not None and (not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE):
                raise UnsupportedError(f"{name}: expected an integer from 1 to {LARGEST_SIZE}, found {value!r}")
        return self

    def kv_cache_dtype(self, dtype: DType) -> DType:
        """Type of the tensors that hold keys and values of a model that computes in ``dtype``."""
        return E4M3_BYTES if self.kv_dtype == FP8_E4M3 else dtype

    def _check_kv_dtype(self) -> None:
        if self.kv_dtype not in KV_DTYPES:
            raise UnsupportedError(f"--kv-dtype: expected one of {', '.join(KV_DTYPES)}, found {self.kv_dtype}")
        if self.kv_dtype == FP8_E4M3 and self.layout != PAGED:
            raise UnsupportedError(
                f"--kv-dtype {FP8_E4M3}: expected --layout paged, whose pools have a scale for every token and head, "
                f"found {self.layout}: choose that layout, or leave it out"
            )

    def _check_speculative_tokens(self) -> None:
        count = self.speculative_tokens
        if not isinstance(count, int) or not 0 <= count <= MOST_SPECULATIVE_TOKENS:
            raise UnsupportedError(
                f"--speculative-tokens: expected an integer from 0 to {MOST_SPECULATIVE_TOKENS}, found {count!r}"
            )
        if count and self.layout != PAGED:
            raise UnsupportedError(
                f"--speculative-tokens: expected --layout paged, which has slots for the states of candidate tokens, "
                f"found {self.layout}: choose that layout, or leave it out"
            )
