"""Opening checkpoints: what is read from good folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, HybridgeError, UnsupportedError
from hybridge.exporter.checkpoint import Checkpoint, open_checkpoint
from tests.exporter.checkpoint.folders import BF16, TENSORS, hub_cache, sharded, single, write_index, write_json


def assert_tensors(checkpoint: Checkpoint) -> None:
    assert set(checkpoint.tensors) == set(TENSORS)
    for name, expected in TENSORS.items():
        np.testing.assert_array_equal(checkpoint.tensors[name].map(), expected)


def test_one_file(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(single(tmp_path / "c"))
    assert_tensors(checkpoint)
    assert checkpoint.config["model_type"] == "llama" and checkpoint.path == tmp_path / "c"
    assert [s.path.name for s in checkpoint.shards] == ["model.safetensors"] and not checkpoint.notes


def test_shards(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(sharded(tmp_path / "c"))
    assert_tensors(checkpoint)
    assert [s.path.name[:11] for s in checkpoint.shards] == ["model-00001", "model-00002"]


def test_index_of_one_file(tmp_path: Path) -> None:
    write_index(single(tmp_path / "c"), dict.fromkeys(TENSORS, "model.safetensors"))
    assert_tensors(open_checkpoint(tmp_path / "c"))


@pytest.mark.parametrize("make", [single, sharded])
def test_download_cache_of_links(tmp_path: Path, make: Any) -> None:
    snapshot = hub_cache(tmp_path, make(tmp_path / "c"))
    checkpoint = open_checkpoint(snapshot)
    assert_tensors(checkpoint)
    assert all(shard.path.parent == snapshot for shard in checkpoint.shards)


def test_a_folder_elsewhere_with_links_into_a_cache_is_refused(tmp_path: Path) -> None:
    """huggingface_hub made such folders until 0.23; now they might be anyone's, with links to a private model."""
    snapshot = hub_cache(tmp_path, single(tmp_path / "c"))
    local = tmp_path / "local"
    local.mkdir()
    for path in snapshot.iterdir():
        (local / path.name).symlink_to(path.resolve())
    with pytest.raises(CheckpointError, match="found a link that leaves it"):
        open_checkpoint(local)


def test_named_chat_templates_are_side_files(tmp_path: Path) -> None:
    folder = single(tmp_path / "c")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("x")
    (folder / "additional_chat_templates" / "notes.txt").write_text("x")
    (folder / "chat_template.jinja").write_text("x")
    names = [path.relative_to(folder).as_posix() for path in open_checkpoint(folder).side_files]
    assert names == ["chat_template.jinja", "additional_chat_templates/rag.jinja"]
    (folder / "additional_chat_templates" / "away.jinja").symlink_to(tmp_path / "elsewhere.jinja")
    (tmp_path / "elsewhere.jinja").write_text("x")
    with pytest.raises(
        CheckpointError, match=r"additional_chat_templates/away.jinja: expected .* found a link that leaves"
    ):
        open_checkpoint(folder)


def test_link_to_the_folder_and_link_inside_it(tmp_path: Path) -> None:
    single(tmp_path / "c")
    (tmp_path / "c" / "model.safetensors").rename(tmp_path / "c" / "weights-v2")
    (tmp_path / "c" / "model.safetensors").symlink_to("weights-v2")
    (tmp_path / "link").symlink_to("c")
    assert_tensors(open_checkpoint(tmp_path / "link"))


def test_relative_path_survives_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    single(tmp_path / "c")
    monkeypatch.chdir(tmp_path)
    checkpoint = open_checkpoint(Path("c"))
    monkeypatch.chdir("/")
    assert_tensors(checkpoint)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "float16"}, DType.FLOAT16),
        ({"torch_dtype": "float32"}, DType.FLOAT32),
        ({"dtype": "torch.bfloat16", "torch_dtype": "float32"}, DType.BFLOAT16),
        ({"dtype": None, "torch_dtype": "float16"}, DType.FLOAT16),
        ({"dtype": "float64"}, DType.FLOAT64),
        ({"dtype": "auto"}, DType.BFLOAT16),
        ({}, DType.BFLOAT16),
    ],
)
def test_dtype(tmp_path: Path, config: dict[str, Any], dtype: DType) -> None:
    assert open_checkpoint(single(tmp_path / "c", **config)).dtype is dtype


