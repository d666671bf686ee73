"""Real TensorRT-RTX builds of a tiny artifact, without a GPU, and what they leave behind."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import onnx
import pytest
from onnx import helper

from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import EngineRecord, read_engine_record
from hybridge.artifact.errors import (
    ArtifactError,
    EngineError,
    HybridgeError,
    OutputError,
    SettingError,
    UnsupportedError,
)
from hybridge.artifact.manifest import Manifest, record_file, write_manifest
from hybridge.artifact.progress import NoProgress
from hybridge.trt_plugins.build import build_plan, builder
from hybridge.trt_plugins.build.build_progress import TOTAL
from hybridge.trt_plugins.build.builder import EnginePlan, build_engine, engine_folder
from hybridge.trt_plugins.build.job import BuildJob, BuildResult, TensorSummary
from hybridge.trt_plugins.build.model import parser_model
from hybridge.trt_plugins.build.network import check_float32, value_dtypes
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.target import Machine
from tests.build.parsed import parsed_network
from tests.build.tiny_artifact import MAX_BATCH, tiny_config, write_tiny_artifact
from tests.build.tiny_graph import ATTENTION_NAME

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

AMPERE = BuildOptions(target="rtx-ampere", library="tensorrt_rtx")


class Recorder(NoProgress):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.amount = 0
        self.finished = False

    def start(self, stage: str, total: int | None = None, unit: str = "") -> None:
        self.stages.append(stage)

    def advance(self, amount: int = 1) -> None:
        self.amount += amount

    def finish(self) -> None:
        self.finished = True


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EngineRecord, Recorder]:
    """A float16 artifact, the record of its engine, and the progress that the build reported."""
    artifact = write_tiny_artifact(tmp_path_factory.mktemp("built") / "artifact")
    progress = Recorder()
    return artifact, build_engine(artifact, replace(AMPERE, max_seq_len=512), progress), progress


def test_files(built: tuple[Path, EngineRecord, Recorder]) -> None:
    folder = engine_folder(built[0], "rtx-ampere")
    assert sorted(path.name for path in folder.iterdir()) == ["build.log", "engine.json", "model.engine"]
    assert [path.name for path in folder.parent.iterdir()] == ["rtx-ampere"]


def test_record_is_what_was_written(built: tuple[Path, EngineRecord, Recorder]) -> None:
    artifact, record, _ = built
    folder = engine_folder(artifact, "rtx-ampere")
    assert read_engine_record(folder / "engine.json") == record
    plan = (folder / record.engine).read_bytes()
    assert (record.nbytes, record.sha256) == (len(plan), hashlib.sha256(plan).hexdigest())
    assert record.model_sha256 == hashlib.sha256((artifact / "model.onnx").read_bytes()).hexdigest()


def test_record_names_library_target_and_limits(built: tuple[Path, EngineRecord, Recorder]) -> None:
    import tensorrt_rtx

    record = built[1]
    assert (record.library, record.library_version) == ("tensorrt_rtx", tensorrt_rtx.__version__)
    assert (record.preset, record.compute_capabilities) == ("rtx-ampere", ["8.6"])
    assert (record.max_batch_size, record.max_seq_len) == (MAX_BATCH, 512)
    assert {p.name: p.shapes["input_ids"][2] for p in record.profiles} == {"prefill": [5, 512], "decode": [5, 1]}


def test_layers_are_native(built: tuple[Path, EngineRecord, Recorder]) -> None:
    layers = built[1].layers
    counts = {name: layers.get(name, 0) for name in ("KV_CACHE_UPDATE", "ATTENTION_INPUT", "ROTARY_EMBEDDING")}
    assert counts == {"KV_CACHE_UPDATE": 2, "ATTENTION_INPUT": 1, "ROTARY_EMBEDDING": 2}
    assert not [name for name in layers if name.startswith("PLUGIN")]


def test_sizes_without_kernels_fall_back_and_say_why(built: tuple[Path, EngineRecord, Recorder]) -> None:
    artifact, record, _ = built
    assert not record.plugins
    reason = "node layers.1.ssm: the kernels of trt_edgellm::update_ssm_state support state_size from 8 to 256"
    assert record.plugins.reason.startswith(reason)
    assert f"no plugins: {reason}" in (engine_folder(artifact, "rtx-ampere") / "build.log").read_text(encoding="utf-8")


def test_bindings_tell_states_and_aliases(built: tuple[Path, EngineRecord, Recorder]) -> None:
    bindings = {entry["name"]: entry for entry in built[1].bindings}
    assert list(bindings)[:3] == ["input_ids", "context_lengths", "past_lengths"]
    cache = {"name": "past_key_0", "mode": "input", "dtype": "float16", "shape": ["batch", 2, 512, 8]}
    assert bindings["past_key_0"] == {**cache, "replaced_by": "present_key_0"}
    aliases = {name: entry["aliases"] for name, entry in bindings.items() if "aliases" in entry}
    assert aliases == {"present_key_0": "past_key_0", "present_value_0": "past_value_0"}
    assert bindings["recurrent_state_0"]["dtype"] == "float32"


def test_progress_is_complete(built: tuple[Path, EngineRecord, Recorder]) -> None:
    progress = built[2]
    assert progress.stages == ["load TensorRT", "read the graph", "build the engine"]
    assert (progress.amount, progress.finished) == (TOTAL, True)


def test_memory_grows_with_the_tokens_only(built: tuple[Path, EngineRecord, Recorder]) -> None:
    """The scan's chunks have bounds: an unbounded size would reserve gigabytes for this model."""
    log = (engine_folder(built[0], "rtx-ampere") / "build.log").read_text(encoding="utf-8")
    reserved = [int(number) for number in re.findall(r"Total Activation Memory: (\d+) bytes", log)]
    assert len(reserved) == 2 and max(reserved) < 32 << 20


