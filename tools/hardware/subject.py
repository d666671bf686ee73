"""The subject of the steps of a check: the engine of one form of an artifact, and the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware.forms import Form
from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import E4M3_BYTES
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.serving.open import open_engine

CHECKED, REFERENCE = "tensorrt", "onnxruntime"
# Relative norm of the difference from an engine that computes in float32: an artifact of a 16-bit type rounds after
# every operator, with 2**-11 (float16) or 2**-8 (bfloat16), and the errors of the layers add up.
TOLERANCE: Mapping[DType, float] = {DType.FLOAT32: 1e-3, DType.FLOAT16: 1e-2, DType.BFLOAT16: 5e-2}
# A key or value in e4m3 is off by up to 2**-4 of itself.
E4M3_TOLERANCE = 1e-1
# The distance of two adjacent numbers around 16, the size of a large logit: tokens this close may swap.
TIE: Mapping[DType, float] = {DType.FLOAT32: 2**-19, DType.FLOAT16: 2**-6, DType.BFLOAT16: 2**-3}


@dataclass(frozen=True)
class Subject:
    """The latest engine of ``artifact`` in ``form``, with these limits (None: the preset's)."""

    artifact: Path
    form: Form
    max_batch: int | None = None
    max_seq_len: int | None = None

    @property
    def config(self) -> RuntimeConfig:
        """config.json."""
        return read_config(self.artifact)

    @property
    def tolerance(self) -> float:
        """The largest accepted relative error against the reference."""
        e4m3 = any(binding.dtype is E4M3_BYTES for binding in self.config.bindings.states)
        return E4M3_TOLERANCE if e4m3 else TOLERANCE[self.config.dtype]

    @property
    def tie(self) -> float:
        """Difference of two log-probabilities up to which rounding may decide which token comes first."""
        return TIE[self.config.dtype]

    @contextmanager
    def opened(self, name: str = CHECKED, exact: bool = True) -> Iterator[PagedEngine]:
        """The engine ``name``. exact: ONNX Runtime does not round the inputs of quantised weights."""
        with closing(open_engine(self.artifact, name, EngineOptions(exact_products=exact))) as engine:
            yield engine


# The results of a step; "error" has the reason of a failure.
Found = dict[str, Any]
