"""Whatever stands in a file of an artifact or an engine: it is read, or a typed error says what is wrong."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from hybridge.artifact.config import CONFIG_FILE, MTP_CONFIG_FILE, config_to_json, read_config
from hybridge.artifact.engine_record import ENGINE_FILE, EngineRecord, ProfileRecord, read_engine_record
from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.manifest import FileRecord, Manifest, check_files, damaged_files, read_manifest
from hybridge.cli.inspection_tables import tables_of
from hybridge.inspection import EngineInspection
from hybridge.inspection.summaries import state_summaries
from hybridge.runtime.engines.tensorrt.dense_memory_plan import DenseMemoryPlan, dense_memory_plan
from hybridge.runtime.engines.tensorrt.paged.memory_plan import MemoryPlan, memory_plan
from tests.artifact.samples import sample_config
from tests.artifact.test_engine_record import ADVANCE, RECORD
from tests.support.fuzzing import RandomInput, fuzzed

CONFIG = config_to_json(sample_config())
FILES = (FileRecord("model.onnx", 3, "0" * 64), FileRecord("weights/m.safetensors", 20, "1" * 64, "header"))
MANIFEST = json.loads(json.dumps(asdict(Manifest({"hybridge": "1"}, "tiny", {"dtype": None}, FILES, ("a note",)))))


def _binding(name: str, mode: str, dtype: str, *shape: int | str, **names: str) -> dict[str, object]:
    return {"name": name, "mode": mode, "dtype": dtype, "shape": list(shape), **names}


DENSE = replace(
    RECORD,
    bindings=[
        _binding("input_ids", "input", "int64", "batch", "seq"),
        _binding("context_lengths", "input", "int32", "batch"),
        _binding("past_lengths", "input", "int32", "batch"),
        _binding("state", "input", "float16", "batch", 2, 65, 8, replaced_by="present_state"),
        _binding("logits", "output", "float32", "batch", 97),
        _binding("present_state", "output", "float16", "batch", 2, 65, 8, aliases="state"),
    ],
    profiles=[
        ProfileRecord(name, {"input_ids": [[1, 1], [1, most], [3, most]]})
        for name, most in (("prefill", 16), ("decode", 1))
    ],
    row_buckets=[],
)
_PAGED_SHAPES = {
    "input_ids": [[1], [16], [16]],
    "block_table": [[1, 1], [1, 2], [3, 5]],
    "logits_indices": [[1], [1], [3]],
    "kv_pool": [[2, 1, 16, 2, 8], [2, 4, 16, 2, 8], [2, 9, 16, 2, 8]],
    "state": [[1, 7], [3, 7], [6, 7]],
}
PAGED = replace(
    DENSE,
    bindings=[
        _binding("input_ids", "input", "int64", "tokens"),
        _binding("block_table", "input", "int32", "rows", "max_blocks"),
        _binding("logits_indices", "input", "int32", "num_logits"),
        _binding("kv_pool", "input", "float16", 2, "num_blocks", 16, 2, 8, replaced_by="present_kv_pool"),
        _binding("state", "input", "float32", "num_slots", 7, replaced_by="present_state"),
        _binding("logits", "output", "float32", "num_logits", 97),
        _binding("present_kv_pool", "output", "float16", 2, "num_blocks", 16, 2, 8, aliases="kv_pool"),
        _binding("present_state", "output", "float32", "num_slots", 7),
    ],
    profiles=[ProfileRecord(name, _PAGED_SHAPES) for name in ("prefill", "decode")],
    row_buckets=[1, 2, 3],
    advance=ADVANCE,
)
ENGINES = {"dense": DENSE, "paged": PAGED}


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
    for record in ENGINES.values():
        (folder / ENGINE_FILE).write_bytes(json.dumps(asdict(record)).encode())
        assert read_engine_record(folder / ENGINE_FILE) == record
        assert _memory(record).fixed > 0


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


def _memory(record: EngineRecord) -> MemoryPlan | DenseMemoryPlan:
    return memory_plan(record) if record.row_buckets else dense_memory_plan(record)


@pytest.mark.parametrize("layout", ENGINES)
@fuzzed(500)
def test_engine_record(folder: Path, layout: str, random: RandomInput) -> None:
    """Also the memory that is planned, and the tables that hybridge inspect prints of some."""
    (folder / ENGINE_FILE).write_bytes(random.damaged_json(asdict(ENGINES[layout])))
    with contextlib.suppress(HybridgeError):
        record = read_engine_record(folder / ENGINE_FILE)
        assert (folder / record.engine).parent == folder
        plan = _memory(record)
        if random.chance(0.9):
            return
        console = Console(file=io.StringIO(), width=80)
        for table in tables_of(EngineInspection("engine", record, None, plan, None, "no GPU")):
            console.print(table)