def test_dtype_of_most_bytes_counts_bytes_of_weights(tmp_path: Path) -> None:
    tensors = {"a": np.ones(9, BF16), "b": np.ones(5, np.float32), "positions": np.arange(99)}
    assert open_checkpoint(single(tmp_path / "c", tensors)).dtype is DType.FLOAT32


@pytest.mark.parametrize("value", ["float8_e4m3fn", "int8", "half-ish", 16, ["float16"], {"": "float16"}])
def test_dtype_that_nothing_computes_in(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"config\.json: dtype: expected one of float32, float16, "):
        open_checkpoint(single(tmp_path / "c", dtype=value))


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        (2, None, (2,)),
        ([2, 7], None, (2, 7)),
        (2, {"eos_token_id": [5, 2, 5]}, (5, 2)),
        (2, {"eos_token_id": 0}, (0,)),
        (2, {"eos_token_id": None}, (2,)),
        (2, {}, (2,)),
        (None, None, ()),
        (None, {"eos_token_id": 9}, (9,)),
        ([], None, ()),
    ],
)
def test_eos_token_ids(tmp_path: Path, config: Any, generation: Any, ids: tuple[int, ...]) -> None:
    folder = single(tmp_path / "c", eos_token_id=config)
    if generation is not None:
        write_json(folder / "generation_config.json", generation)
    assert open_checkpoint(folder).eos_token_ids == ids


@pytest.mark.parametrize("value", ["2", [2, "x"], -1, True, 2.0, {}])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_bad_eos_token_ids(tmp_path: Path, file: str, value: Any) -> None:
    folder = single(tmp_path / "c")
    write_json(folder / file, {"model_type": "llama", "eos_token_id": value})
    with pytest.raises(CheckpointError, match=f"{file}: eos_token_id"):
        open_checkpoint(folder)


def test_side_files(tmp_path: Path) -> None:
    folder = single(tmp_path / "c")
    carried = {"tokenizer.json": "{}", "tokenizer_config.json": "{}", "chat_template.jinja": "{{x}}", "merges.txt": ""}
    for name, text in {
        **carried,
        "modeling_custom.py": "raise SystemExit",
        "README.md": "",
        "optimizer.pt": "",
    }.items():
        (folder / name).write_text(text)
    assert {path.name for path in open_checkpoint(folder).side_files} == set(carried)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["", '{"a": ', "\x00"])
def test_damaged_side_files_are_noticed(tmp_path: Path, name: str, text: str) -> None:
    folder = single(tmp_path / "c")
    (folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=f"{name}.*not valid JSON"):
        open_checkpoint(folder)


def test_remote_code_is_noted_and_never_loaded(tmp_path: Path) -> None:
    folder = single(tmp_path / "c", auto_map={"AutoModelForCausalLM": "modeling_custom.Model"})
    (folder / "modeling_custom.py").write_text("raise SystemExit")
    assert "modeling_custom.py" not in {path.name for path in open_checkpoint(folder).side_files}
    assert any("auto_map" in note for note in open_checkpoint(folder).notes)


def test_everything_is_closed_again(tmp_path: Path) -> None:
    """Opening must not hold files: an overwritten artifact would keep its bytes."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("this system does not list open files in /proc")
    folder = sharded(tmp_path / "c")
    open_checkpoint(folder)
    held = [d.resolve() for d in descriptors.iterdir() if d.is_symlink()]
    assert not [path for path in held if path.is_relative_to(folder)]


def test_errors_are_the_user_s(tmp_path: Path) -> None:
    with pytest.raises(HybridgeError) as caught:
        open_checkpoint(tmp_path / "none")
    assert caught.value.exit_code == 2
