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
from hybridge.runtime.engines.onnxruntime.graph_form import StateLayout
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.onnxruntime.session_graph import DenseGraph, GraphWeight, PagedGraph, StoredTensor
from hybridge.verification.paged_sequences import PagedSequences
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.runtime.onnxruntime.steps import TOLERANCE, relative_error, step_inputs
from tests.support.artifacts import ArtifactCache
from tests.support.fuzzing import RandomInput, fuzzed

ROOT = Path(__file__).resolve().parents[3]
PART = StoredTensor("weights/model.safetensors", 64, DType.BFLOAT16, (4, 8))
GRAPH = DenseGraph(
    b"serialised\nmodel",
    (
        GraphWeight("embedding", (PART,), None, False, True),
        GraphWeight("experts", (PART, PART), (2, 4, 8), True, False),
    ),
    frozenset({"input_ids"}),
    frozenset({"conv_state_0"}),
    {"conv_state_0": StateLayout(True, 4)},
)
PAGED = PagedGraph(
    GRAPH.model,
    GRAPH.weights,
    GRAPH.inputs,
    frozenset({"conv_pool_0"}),
    frozenset({"conv_pool_0", "recurrent_pool_0"}),
    {"kv_pool_0": (0, 1, 3, 2, 4)},
    {"causal_conv1d": True, "update_ssm_state": False},
)


class Rewrites:
    """Returns ``graph`` and counts the calls."""

    def __init__(self, graph: DenseGraph | PagedGraph = GRAPH) -> None:
        self.count, self.graph = 0, graph

    def __call__(self) -> DenseGraph | PagedGraph:
        self.count += 1
        return self.graph


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
    module = "hybridge.runtime.engines.onnxruntime"
    assert imported_by(module, "OnnxRuntimeEngine", folder, cache.folder) == "set()"


def test_a_second_start_of_a_paged_artifact_needs_no_onnx_ir(artifacts: ArtifactCache, tmp_path: Path) -> None:
    folder = artifacts.get("nemotron_h", "float32", layout="paged").folder
    cache = GraphCache(tmp_path / "cache")
    first, second = (one_step(OnnxRuntimePagedEngine(folder, graphs=cache)) for _ in range(2))
    # Of several tokens, one of each of some rows, and one.
    assert np.array_equal(first, second) and len(list(cache.folder.iterdir())) == 3
    module = "hybridge.runtime.engines.onnxruntime.paged_engine"
    assert imported_by(module, "OnnxRuntimePagedEngine", folder, cache.folder) == "set()"


def one_step(engine: OnnxRuntimePagedEngine) -> np.ndarray:
    """Logits of one row of 9 tokens, then of one more."""
    sequences = PagedSequences(engine, 1, 10, 4)
    row = sequences.add()
    return np.concatenate([sequences.step({row: tokens})[row] for tokens in (np.arange(9), np.arange(1))])


def imported_by(module: str, engine: str, folder: Path, cache: Path) -> str:
    """Which of the slow packages a process has imported that opened ``engine`` of ``module``."""
    code = (
        f"import sys; from pathlib import Path; from {module} import {engine}\n"
        "from hybridge.runtime.engines.onnxruntime.graph_cache import GraphCache\n"
        f"{engine}(sys.argv[1], graphs=GraphCache(Path(sys.argv[2])))\n"
        "print({'onnx', 'onnx_ir', 'sympy'} & set(sys.modules))"
    )
    # The session's caches hold the compiled library of CPU kernels.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home(cache))}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    caches = Path(environment["XDG_CACHE_HOME"])
    before = set(caches.iterdir())
    command = [sys.executable, "-c", code, str(folder), str(cache)]
    started = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not started.stderr, started.stderr
    # ONNX Runtime's telemetry would begin with a device id.
    assert list(home(cache).iterdir()) == [] and set(caches.iterdir()) == before
    return started.stdout.strip()


def home(cache: Path) -> Path:
    folder = cache.parent / f"home of {cache.name}"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("graph", [GRAPH, PAGED])
def test_an_entry_is_read_as_it_was_written(artifact: Path, tmp_path: Path, graph: DenseGraph | PagedGraph) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache"), Rewrites(graph)
    assert [cache.get(artifact, "GENERAL", rewrites) for _ in range(3)] == [graph] * 3
    assert rewrites.count == 1
    assert (cache.folder.stat().st_mode & 0o777) == 0o700


