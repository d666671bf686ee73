"""Original checkpoints of Mamba and Mamba2: mamba_ssm's config, and a PyTorch file that is read without running it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from hybridge.artifact.errors import CheckpointError, HybridgeError, UnsupportedError
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.families.mamba_ssm import NOTE, transformers_config
from hybridge.exporter.families.registry import decoder_config
from hybridge.exporter.plan import plan_export
from hybridge.inspection import inspect_path
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.agreement import assert_one_shot_agrees
from tests.support.mamba_ssm_checkpoints import CONFIG, save_mamba_ssm


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the package, next to "reference" as transformers stores it; not to be changed."""
    root = tmp_path_factory.mktemp("mamba_ssm")
    return save_mamba_ssm(root / "original", root / "reference")


def test_same_as_transformers(original: Path) -> None:
    assert_one_shot_agrees(original, reference_folder=original.parent / "reference")


def test_mamba1_is_the_package_s_default(tmp_path: Path) -> None:
    """With the fields of state-spaces/mamba-130m's config.json, other sizes, and the name of its embedding."""
    folder = save_mamba_ssm(
        tmp_path / "a", tmp_path / "reference", "mamba", ssm_cfg={"d_state": 8, "dt_rank": 5, "dt_init": "random"}
    )
    assert_one_shot_agrees(folder, reference_folder=tmp_path / "reference")


def test_defaults_of_the_package() -> None:
    """The config.json of state-spaces/mamba2-130m, whose sizes are the package's defaults."""
    found = decoder_config(
        transformers_config(
            {
                "d_model": 768,
                "d_intermediate": 0,
                "n_layer": 24,
                "vocab_size": 50277,
                "ssm_cfg": {"layer": "Mamba2"},
                "attn_layer_idx": [],
                "attn_cfg": {},
                "rms_norm": True,
                "residual_in_fp32": True,
                "fused_add_norm": True,
                "pad_vocab_size_multiple": 16,
                "tie_embeddings": True,
            }
        )
    )
    mixer = found.recurrent_bodies[0]
    assert (found.vocab_size, found.hidden_size, len(found.layers)) == (50288, 768, 24)
    assert (mixer.num_heads, mixer.head_dim, mixer.state_size, mixer.num_groups) == (24, 64, 128, 1)
    assert (mixer.conv_kernel, mixer.proj_bias, mixer.conv_bias) == (4, False, True)


def test_exported_verified_and_inspected(original: Path, tmp_path: Path) -> None:
    before = sorted(original.iterdir())
    report = export_checkpoint(original, tmp_path / "out")
    assert NOTE.format("mamba2") in report.notes
    weights = load_file(tmp_path / "out" / "weights" / "model.safetensors")
    stored = torch.load(original / "pytorch_model.bin", weights_only=True)
    # The tied head is stored once.
    assert set(weights) <= set(stored) and len(weights) == len(stored) - 1
    assert all(np.array_equal(value, stored[name].numpy()) for name, value in weights.items())
    checked = verify(
        original, tmp_path / "out", VerifyOptions(engine="onnxruntime", prompt_lengths=(5,), decode_steps=2)
    )
    assert checked.passed
    inspection = inspect_path(original)
    assert inspection.refusal is None
    assert (inspection.model_type, len(inspection.layers)) == ("mamba2", 3)
    assert sorted(original.iterdir()) == before


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"attn_layer_idx": [1], "attn_cfg": {"num_heads": 3}}, "attn_layer_idx"),
        ({"d_intermediate": 64}, "d_intermediate"),
        ({"rms_norm": False}, "rms_norm"),
        ({"ssm_cfg": {"layer": "Mamba3"}}, "ssm_cfg: layer: expected 'Mamba1' or 'Mamba2', found 'Mamba3'"),
        ({"ssm_cfg": {"headdim": 16}}, "headdim"),
        ({"ssm_cfg": {"dt_rank": 0}}, "dt_rank"),
        ({"ssm_cfg": {"layer": "Mamba2", "D_has_hdim": True}}, "D_has_hdim"),
        ({"ssm_cfg": {"layer": "Mamba2", "d_ssm": 48}}, "d_ssm"),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 36}}, "headdim"),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 16, "dt_rank": 3}}, "dt_rank"),
        ({"ssm_cfg": "Mamba2"}, "ssm_cfg"),
        ({"moe": True}, "moe"),
        ({"n_layer": 0}, "n_layer"),
        ({"vocab_size": None}, "vocab_size"),
    ],
    ids=str,
)
def test_other_models_of_the_package_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(HybridgeError, match=named):
        transformers_config({**CONFIG, **fields})


class Planted:
    """Would make a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def written(folder: Path, content: Any, **options: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    torch.save(content, folder / "pytorch_model.bin", **options)
    return folder


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", {"weight": Planted(tmp_path / "ran")})
    with pytest.raises(CheckpointError, match="tensors alone"):
        open_checkpoint(folder)
    assert not (tmp_path / "ran").exists()


def test_files_that_are_no_tensors_by_name(tmp_path: Path) -> None:
    for name, content in (("a", [torch.zeros(2)]), ("b", {"step": 3}), ("c", {}), ("d", {"x": {"y": torch.zeros(1)}})):
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            open_checkpoint(written(tmp_path / name, content))


def test_views_with_strides_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="strides"):
        open_checkpoint(written(tmp_path / "a", {"x": torch.zeros(3, 4).t()}))


def test_the_format_before_zip_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", {"x": torch.zeros(3)}, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"version 1\.6 or later"):
        open_checkpoint(folder)


def test_compressed_entries_are_refused(original: Path, tmp_path: Path) -> None:
    folder = written(tmp_path / "a", {"x": torch.zeros(3)})
    with (
        zipfile.ZipFile(original / "pytorch_model.bin") as source,
        zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    with pytest.raises(CheckpointError, match="compression"):
        open_checkpoint(folder)


@pytest.mark.parametrize("kept", [0.3, 0.999])
def test_truncated_files_are_refused(kept: float, original: Path, tmp_path: Path) -> None:
    folder = written(tmp_path / "a", {})
    data = (original / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        open_checkpoint(folder)


def test_other_families_are_told_to_convert(original: Path, tmp_path: Path) -> None:
    folder = written(tmp_path / "a", {"x": torch.zeros(3)})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CheckpointError, match="convert it"):
        plan_export(folder)