# test_plugin_engines.py builds for several targets on every push; others build native layers of float16 and bfloat16.
@pytest.mark.slow
def test_several_targets_make_one_engine_and_float32_builds(tmp_path: Path) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact", DType.FLOAT32)
    options = BuildOptions(compute_capabilities=("8.9", "12.0"), library="tensorrt_rtx", max_seq_len=16)
    record = build_engine(artifact, options)
    assert record.compute_capabilities == ["8.9", "12.0"]
    assert {entry["dtype"] for entry in record.bindings if "key" in entry["name"]} == {"float32"}
    assert engine_folder(artifact, "sm89-sm120").is_dir()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_decay_rates_stay_float32_in_the_network(tmp_path: Path, dtype: DType) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact", dtype)
    model = parser_model(artifact, tiny_config(dtype), 16)
    with parsed_network(artifact, model) as network:
        assert value_dtypes(network, ["layers.1.A", "embedding"])["layers.1.A"] == "float32"
        with pytest.raises(EngineError, match="embedding in float32 in the engine, found bfloat16"):
            check_float32(network, ["layers.1.A", "embedding"])


def mangle_attention(model: onnx.ModelProto) -> None:
    """A head size that query and key do not share: the parser refuses the node."""
    node = next(node for node in model.graph.node if node.op_type == "Attention")
    node.input[0] = "constant_of_another_rank"
    model.graph.initializer.append(helper.make_tensor("constant_of_another_rank", 10, [2], [1.0, 2.0]))


def test_refused_node_is_named_and_only_the_log_is_left(tmp_path: Path) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact", edit=mangle_attention)
    progress = Recorder()
    with pytest.raises(
        EngineError, match=rf"tensorrt_rtx .* cannot read the graph: node node_{ATTENTION_NAME}"
    ) as caught:
        build_engine(artifact, AMPERE, progress)
    assert progress.finished
    log = artifact / "engines" / "rtx-ampere.failed.log"
    assert [path.relative_to(artifact) for path in artifact.rglob("engines/*")] == [log.relative_to(artifact)]
    assert str(caught.value).endswith(f"TensorRT's log is kept in {log}") and "[ERROR]" in log.read_text()


class Interrupt(Recorder):
    def advance(self, amount: int = 1) -> None:
        raise KeyboardInterrupt