@pytest.mark.parametrize("changed", ["model.onnx", "config.json", "form", "onnxruntime", "build"])
def test_another_artifact_form_or_onnxruntime_has_another_entry(
    artifact: Path, tmp_path: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache"), Rewrites()
    cache.get(artifact, "GENERAL", rewrites)
    if changed == "onnxruntime":
        monkeypatch.setattr(graph_cache.ort, "__version__", "0.0")
    elif changed == "build":
        monkeypatch.setattr(graph_cache.ort, "get_build_info", lambda: "another")
    elif changed != "form":
        (artifact / changed).write_bytes(b"other")
    cache.get(artifact, "PADDED" if changed == "form" else "GENERAL", rewrites)
    assert rewrites.count == 2


@fuzzed(200)
def test_a_damaged_entry_is_made_again(artifact: Path, random: RandomInput) -> None:
    cache, rewrites = GraphCache(artifact / "cache"), Rewrites()
    cache.get(artifact, "GENERAL", rewrites)
    (entry,) = cache.folder.iterdir()
    whole, before = entry.read_bytes(), rewrites.count
    start = random.randrange(len(whole))
    stop = random.randint(start, len(whole))
    damaged = whole[:start] + random.randbytes(random.randrange(41)) + whole[stop:]
    if damaged == whole:
        return
    entry.write_bytes(damaged)
    assert cache.get(artifact, "GENERAL", rewrites) == GRAPH and rewrites.count == before + 1
    assert entry.read_bytes() == whole


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_not_used(artifact: Path, tmp_path: Path, mode: int) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache"), Rewrites()
    cache.get(artifact, "GENERAL", rewrites)
    cache.folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=rf"only you may write to, found mode {mode:04o}: .*set XDG_CACHE_HOME"):
        assert cache.get(artifact, "GENERAL", rewrites) == GRAPH
    assert rewrites.count == 2


@pytest.mark.parametrize("kind", ["folder", "fifo", "link", "another artifact's"])
def test_entries_of_another_key_are_not_read(artifact: Path, tmp_path: Path, kind: str) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache"), Rewrites()
    cache.get(artifact, "GENERAL", rewrites)
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
        cache.get(artifact, "GENERAL", rewrites)
        (other,) = cache.folder.iterdir()
        moved.replace(other)
    assert cache.get(artifact, "GENERAL", rewrites) == GRAPH
    assert rewrites.count == (3 if kind == "another artifact's" else 2)


def test_a_cache_that_cannot_be_written_is_no_error(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    rewrites = Rewrites()
    assert GraphCache(tmp_path / "file").get(artifact, "GENERAL", rewrites) == GRAPH
    assert GraphCache(tmp_path / "cache").get(tmp_path / "nothing", "GENERAL", rewrites) == GRAPH
    assert rewrites.count == 2 and not (tmp_path / "cache").exists()


def test_the_least_recently_used_entries_are_removed(artifact: Path, tmp_path: Path) -> None:
    cache, rewrites = GraphCache(tmp_path / "cache", max_entries=2), Rewrites()
    for age, form in ((30, "GENERAL"), (20, "PADDED")):
        cache.get(artifact, form, rewrites)
        for entry in cache.folder.iterdir():
            os.utime(entry, (entry.stat().st_atime, entry.stat().st_mtime - age))
    cache.get(artifact, "GENERAL", rewrites)
    cache.get(artifact, "ONE_TOKEN", rewrites)
    assert rewrites.count == 3 and len(list(cache.folder.iterdir())) == 2
    cache.get(artifact, "GENERAL", rewrites)
    assert rewrites.count == 3


def test_a_graph_is_not_stored_when_its_artifact_was_replaced_during_the_rewrite(
    artifact: Path, tmp_path: Path
) -> None:
    def replaced() -> DenseGraph:
        (artifact / "model.onnx").write_bytes(b"another model")
        return GRAPH

    cache, original = GraphCache(tmp_path / "cache"), (artifact / "model.onnx").read_bytes()
    cache.get(artifact, "GENERAL", replaced)
    (artifact / "model.onnx").write_bytes(original)
    rewrites = Rewrites()
    cache.get(artifact, "GENERAL", rewrites)
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
