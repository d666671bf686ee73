"""Whatever stands in a file of an artifact or an engine: it is read, or a typed error says what is wrong."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from hybridge.artifact.config import CONFIG_FILE, MTP_CONFIG_FILE, config_to_json, read_config
from hybridge.artifact.engine_record import ENGINE_FILE, read_engine_record
from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.manifest import FileRecord, Manifest, check_files, damaged_files, read_manifest
from hybridge.cli.inspection_tables import tables_of
from hybridge.inspection import EngineInspection
from hybridge.inspection.summaries import state_summaries
from hybridge.runtime.engines.tensorrt.dense_memory_plan import dense_memory_plan
from hybridge.runtime.engines.tensorrt.paged.memory_plan import memory_plan
from tests.artifact.samples import sample_config
from tests.artifact.test_engine_record import ADVANCE, RECORD
from tests.support.fuzzing import RandomInput, fuzzed

CONFIG = config_to_json(sample_config())
FILES = (FileRecord("model.onnx", 3, "0" * 64), FileRecord("weights/m.safetensors", 20, "1" * 64, "header"))
MANIFEST = json.loads(json.dumps(asdict(Manifest({"hybridge": "1"}, "tiny", {"dtype": None}, FILES, ("a note",)))))
ENGINE = {**asdict(RECORD), "advance": asdict(ADVANCE)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the sample manifest describes."""
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "weights").mkdir()
    (folder / "model.onnx").write_bytes(b"abc")
    (folder / "weights" / "m.safetensors").write_bytes(bytes(20))
    return folder


def test_the_samples_are_valid(folder: Path) -> None:
    for name in (CONFIG_FILE, MTP_CONFIG_FILE):
        (folder / name).write_bytes(json.dumps(CONFIG).encode())
        assert read_config(folder, name) == sample_config()
    (folder / "manifest.json").write_bytes(json.dumps(MANIFEST).encode())
    assert read_manifest(folder).files == FILES
    (folder / ENGINE_FILE).write_bytes(json.dumps(ENGINE).encode())
    assert read_engine_record(folder / ENGINE_FILE).advance == ADVANCE


@pytest.mark.parametrize("name", [CONFIG_FILE, MTP_CONFIG_FILE])
@fuzzed(1500)
def test_config(folder: Path, name: str, random: RandomInput) -> None:
    (folder / name).write_bytes(random.damaged_json(CONFIG))
    with contextlib.suppress(HybridgeError):
        config = read_config(folder, name)
        state_summaries(config.require_logits())


@fuzzed(1500)
def test_manifest(folder: Path, random: RandomInput) -> None:
    (folder / "manifest.json").write_bytes(random.damaged_json(MANIFEST))
    with contextlib.suppress(HybridgeError):
        manifest = read_manifest(folder)
        assert all(isinstance(sentence, str) for sentence in damaged_files(folder, manifest))
        check_files(folder, manifest)


@fuzzed(1500)
def test_engine_record(folder: Path, random: RandomInput) -> None:
    """Also the tables that hybridge inspect prints of some."""
    (folder / ENGINE_FILE).write_bytes(random.damaged_json(ENGINE))
    with contextlib.suppress(HybridgeError):
        record = read_engine_record(folder / ENGINE_FILE)
        assert (folder / record.engine).parent == folder
        if random.chance(0.9):
            return
        plan = memory_plan(record) if record.row_buckets else dense_memory_plan(record)
        console = Console(file=io.StringIO(), width=80)
        for table in tables_of(EngineInspection("engine", record, None, plan, None, "no GPU")):
            console.print(table)
