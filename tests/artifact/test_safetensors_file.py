"""Reading headers: what the safetensors package writes, and every way in which a file can be wrong."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

from hybridge.artifact.errors import CheckpointError, HybridgeError, UnsupportedError
from hybridge.artifact.limits import SAFETENSORS_HEADER_BYTES
from hybridge.artifact.safetensors_file import read_safetensors
from tests.artifact.samples import save_raw, save_sample
from tests.support.fuzzing import RandomInput, fuzzed


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_reads_what_the_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    tensors = save_sample(path)
    file = read_safetensors(path)
    assert set(file.tensors) == set(tensors)
    assert file.metadata == {"format": "pt"}
    assert file.nbytes == path.stat().st_size
    content = path.read_bytes()
    for name, expected in tensors.items():
        slot = file.tensors[name]
        assert slot.map().dtype == expected.dtype and slot.map().shape == expected.shape
        np.testing.assert_array_equal(slot.map(), expected)
        assert content[slot.offset : slot.offset + slot.nbytes] == expected.tobytes()


def test_map_is_read_only(tmp_path: Path) -> None:
    save_sample(tmp_path / "t.safetensors")
    with pytest.raises(ValueError, match="read-only"):
        read_safetensors(tmp_path / "t.safetensors").tensors["f"].map()[0] = 1


def test_file_without_tensors(tmp_path: Path) -> None:
    assert not read_safetensors(save_raw(tmp_path / "t", {})).tensors


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    save_sample(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    path = tmp_path / "t.safetensors"
    for size in {0, 1, 7, 8, 9, 40, len(content) // 2, len(content) - 1}:
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"t\.safetensors"):
            read_safetensors(path)
    path.write_bytes(content + b"x")
    with pytest.raises(CheckpointError, match="according to its header, found"):
        read_safetensors(path)


@pytest.mark.parametrize("length", [0, 2**63, 2**64 - 1, SAFETENSORS_HEADER_BYTES + 1])
def test_header_length_is_not_believed(tmp_path: Path, length: int) -> None:
    path = tmp_path / "t"
    path.write_bytes(struct.pack("<Q", length) + b"{}" + bytes(64))
    with pytest.raises(CheckpointError, match="t: "):
        read_safetensors(path)


def test_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(struct.pack("<Q", SAFETENSORS_HEADER_BYTES + 1))
    os.truncate(path, 2 * SAFETENSORS_HEADER_BYTES)  # sparse: takes no room
    with pytest.raises(CheckpointError, match="claims"):
        read_safetensors(path)


BAD_HEADERS: dict[str, tuple[object, str]] = {
    "not json": ("{", "not valid JSON"),
    "not utf-8": ("\udcff", "not valid JSON"),
    "deep": ("[" * 100_000, "not valid JSON"),
    "a list": ([], "found list"),
    "a number": (1, "found int"),
    "entry is a list": ({"x": [1]}, "malformed"),
    "entry is null": ({"x": None}, "malformed"),
    "no dtype": ({"x": {"shape": [2], "data_offsets": [0, 8]}}, "malformed"),
    "shape is text": ({"x": entry(shape="22")}, "malformed"),
    "shape of floats": ({"x": entry(shape=[2.0])}, "malformed"),
    "shape of booleans": ({"x": entry(shape=[True, 2])}, "malformed"),
    "infinite shape": ('{"x":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,8]}}', "malformed"),
    "negative shape": ({"x": entry(shape=[-1, -2])}, "malformed"),
    "endless shape": ({"x": entry(shape=[10**4000] * 3)}, "malformed"),
    "huge shape": ({"x": entry(shape=[2**62, 2**62])}, "needs"),
    "one offset": ({"x": entry(offsets=[0])}, "malformed"),
    "three offsets": ({"x": entry(offsets=[0, 8, 16])}, "malformed"),
    "negative offset": ({"x": entry(offsets=[-8, 0])}, "malformed"),
    "too many axes": ({"x": entry(shape=[2**62] * 300)}, "expected at most 8 axes, found 300"),
    "offsets of another size": ({"x": entry(offsets=[0, 4])}, "needs 8 bytes"),
    "offsets reversed": ({"x": entry(offsets=[8, 0])}, "needs 8 bytes"),
    "beyond the file": ({"x": entry(offsets=[8, 16])}, "ends at byte"),
    "overlap": ({"x": entry(), "y": entry(shape=[1], offsets=[4, 8])}, "does not start"),
    "same place twice": ({"x": entry(), "y": entry()}, "does not start"),
    "gap": ({"x": entry(shape=[1], offsets=[4, 8])}, "does not start"),
    "tail": ({"x": entry(shape=[1], offsets=[0, 4])}, "according to its header, found"),
    "given twice": ('{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{}}', "given twice"),
    "metadata is a list": ({"__metadata__": [1], "x": entry()}, "__metadata__"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, "x": entry()}, "__metadata__"),
    "metadata is null": ({"__metadata__": None, "x": entry()}, "__metadata__"),
}


@pytest.mark.parametrize(("header", "words"), BAD_HEADERS.values(), ids=list(BAD_HEADERS))
def test_bad_headers(tmp_path: Path, header: object, words: str) -> None:
    path = tmp_path / "t.safetensors"
    if isinstance(header, str):
        raw = header.encode("utf-8", "surrogateescape")
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(8))
    else:
        save_raw(path, header, bytes(8))
    with pytest.raises(CheckpointError, match=words) as caught:
        read_safetensors(path)
    assert "t.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["F8_E5M2", "F8_E5M2", "U32", "F4", "bf16", "", 3])
def test_unsupported_types_name_the_tensor(tmp_path: Path, dtype: Any) -> None:
    path = save_raw(tmp_path / "t", {"x": entry(dtype=dtype)}, bytes(8))
    with pytest.raises(UnsupportedError, match="tensor x"):
        read_safetensors(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found none"):
        read_safetensors(tmp_path / "none")
    with pytest.raises(CheckpointError, match="found a folder"):
        read_safetensors(tmp_path)


@fuzzed(1500)
def test_damaged_files_never_crash(tmp_path: Path, random: RandomInput) -> None:
    """Whatever a few bytes become: a typed error, or what the safetensors package reads too."""
    whole = tmp_path / "whole"
    if not whole.exists():
        save_sample(whole)
    content = bytearray(whole.read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(random.randint(1, 4)):
        content[random.randrange(header)] = random.randrange(256)
    path = tmp_path / "t.safetensors"
    path.write_bytes(content)
    try:
        file = read_safetensors(path)
    except HybridgeError:
        return
    try:
        expected = load_file(path)
    except (SafetensorError, KeyError) as error:
        pytest.fail(f"accepted what the safetensors package refuses: {error}")
    assert {name: slot.map().tobytes() for name, slot in file.tensors.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }


def random_entry(random: RandomInput) -> dict[str, Any]:
    """A tensor's entry of a header, often nearly right."""
    return {
        "dtype": random.choice(["F32", "F32", "I8", "X", random.json_value()]),
        "shape": random.choice([[], [1], [3], [2, 1], [0], [-1], random.json_value()]),
        "data_offsets": random.choice([[0, 4], [4, 8], [0, 12], [8, 12], [3, 2], random.json_value()]),
    }


@fuzzed(1500)
def test_any_header_is_read_or_refused(tmp_path: Path, random: RandomInput) -> None:
    header: Any = {
        random.choice(["a", "b", "", "__metadata__", "\ud800"]): random_entry(random)
        if random.chance(0.8)
        else random.json_value()
        for _ in range(random.randrange(4))
    }
    path = save_raw(tmp_path / "t", header if random.chance(0.9) else json.dumps(random.json_value()), bytes(12))
    try:
        file = read_safetensors(path)
    except HybridgeError:
        return
    assert sum(slot.nbytes for slot in file.tensors.values()) == 12
