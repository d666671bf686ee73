"""engine.json: round trip and refusal of what does not fit."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.engine_record import (
    AdvanceRecord,
    EngineRecord,
    PluginsRecord,
    ProfileRecord,
    read_engine_record,
    write_engine_record,
)
from hybridge.artifact.errors import ArtifactError

RECORD = EngineRecord(
    engine="model.engine",
    nbytes=12,
    sha256="0" * 64,
    library="tensorrt_rtx",
    library_version="1.7.1.116",
    preset="jetson-orin",
    compute_capabilities=["8.7"],
    plugins=PluginsRecord("trt_edgellm", "1", {"causal_conv1d": 2}, True, ""),
    max_batch_size=3,
    max_seq_len=65,
    profiles=[ProfileRecord("decode", {"input_ids": [[1, 1], [2, 1], [3, 1]]})],
    bindings=[{"name": "logits", "mode": "output", "dtype": "float32", "shape": ["batch", 97]}],
    layers={"MatMul": 3},
    model_sha256="1" * 64,
    build_seconds=1.5,
    scratch_bytes=9,
    row_buckets=[1, 2, 3],
)


def test_round_trip(tmp_path: Path) -> None:
    write_engine_record(tmp_path / "engine.json", RECORD)
    assert read_engine_record(tmp_path / "engine.json") == RECORD


ADVANCE = AdvanceRecord("advance.engine", 7, "2" * 64, RECORD.profiles, RECORD.bindings, {"PLUGIN_V3": 2})


def test_an_engine_may_have_a_second_file(tmp_path: Path) -> None:
    path, record = tmp_path / "engine.json", replace(RECORD, advance=ADVANCE)
    write_engine_record(path, record)
    assert read_engine_record(path) == record
    without = {name: value for name, value in asdict(RECORD).items() if name != "advance"}
    path.write_text(json.dumps(without))
    assert read_engine_record(path) == RECORD


@pytest.mark.parametrize("name", [f.name for f in fields(EngineRecord) if f.name != "advance"])
def test_every_field_is_needed_and_typed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "engine.json"
    data = asdict(RECORD)
    for change in ({k: v for k, v in data.items() if k != name}, {**data, name: None}):
        path.write_text(json.dumps(change))
        with pytest.raises(ArtifactError, match=rf"engine\.json.*{name}"):
            read_engine_record(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine_version": 2}, "engine_version 3, found 2: build it again"),
        ({"nbytes": -1}, "nbytes"),
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"profiles": [{"name": "decode"}]}, "shapes"),
        ({"row_buckets": [2, 1]}, "row_buckets: expected ascending numbers of rows"),
        ({"build_seconds": "long"}, "build_seconds"),
        ({"extra": 1}, "unknown field.*extra"),
        ({"plugins": {**asdict(RECORD.plugins), "aliased": 1}}, "plugins.*aliased"),
        ({"plugins": {**asdict(RECORD.plugins), "extra": 1}}, "unknown field.*extra"),
        ({"advance": {"engine": "advance.engine"}}, "advance: nbytes"),
        ({"library": "os"}, "library: expected one of 'tensorrt', 'tensorrt_rtx', found 'os'"),
        ({"engine": "../model.engine"}, "engine: expected the name of a file beside it"),
        ({"engine": ""}, "engine: expected the name of a file beside it"),
        ({"engine": ".."}, "engine: expected the name of a file beside it"),
        ({"engine": "a\0b"}, "engine: expected the name of a file beside it"),
        ({"compute_capabilities": [8.7]}, "compute_capabilities: expected a list of strings"),
        ({"layers": {"MatMul": "many"}}, "layers: expected an object of counts"),
        ({"bindings": ["logits"]}, "bindings: expected a list of objects"),
        ({"bindings": [{**RECORD.bindings[0], "shape": 3}]}, r"bindings\[0\]: shape"),
        ({"bindings": [{**RECORD.bindings[0], "shape": [None]}]}, r"bindings\[0\]: shape"),
        ({"bindings": [{**RECORD.bindings[0], "shape": [-1]}]}, r"bindings\[0\]: shape"),
        ({"bindings": [{**RECORD.bindings[0], "shape": [1 << 63]}]}, r"bindings\[0\]: shape"),
        ({"bindings": [{**RECORD.bindings[0], "shape": [1] * 9}]}, r"bindings\[0\]: shape: expected at most 8 sizes"),
        ({"bindings": [{**RECORD.bindings[0], "aliases": 1}]}, r"bindings\[0\]: aliases"),
        ({"profiles": [{"name": "decode", "shapes": {"input_ids": [1]}}]}, "shapes: expected a minimum"),
        ({"profiles": [{"name": "decode", "shapes": {"input_ids": [[1], [2], ["x"]]}}]}, "shapes: expected a minimum"),
        ({"advance": {**asdict(ADVANCE), "extra": 1}}, "unknown field.*extra"),
    ],
)
def test_malformed_records(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps({**asdict(RECORD), **change}))
    with pytest.raises(ArtifactError, match=words):
        read_engine_record(path)


def test_an_engine_without_plugin_layers_has_none() -> None:
    assert RECORD.plugins
    assert not replace(RECORD.plugins, ops={}, reason="--plugins off")


def test_missing_record(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="found none"):
        read_engine_record(tmp_path / "engine.json")
