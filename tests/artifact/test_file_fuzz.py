"""Whatever stands in a file of an artifact or an engine: it is read, or a typed error says what is wrong."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from rich.console import Console

from hybridge.artifact.config import CONFIG_FILE, MTP_CONFIG_FILE, config_to_json, read_config
from hybridge.artifact.engine_record import ENGINE_FILE, read_engine_record
from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.manifest import FileRecord, Manifest, check_files, damaged_files, read_manifest
from hybridge.cli.inspection_tables import tables_of
from hybridge.inspection import EngineInspection
from hybridge.inspection.summaries import state_summaries
from tests.artifact.samples import sample_config
from tests.artifact.test_engine_record import ADVANCE, RECORD
from tests.support.effort import examples
from tests.support.mutations import CHANGES, SPLICES, changed_json, spliced

Changes = list[tuple[list[int], str, Any]]
Splices = list[tuple[int, int, bytes]]
CONFIG = config_to_json(sample_config())
FILES = (FileRecord("model.onnx", 3, "0" * 64), FileRecord("weights/m.safetensors", 20, "1" * 64, "header"))
MANIFEST = json.loads(json.dumps(asdict(Manifest({"hybridge": "1"}, "tiny", {"dtype": None}, FILES, ("a note",)))))
ENGINE = {**asdict(RECORD), "advance": asdict(ADVANCE)}
fuzzed = settings(max_examples=examples(200), deadline=None)


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
        (folder / name).write_bytes(changed_json(CONFIG, []))
        assert read_config(folder, name) == sample_config()
    (folder / "manifest.json").write_bytes(changed_json(MANIFEST, []))
    assert read_manifest(folder).files == FILES
    (folder / ENGINE_FILE).write_bytes(changed_json(ENGINE, []))
    assert read_engine_record(folder / ENGINE_FILE).advance == ADVANCE


@pytest.mark.fuzz
@pytest.mark.parametrize("name", [CONFIG_FILE, MTP_CONFIG_FILE])
@fuzzed
@given(changes=CHANGES, splices=SPLICES)
def test_config(folder: Path, name: str, changes: Changes, splices: Splices) -> None:
    (folder / name).write_bytes(spliced(changed_json(CONFIG, changes), splices))
    with contextlib.suppress(HybridgeError):
        config = read_config(folder, name)
        state_summaries(config.require_logits())


@pytest.mark.fuzz
@fuzzed
@given(changes=CHANGES, splices=SPLICES)
def test_manifest(folder: Path, changes: Changes, splices: Splices) -> None:
    (folder / "manifest.json").write_bytes(spliced(changed_json(MANIFEST, changes), splices))
    with contextlib.suppress(HybridgeError):
        manifest = read_manifest(folder)
        assert all(isinstance(sentence, str) for sentence in damaged_files(folder, manifest))
        check_files(folder, manifest)


@pytest.mark.fuzz
@fuzzed
@given(changes=CHANGES, splices=SPLICES)
def test_engine_record(folder: Path, changes: Changes, splices: Splices) -> None:
    """Also the tables that hybridge inspect prints of one."""
    (folder / ENGINE_FILE).write_bytes(spliced(changed_json(ENGINE, changes), splices))
    with contextlib.suppress(HybridgeError):
        record = read_engine_record(folder / ENGINE_FILE)
        assert (folder / record.engine).parent == folder
        console = Console(file=io.StringIO(), width=80)
        for table in tables_of(EngineInspection("engine", record, None, None, "no GPU")):
            console.print(table)
