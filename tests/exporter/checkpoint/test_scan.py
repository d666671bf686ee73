"""The weight scan against the plain meaning of a cast, computed on whole arrays."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot, read_safetensors
from hybridge.exporter.checkpoint import scan
from hybridge.exporter.checkpoint.float_range import float_range
from hybridge.exporter.checkpoint.scan import ScanReport, scan_weights
from tests.support.effort import examples

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64
STORED, COMPUTE = (F16, BF16, F32, F64), (F16, BF16, F32)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a few elements then span several pieces, the last one not full."""
    monkeypatch.setattr(scan, "PIECE_BYTES", 64)


def slots(folder: Path, **tensors: np.ndarray) -> list[TensorSlot]:
    save_file(tensors, folder / "model.safetensors")
    found = read_safetensors(folder / "model.safetensors").tensors
    return [found[name] for name in tensors]


def scanned(folder: Path, values: Any, stored: DType, compute: DType) -> ScanReport:
    [slot] = slots(folder, w=np.asarray(values, np.float64).astype(stored.numpy))
    return scan_weights([(slot, compute)])


def normal(shape: tuple[int, ...], dtype: DType = BF16) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(dtype.numpy)


@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("stored", STORED)
def test_good_weights_pass(tmp_path: Path, stored: DType, compute: DType) -> None:
    report = scan_weights([(slot, compute) for slot in slots(tmp_path, w=normal((7, 31), stored))])
    assert report == ScanReport(1, 7 * 31 * stored.itemsize)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("place", [0, 15, 16, 31, 32, 216])
def test_non_finite_weight_is_named(tmp_path: Path, stored: DType, compute: DType, place: int, bad: float) -> None:
    values = normal((7, 31), stored)
    values.reshape(-1)[place] = bad
    [slot] = slots(tmp_path, w=values)
    where = re.escape(f"tensor w holds {abs(bad) if np.isnan(bad) else bad} at index {[place // 31, place % 31]}")
    with pytest.raises(CheckpointError, match=f"model.safetensors: {where}: expected finite weights"):
        scan_weights([(slot, compute)])


