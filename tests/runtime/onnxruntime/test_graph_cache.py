"""Rewritten graphs on disk: used where they are whole and of the same artifact and code, made again elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.onnxruntime import OnnxRuntimeEngine, graph_cache
from hybridge.runtime.engines.onnxruntime.graph_cache import GraphCache
from hybridge.runtime.engines.onnxruntime.graph_form import GraphForm, StateLayout
from hybridge.runtime.engines.onnxruntime.session_graph import GraphWeight, SessionGraph, StoredTensor
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.runtime.onnxruntime.steps import TOLERANCE, relative_error, step_inputs
from tests.support.fuzzing import RandomInput, fuzzed

ROOT = Path(__file__).resolve().parents[3]
PART = StoredTensor("weights/model.safetensors", 64, DType.BFLOAT16, (4, 8))
GRAPH = SessionGraph(
    b"serialised\nmodel",
    (
        GraphWeight("embedding", (PART,), None, False, True),
        GraphWeight("experts", (PART, PART), (2, 4, 8), True, False),
    ),
    frozenset({"input_ids"}),
    frozenset({"conv_state_0"}),
    {"conv_state_0": StateLayout(True, 4)},
)


class Rewrites:
    """Gives ``GRAPH`` and counts how often it was asked to."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> SessionGraph:
        self.count += 1
        return GRAPH


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A folder with the two files that are hashed."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"model")
    (folder / "config.json").write_bytes(b"{}")
    return folder


def test_a_second_start_needs_no_onnx_ir_and_computes_the_same(tmp_path: Path) -> None:
    made = HandMade(Plan(dtype=DType.BFLOAT16))
    folder, cache = made.write(tmp_path / "artifact"), GraphCache(tmp_path / "cache")
    OnnxRuntimeEngine(folder, graphs=cache)
    engine = OnnxRuntimeEngine(folder, graphs=cache)
    tokens = np.arange(9)
    logits = engine.step(step_inputs([tokens], [0]), engine.allocate_states(1, 32))
    assert relative_error(logits[0], made.logits(tokens)[-1]) < TOLERANCE
    code = (
        "import sys; from pathlib import Path; from hybridge.runtime.engines.onnxruntime import OnnxRuntimeEngine\n"
        "from hybridge.runtime.engines.onnxruntime.graph_cache import GraphCache\n"
        "OnnxRuntimeEngine(sys.argv[1], graphs=GraphCache(Path(sys.argv[2])))\n"
        "print({'onnx', 'onnx_ir', 'sympy'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(folder), str(cache.folder)]
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home)}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    started = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert started.stdout.strip() == "set()" and not started.stderr, started.stderr
    # ONNX Runtime's telemetry would begin with a device id.
    assert list(home.iterdir()) == []


def test_an_entry_is_read_as_it_was_written(artifact: Path, tmp_path: Path) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache"), Rewrites()
    assert [cache.get(artifact, GraphForm.GENERAL, rewrites) for _ in range(3)] == [GRAPH] * 3
    assert rewrites.count == 1
    assert (cache.folder.stat().st_mode & 0o777) == 0o700


