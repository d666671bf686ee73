"""Checkpoints that are missing, damaged, incomplete, unsafe or of another kind: one sentence each, nothing read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.exporter.checkpoint import open_checkpoint
from tests.artifact.samples import save_raw
from tests.exporter.checkpoint.folders import (
    LFS_POINTER,
    TENSORS,
    hub_cache,
    read_index,
    sharded,
    single,
    write_index,
    write_json,
)

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def refused(folder: Path, words: str, error: type[Exception] = CheckpointError) -> None:
    with pytest.raises(error, match=words) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_missing_folder(tmp_path: Path) -> None:
    refused(tmp_path / "none", "expected a checkpoint folder, found nothing")


def test_file_instead_of_folder(tmp_path: Path) -> None:
    refused(single(tmp_path / "c") / "model.safetensors", "found a file")


def test_empty_folder(tmp_path: Path) -> None:
    refused(tmp_path, r"expected config\.json, found none")


def test_an_adapter_beside_the_weights(tmp_path: Path) -> None:
    write_json(single(tmp_path / "c") / "adapter_config.json", {"peft_type": "LORA"})
    refused(tmp_path / "c", r"adapter_config\.json: expected no adapter, found one: merge it", UnsupportedError)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3"])
def test_bad_config(tmp_path: Path, text: str) -> None:
    (single(tmp_path / "c") / "config.json").write_text(text)
    refused(tmp_path / "c", r"config\.json")


def without_weights(folder: Path) -> Path:
    (single(folder) / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize(
    ("present", "words"),
    [
        (None, "found neither"),
        ("pytorch_model.bin", r"found pytorch_model\.bin: convert it"),
        ("pytorch_model-00001-of-00002.bin", r"found pytorch_model-00001-of-00002\.bin: convert it"),
        ("model-q4.gguf", r"found model-q4\.gguf"),
        (FIRST, f"found only {FIRST}"),
        ("consolidated.safetensors", r"found only consolidated\.safetensors"),
    ],
)
def test_no_safetensors(tmp_path: Path, present: str | None, words: str) -> None:
    folder = without_weights(tmp_path / "c")
    if present:
        (folder / present).write_bytes(b"x")
    refused(folder, words)


def test_truncated_weights(tmp_path: Path) -> None:
    path = single(tmp_path / "c") / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    refused(tmp_path / "c", r"model\.safetensors: .* fetch it again")


def test_checkpoint_without_tensors(tmp_path: Path) -> None:
    refused(single(tmp_path / "c", {}), "no tensors")


def test_missing_shard(tmp_path: Path) -> None:
    (sharded(tmp_path / "c") / SECOND).unlink()
    refused(tmp_path / "c", f"the shard {SECOND} is missing")


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/secret.safetensors", "sub/x.safetensors", "..\\x.safetensors", "x\0.safetensors",
     "", ".", "..", "x.bin", "./model.safetensors"],
)  # fmt: skip
def test_index_that_names_a_path(tmp_path: Path, name: str) -> None:
    folder = sharded(tmp_path / "c")
    save_file(TENSORS, tmp_path / "secret.safetensors")
    (folder / "sub").mkdir()
    save_file(TENSORS, folder / "sub" / "x.safetensors")
    write_index(folder, {**read_index(folder), "embedding": name})
    refused(folder, "own folder, found .*: refused")


@pytest.mark.parametrize("places", [None, [], {}, {"embedding": None}, {"embedding": ["x"]}, "x", 3])
def test_malformed_index(tmp_path: Path, places: object) -> None:
    write_index(sharded(tmp_path / "c"), places)
    refused(tmp_path / "c", r"index\.json: weight_map")


def test_index_that_is_not_json(tmp_path: Path) -> None:
    (sharded(tmp_path / "c") / "model.safetensors.index.json").write_text("{")
    refused(tmp_path / "c", r"index\.json: is not valid JSON")


def test_tensor_that_no_shard_holds(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "c")
    write_index(folder, {**read_index(folder), "ghost": FIRST})
    refused(folder, f"expected tensor ghost in {FIRST}, but no shard holds it")


def test_tensor_in_another_shard_than_indexed(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "c")
    write_index(folder, {**read_index(folder), "layers.0.weight": FIRST})
    refused(folder, f"expected tensor layers.0.weight in {FIRST}, but it is in {SECOND}")


def test_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "c")
    write_index(folder, {k: v for k, v in read_index(folder).items() if k != "layers.0.weight"})
    refused(folder, "layers.0.weight, which .* does not list")


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "c")
    save_file({n: TENSORS[n] for n in ("embedding", "layers.0.weight")}, folder / FIRST)
    refused(folder, f"layers.0.weight is in both {FIRST} and {SECOND}")


def test_a_single_file_next_to_an_index_of_other_files(tmp_path: Path) -> None:
    single_file = single(tmp_path / "other") / "model.safetensors"
    shutil.copy(single_file, sharded(tmp_path / "c"))
    refused(tmp_path / "c", "found both")


POINTERS = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer.model", "generation_config.json"]


@pytest.mark.parametrize("name", POINTERS)
def test_git_lfs_pointer(tmp_path: Path, name: str) -> None:
    (single(tmp_path / "c") / name).write_text(LFS_POINTER)
    refused(tmp_path / "c", f"{name}: is a Git LFS pointer.*git lfs pull")


def test_git_lfs_pointer_of_a_shard(tmp_path: Path) -> None:
    (sharded(tmp_path / "c") / SECOND).write_text(LFS_POINTER)
    refused(tmp_path / "c", f"{SECOND}: is a Git LFS pointer")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"])
@pytest.mark.parametrize("absolute", [False, True])
def test_link_that_leaves_the_folder(tmp_path: Path, name: str, absolute: bool) -> None:
    path = single(tmp_path / "c") / name
    outside = tmp_path / "outside"
    outside.write_bytes(path.read_bytes() if path.exists() else b"{}")
    path.unlink(missing_ok=True)
    path.symlink_to(outside if absolute else Path("..", "outside"))
    refused(tmp_path / "c", f"{name}: expected a file inside .*, found a link that leaves it")


def test_link_through_a_link_that_leaves_the_folder(tmp_path: Path) -> None:
    folder = single(tmp_path / "c")
    (tmp_path / "outside").write_text("{}")
    (folder / "inside").symlink_to(tmp_path / "outside")
    (folder / "tokenizer.json").symlink_to("inside")
    refused(folder, r"tokenizer\.json: expected a file inside .*, found a link that leaves it")


def test_incomplete_download_cache(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path, single(tmp_path / "c"))
    (snapshot / "model.safetensors").resolve().unlink()
    refused(snapshot, r"expected the file .*model\.safetensors, found none")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, loop])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_something_else_than_a_file(tmp_path: Path, name: str, make: Callable[[Path], Any]) -> None:
    path = single(tmp_path / "c") / name
    path.unlink(missing_ok=True)
    make(path)
    refused(tmp_path / "c", name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_file_without_permission(tmp_path: Path) -> None:
    (single(tmp_path / "c") / "model.safetensors").chmod(0)
    refused(tmp_path / "c", "Permission denied")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quantization_config": {"quant_method": "hqq"}}, r"quantization_config \(hqq\)"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"quantization_config": "awq"}, "awq"),
        ({"compression_config": {"quant_method": "sparseml"}}, "sparseml"),
        ({"text_config": {"quantization_config": {"quant_method": "eetq"}}}, "eetq"),
    ],
)
def test_quantised_by_config(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    refused(single(tmp_path / "c", **config), words, UnsupportedError)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantised_by_tensors(tmp_path: Path, dtype: type) -> None:
    folder = single(tmp_path / "c", {**TENSORS, "layers.0.packed": np.ones(3, dtype)})
    refused(folder, r"layers\.0\.packed is u?int8, quantised", UnsupportedError)


@pytest.mark.parametrize("dtype", ["F8_E5M2", "U32"])
def test_quantised_by_element_type(tmp_path: Path, dtype: str) -> None:
    size = 4 if dtype == "U32" else 1
    header = {"w": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]}}
    save_raw(single(tmp_path / "c") / "model.safetensors", header, bytes(size))
    refused(tmp_path / "c", f"tensor w.*{dtype}.*quantised", UnsupportedError)


@pytest.mark.parametrize("framework", ["mlx", "tf", "flax"])
def test_layout_of_another_framework(tmp_path: Path, framework: str) -> None:
    save_file(TENSORS, single(tmp_path / "c") / "model.safetensors", metadata={"format": framework})
    refused(tmp_path / "c", f"found the format '{framework}'", UnsupportedError)


def test_bad_generation_config(tmp_path: Path) -> None:
    write_json(single(tmp_path / "c") / "generation_config.json", [])
    refused(tmp_path / "c", r"generation_config\.json: expected a JSON object")