@pytest.mark.parametrize(
    ("stored", "compute", "good", "bad", "remedy"),
    [
        # float16 ends at 65504; what lies below 65520 rounds to it.
        (F32, F16, np.nextafter(np.float32(65520), np.float32(0)), 65520.0, "bfloat16"),
        (F64, F16, np.nextafter(65520, 0), 65520.0, "bfloat16"),
        (BF16, F16, 65280.0, 65536.0, "bfloat16"),
        (F32, BF16, float.fromhex("0x1.fefffep127"), float.fromhex("0x1.ffp127"), "float32"),
        (F64, F32, float.fromhex("0x1.fffffep127"), 1e39, "float32"),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_value_beyond_the_compute_type(
    tmp_path: Path, stored: DType, compute: DType, good: float, bad: float, remedy: str, sign: int
) -> None:
    fill = [0.5] * 40
    assert not scanned(tmp_path, [*fill, sign * good], stored, compute).notes
    with pytest.raises(
        CheckpointError, match=rf"at index \[40\], which {compute.value} cannot hold.*`dtype='{remedy}'`"
    ):
        scanned(tmp_path, [*fill, sign * bad, sign * bad], stored, compute)


def test_wider_types_hold_everything(tmp_path: Path) -> None:
    largest = float(np.finfo(np.float32).max)
    assert not scanned(tmp_path, [-largest, largest, 1e-45], F32, F32).notes
    assert not scanned(tmp_path, [-65504, 65504, 6e-8], F16, BF16).notes
    assert not scanned(tmp_path, [3.38e38, -1e-40], BF16, F32).notes


def test_weights_that_become_zero_are_counted(tmp_path: Path) -> None:
    least = 2.0**-24  # of float16; half of it is a tie and goes to zero
    lost = np.array([least / 2, -least / 2, 1e-30, -1e-38])
    kept = np.array([least, -least, 0.75 * least, 0.0, -0.0, 1.0])
    first = np.concatenate([kept, lost, np.ones(40), lost, lost]).astype(np.float32)
    many = slots(tmp_path, first=first, second=first[:10], third=kept.astype(np.float32))
    report = scan_weights([(slot, F16) for slot in many])
    assert report.notes == ("16 of 74 weights, in 2 tensor(s), become zero in the compute type (most in first: 12)",)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_any_pattern_is_judged_like_a_cast(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    stored, compute = data.draw(st.sampled_from((F16, BF16, F32))), data.draw(st.sampled_from(COMPUTE))
    limits = float_range(stored, compute)
    edge = st.sampled_from([limits.first_bad, limits.first_nonzero]).flatmap(lambda e: st.integers(e - 2, e + 2))
    sign = st.sampled_from([0, int(limits.mask) + 1])
    pattern = st.builds(lambda p, s: (max(p, 0) & int(limits.mask)) | s, edge | st.integers(0, int(limits.mask)), sign)
    patterns = np.array(data.draw(st.lists(pattern, min_size=1, max_size=80)), limits.unsigned)
    values = patterns.view(stored.numpy)
    with np.errstate(all="ignore"):
        cast = values.astype(compute.numpy)
        bad = np.flatnonzero(~np.isfinite(cast))
        zeros = int(np.count_nonzero((cast == 0) & (values != 0)))
    [slot] = slots(tmp_path_factory.mktemp("fuzz"), w=values)
    if bad.size:
        with pytest.raises(CheckpointError, match=rf"at index \[{bad[0]}\]"):
            scan_weights([(slot, compute)])
    else:
        notes = scan_weights([(slot, compute)]).notes
        assert notes == () if not zeros else notes[0].startswith(f"{zeros} of {values.size} weights")


def test_first_tensor_in_order_is_named(tmp_path: Path) -> None:
    bad = np.full(300, np.nan, np.float32)
    a, b, c = slots(tmp_path, a=np.ones(300, np.float32), b=bad, c=bad)
    with pytest.raises(CheckpointError, match="tensor c"):
        scan_weights([(a, F32), (c, F32), (b, F32)])


def test_scalars_empty_and_integer_tensors(tmp_path: Path) -> None:
    tensors = {"scalar": np.array(np.inf, np.float32), "empty": np.ones((0, 3), np.float32), "i": np.arange(3)}
    scalar, empty, integers = slots(tmp_path, **tensors)
    assert scan_weights([(empty, F16), (integers, F16)]) == ScanReport(1, 0)
    with pytest.raises(CheckpointError, match=r"holds inf at index \[\]"):
        scan_weights([(scalar, F32)])


def test_each_tensor_counts_once_per_compute_type(tmp_path: Path) -> None:
    [slot] = slots(tmp_path, tied=normal((33,)))
    assert scan_weights([(slot, F32), (slot, F32)]) == ScanReport(1, 66)


def test_file_that_shrank_since_it_was_opened(tmp_path: Path) -> None:
    [slot] = slots(tmp_path, w=normal((333,)))
    os.truncate(slot.path, slot.offset + 400)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: ends inside tensor w"):
        scan_weights([(slot, F32)])
    slot.path.unlink()
    with pytest.raises(CheckpointError, match=r"expected the file .*model\.safetensors, found none"):
        scan_weights([(slot, F32)])


class Recorder:
    """Adds up what is reported."""

    def __init__(self) -> None:
        self.total, self.done = 0, 0

    def start(self, stage: str, total: int | None = None, unit: str = "") -> None:
        self.total = total or 0

    def advance(self, amount: int = 1) -> None:
        self.done += amount

    def finish(self) -> None:
        """Nothing to end."""


def test_progress_adds_up_to_all_bytes(tmp_path: Path) -> None:
    recorder = Recorder()
    many = slots(tmp_path, a=normal((77,)), b=normal((5,), F32))
    scan_weights([(slot, F32) for slot in many], recorder)
    assert recorder.total == recorder.done == 77 * 2 + 5 * 4


def test_cancelled_scan_ends_without_reading(tmp_path: Path) -> None:
    [slot] = slots(tmp_path, w=np.full(999, np.nan, np.float32))
    cancelled = threading.Event()
    cancelled.set()
    scan_weights([(slot, F32)], cancelled=cancelled)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of zeros (a sparse file) through buffers of 1 MiB."""
    import tracemalloc

    monkeypatch.setattr(scan, "PIECE_BYTES", 1 << 20)
    path = tmp_path / "big"
    path.touch()
    os.truncate(path, 64 << 20)
    slot = TensorSlot("w", BF16, (32 << 20,), path, 0, 64 << 20)
    tracemalloc.start()
    try:
        scan_weights([(slot, F16)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