def test_interruption_leaves_nothing(tmp_path: Path) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact")
    with pytest.raises(KeyboardInterrupt):
        build_engine(artifact, AMPERE, Interrupt())
    assert sorted(path.name for path in artifact.iterdir()) == ["config.json", "model.onnx", "weights"]


def test_an_engine_is_replaced_only_on_request(
    built: tuple[Path, EngineRecord, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second build's process is a double, which writes another file."""
    artifact, record, _ = built
    path = engine_folder(artifact, "rtx-ampere") / "engine.json"
    summaries = [asdict(TensorSummary(b["name"], b["mode"], b["dtype"], b.get("aliases"))) for b in record.bindings]

    def interrupted(job: BuildJob, *others: object) -> BuildResult:
        Path(job.engine).write_bytes(b"half")
        raise KeyboardInterrupt

    def rebuilt(job: BuildJob, *others: object) -> BuildResult:
        Path(job.engine).write_bytes(b"another")
        return BuildResult(record.library_version, 7, "0" * 64, record.layers, summaries)

    with pytest.raises(OutputError, match="`overwrite=True`"):
        build_engine(artifact, AMPERE)
    monkeypatch.setattr(builder, "run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_engine(artifact, replace(AMPERE, overwrite=True))
    assert read_engine_record(path) == record
    assert hashlib.sha256((path.parent / record.engine).read_bytes()).hexdigest() == record.sha256
    monkeypatch.setattr(builder, "run_job", rebuilt)
    again = build_engine(artifact, replace(AMPERE, overwrite=True, max_seq_len=32, max_batch_size=1))
    assert read_engine_record(path) == again != record
    assert (path.parent / again.engine).read_bytes() == b"another"


def test_a_foreign_folder_is_never_replaced(tmp_path: Path) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact")
    folder = engine_folder(artifact, "rtx-ampere")
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"no engine\.json"):
        build_engine(artifact, replace(AMPERE, overwrite=True))
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (replace(AMPERE, target="jetson-orin"), UnsupportedError, "jetson-orin.*full TensorRT"),
        (replace(AMPERE, target="jetson-thor"), UnsupportedError, "jetson-thor.*full TensorRT"),
        (replace(AMPERE, max_seq_len=601), SettingError, "max_seq_len"),
        (
            replace(AMPERE, plugins="on"),
            SettingError,
            r"plugins: node layers\.1\.ssm: the kernels .* found state_size 10; use",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_first(
    tmp_path: Path, options: BuildOptions, error: type[HybridgeError], words: str
) -> None:
    artifact = write_tiny_artifact(tmp_path / "artifact")
    with pytest.raises(error, match=words):
        build_engine(artifact, options)
    assert not (artifact / "engines").exists()


def test_full_tensorrt_without_a_gpu_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_plan, "this_machine", lambda: Machine(("tensorrt",), None))
    with pytest.raises(EngineError, match="NVIDIA GPU, found none"):
        build_engine(write_tiny_artifact(tmp_path / "artifact"), BuildOptions())


@pytest.mark.parametrize("name", ["model.onnx", "mtp.onnx"])
def test_a_graph_other_than_the_exported_one_is_refused(tmp_path: Path, name: str) -> None:
    """It has the same size and the same interface."""
    artifact = write_tiny_artifact(tmp_path / "artifact", edit=lambda model: setattr(model, "doc_string", "a"))
    shutil.copy(artifact / "model.onnx", artifact / "mtp.onnx")
    files = tuple(record_file(artifact, graph) for graph in ("model.onnx", "mtp.onnx"))
    write_manifest(artifact, Manifest({}, "tiny", {}, files))
    plan = replace(build_plan.plan_build(artifact, AMPERE), model_file=name)
    EnginePlan.of(plan, "")
    model = onnx.load(artifact / name, load_external_data=False)
    model.doc_string = "b"
    (artifact / name).write_bytes(model.SerializeToString())
    assert (artifact / name).stat().st_size == files[0].nbytes
    with pytest.raises(ArtifactError, match=f"{name}: its content changed since the export: export again"):
        EnginePlan.of(plan, "")


def test_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="found another folder"):
        build_engine(tmp_path, AMPERE)
