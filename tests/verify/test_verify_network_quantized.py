"""Weights of 8 and 4 bits and rounded inputs, in the network that TensorRT's parser makes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.effort import sample
from tests.support.quantized_checkpoints import save_quantized
from tests.verify.test_quantized import CASES, TOLERANCE

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

NETWORK = "tensorrt-network"
# Those whose graph gets plugins have another network without them.
WITH_PLUGINS = ("nvfp4 experts, dense", "fp8 blocks of experts", "mxfp4")
NARROW = ("w4 channel, dense", "awq", "mxfp4")
ON_PUSH = (("nvfp4, rounded inputs", DType.FLOAT32, NETWORK),)


@pytest.mark.parametrize(
    ("name", "dtype", "engine"),
    sample(
        (
            *itertools.product(CASES, (DType.FLOAT32,), (NETWORK,)),
            *itertools.product(NARROW, (DType.FLOAT16,), (NETWORK,)),
            *itertools.product(WITH_PLUGINS, (DType.FLOAT32,), (f"{NETWORK}-native",)),
        ),
        ON_PUSH,
    ),
)
def test_network_has_the_logits_of_the_checkpoint(name: str, dtype: DType, engine: str, tmp_path: Path) -> None:
    case = CASES[name]
    quantized, _ = save_quantized(tmp_path, case.family, case.form, **case.overrides)
    options = ExportOptions(max_batch_size=3, max_seq_len=96, dtype=dtype, **case.options)
    export_checkpoint(quantized, tmp_path / "out", options)
    tolerance = TOLERANCE if dtype is DType.FLOAT32 else None
    report = verify(quantized, tmp_path / "out", VerifyOptions(engine, (5, 9), 2, tolerance))
    assert report.passed, (report.verdict(), max(c.error for c in report.comparisons))
    native = any("only native layers" in note for note in report.notes)
    assert native != (name in WITH_PLUGINS) or engine != NETWORK
