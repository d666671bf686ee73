"""The random checkpoint is one that transformers loads completely."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.artifacts import exported, touched_bytes_per_token
from benchmarks.random_checkpoint import DECODE_SHAPE, EXPORT_SHAPE, tensor_shapes, write_random_checkpoint
from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import read_safetensors
from hybridge.runtime.engines import create_engine
from tests.benchmarks.shapes import TINY


def test_transformers_finds_every_tensor_and_no_other(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_random_checkpoint(tmp_path / "c", TINY)
    _, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "c", output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_values_are_finite_and_rows_differ(tmp_path: Path) -> None:
    nbytes = write_random_checkpoint(tmp_path / "c", TINY)
    file = read_safetensors(tmp_path / "c" / "model.safetensors")
    assert nbytes == file.nbytes
    for name, slot in file.tensors.items():
        value = slot.map().astype(np.float64)
        assert np.isfinite(value).all(), name
        assert slot.dtype is (DType.FLOAT32 if name.endswith(("A_log", ".D", "dt_bias")) else DType.BFLOAT16)
        if value.ndim == 2:
            assert len(np.unique(value, axis=0)) == len(value), name


def test_the_sizes_are_those_announced() -> None:
    export = sum(math.prod(size) for size in tensor_shapes(EXPORT_SHAPE).values())
    decode = sum(math.prod(size) for size in tensor_shapes(DECODE_SHAPE).values())
    assert 1.65e9 < 2 * export < 1.75e9
    assert 145e6 < decode < 155e6
    assert (len(EXPORT_SHAPE.pattern), len(DECODE_SHAPE.pattern)) == (20, 24)


def test_traffic_counts_weights_once_and_states_twice(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "c", TINY)
    with_lm_head = sum(math.prod(size) for size in tensor_shapes(TINY).values()) - 97 * 48
    states = 2 * (6 * 16 * 24 + (6 * 16 + 2 * 3 * 24) * 4)
    engine = create_engine(exported(tmp_path / "c", tmp_path / "out"))
    assert touched_bytes_per_token(tmp_path / "c", engine.config) == 4 * (with_lm_head + 2 * states)
