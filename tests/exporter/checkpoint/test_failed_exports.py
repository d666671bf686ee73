"""An export that fails leaves nothing and destroys nothing: no partial folder, the checkpoint untouched."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, HybridgeError, OutputError
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from tests.support.tiny_models import save_tiny_model

WEIGHTS = "model.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "c", "llama", dtype="bfloat16", num_hidden_layers=1)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def change_weight(folder: Path, value: float) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = next(n for n in tensors if n.endswith("down_proj.weight"))
    tensors[name] = tensors[name].copy()
    tensors[name][3, 5] = value
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def nan(folder: Path) -> None:
    change_weight(folder, np.nan)


def too_large_for_float16(folder: Path) -> None:
    change_weight(folder, -1e5)


def truncated(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, 1000)


def no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def wrong_type(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": "one"'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (nan, r"down_proj\.weight holds nan at index \[3, 5\]"),
        (too_large_for_float16, "float16 cannot hold: pass `dtype='bfloat16'`"),
        (truncated, WEIGHTS),
        (no_weights, "found neither"),
        (wrong_type, "num_hidden_layers"),
    ],
)
def test_bad_checkpoint(checkpoint: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(checkpoint)
    before = digests(checkpoint)
    with pytest.raises(HybridgeError, match=words) as caught:
        export_checkpoint(checkpoint, checkpoint.parent / "out", ExportOptions(dtype=DType.FLOAT16))
    assert caught.value.exit_code == 2
    assert [path.name for path in checkpoint.parent.iterdir()] == ["c"]
    assert digests(checkpoint) == before


def test_failed_overwrite_keeps_artifact_and_checkpoint(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = checkpoint.parent / "out"
    export_checkpoint(checkpoint, out, ExportOptions(scan=False))
    artifact, source = digests(out / "weights"), digests(checkpoint)
    with pytest.raises(OutputError, match="`overwrite=True`"):
        export_checkpoint(checkpoint, out)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("hybridge.exporter.export.write_manifest", fail)
    with pytest.raises(OutputError, match="disk is full"):
        export_checkpoint(checkpoint, out, ExportOptions(scan=False, overwrite=True))
    monkeypatch.undo()
    assert digests(out / "weights") == artifact and digests(checkpoint) == source
    # A weight that the scan would refuse: the overwrite goes through, because the scan is left out.
    change_weight(checkpoint, np.nan)
    source = digests(checkpoint)
    with pytest.raises(CheckpointError, match="nan"):
        export_checkpoint(checkpoint, out, ExportOptions(overwrite=True))
    report = export_checkpoint(checkpoint, out, ExportOptions(scan=False, overwrite=True))
    assert any("not scanned" in note for note in report.notes)
    assert digests(out / "weights") != artifact and digests(checkpoint) == source
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == ["c", "out"]