@pytest.mark.parametrize("changed", ["model.onnx", "config.json", "form", "onnxruntime", "build"])
def test_another_artifact_form_or_onnxruntime_has_another_entry(
    artifact: Path, tmp_path: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache"), Rewrites()
    cache.get(artifact, GraphForm.GENERAL, rewrites)
    if changed == "onnxruntime":
        monkeypatch.setattr(graph_cache.ort, "__version__", "0.0")
    elif changed == "build":
        monkeypatch.setattr(graph_cache.ort, "get_build_info", lambda: "another")
    elif changed != "form":
        (artifact / changed).write_bytes(b"other")
    cache.get(artifact, GraphForm.PADDED if changed == "form" else GraphForm.GENERAL, rewrites)
    assert rewrites.count == 2


@fuzzed(200)
def test_a_damaged_entry_is_made_again(artifact: Path, random: RandomInput) -> None:
    cache, rewrites = GraphCache(artifact / "cache"), Rewrites()
    cache.get(artifact, GraphForm.GENERAL, rewrites)
    (entry,) = cache.folder.iterdir()
    whole, before = entry.read_bytes(), rewrites.count
    start = random.randrange(len(whole))
    stop = random.randint(start, len(whole))
    damaged = whole[:start] + random.randbytes(random.randrange(41)) + whole[stop:]
    if damaged == whole:
        return
    entry.write_bytes(damaged)
    assert cache.get(artifact, GraphForm.GENERAL, rewrites) == GRAPH and rewrites.count == before + 1
    assert entry.read_bytes() == whole


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_not_used(artifact: Path, tmp_path: Path, mode: int) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache"), Rewrites()
    cache.get(artifact, GraphForm.GENERAL, rewrites)
    cache.folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=rf"only you may write to, found mode {mode:04o}: .*set XDG_CACHE_HOME"):
        assert cache.get(artifact, GraphForm.GENERAL, rewrites) == GRAPH
    assert rewrites.count == 2


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "another artifact's"])
def test_what_is_no_entry_of_this_key_is_not_read(artifact: Path, tmp_path: Path, kind: str) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache"), Rewrites()
    cache.get(artifact, GraphForm.GENERAL, rewrites)
    (entry,) = cache.folder.iterdir()
    moved = entry.rename(tmp_path / "moved")
    if kind == "folder":
        entry.mkdir()
    elif kind == "fifo":
        os.mkfifo(entry)
    elif kind == "link":
        entry.symlink_to(moved)
    else:
        (artifact / "config.json").write_bytes(b"other")
        cache.get(artifact, GraphForm.GENERAL, rewrites)
        (other,) = cache.folder.iterdir()
        moved.replace(other)
    assert cache.get(artifact, GraphForm.GENERAL, rewrites) == GRAPH
    assert rewrites.count == (3 if kind == "another artifact's" else 2)


def test_a_cache_that_cannot_be_written_is_no_error(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    rewrites = Rewrites()
    assert GraphCache(tmp_path / "file").get(artifact, GraphForm.GENERAL, rewrites) == GRAPH
    assert GraphCache(tmp_path / "cache").get(tmp_path / "nothing", GraphForm.GENERAL, rewrites) == GRAPH
    assert rewrites.count == 2 and not (tmp_path / "cache").exists()


def test_the_least_recently_used_entries_are_removed(artifact: Path, tmp_path: Path) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache", max_entries=2), Rewrites()
    for age, form in ((30, GraphForm.GENERAL), (20, GraphForm.PADDED)):
        cache.get(artifact, form, rewrites)
        for entry in cache.folder.iterdir():
            os.utime(entry, (entry.stat().st_atime, entry.stat().st_mtime - age))
    cache.get(artifact, GraphForm.GENERAL, rewrites)
    cache.get(artifact, GraphForm.ONE_TOKEN, rewrites)
    assert rewrites.count == 3 and len(list(cache.folder.iterdir())) == 2
    cache.get(artifact, GraphForm.GENERAL, rewrites)
    assert rewrites.count == 3


def test_a_graph_is_not_stored_where_its_artifact_was_replaced_meanwhile(artifact: Path, tmp_path: Path) -> None:
    def replaced() -> SessionGraph:
        (artifact / "model.onnx").write_bytes(b"another model")
        return GRAPH

    cache, original = GraphCache(tmp_path / "cache"), (artifact / "model.onnx").read_bytes()
    cache.get(artifact, GraphForm.GENERAL, replaced)
    (artifact / "model.onnx").write_bytes(original)
    rewrites = Rewrites()
    cache.get(artifact, GraphForm.GENERAL, rewrites)
    assert rewrites.count == 1


def test_an_engine_whose_artifact_was_replaced_opens_no_further_session(tmp_path: Path) -> None:
    """It would mix the graph of one export with the weights of another."""
    folder, rows = HandMade(Plan()).write(tmp_path / "artifact"), [np.array([1]), np.array([2])]
    for graphs in (None, GraphCache(tmp_path / "cache")):
        engine = OnnxRuntimeEngine(folder, graphs=graphs)
        states = engine.allocate_states(2, 8)
        original = (folder / "config.json").read_bytes()
        (folder / "config.json").write_bytes(original + b"\n")
        with pytest.raises(EngineError, match=r"model\.onnx or config\.json was replaced: open it again"):
            engine.step(step_inputs(rows, [0, 0]), states)
        (folder / "config.json").write_bytes(original)
        engine.step(step_inputs(rows, [0, 0]), states)
