"""The portable graph in another reader: ONNX Runtime's provider for TensorRT-RTX takes every node of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from hybridge.artifact.bindings import BLOCK_SIZE, MAX_SEQ
from hybridge.artifact.config import read_config
from hybridge.trt_plugins.build.profiles import PAGED_BLOCK_SIZE
from tests.support.artifacts import ArtifactCache
from tests.verify.network_cases import SIZES, exported

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from hybridge.runtime.engines.tensorrt_network.parsed import network_options
from hybridge.trt_plugins.build import attention
from hybridge.trt_plugins.build.attention import native_attention
from hybridge.trt_plugins.build.build_plan import plan_build

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("second_reader.py")
PACKAGE = Path(sys.prefix) / "second-reader"
PROVIDER = "NvTensorRTRTXExecutionProvider"
# The provider needs these libraries of the driver to be loaded; a session that only compiles calls no function.
DRIVER = {"libcuda.so.1": "cu[A-Z]", "libnvidia-ml.so.1": "nvml"}
# TensorRT-RTX 1.7.1 crashes on Attention in front of a loop of experts, and has no kernel for Attention in float32: for
# these, dense graphs are read with attention written out, as a build does it.
EXPERTS = ("granitemoehybrid", "lfm2_moe", "nemotron_h", "qwen3_next", "qwen3_5_moe_text", "gpt_oss")
DENSE = ("bamba", "falcon_h1", "gemma3_text", "lfm2", "llama", "mamba", "olmo_hybrid", "qwen3_5_text", "zamba2")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of a process with the provider."""
    compiler = shutil.which("cc")
    if not PACKAGE.is_dir():
        pytest.skip(f"needs onnxruntime-ep-nv-tensorrt-rtx-cu13 in {PACKAGE}: make test-all")
    if compiler is None or shutil.which("nm") is None:
        pytest.skip("needs a C compiler, cc, and nm")
    folder = tmp_path_factory.mktemp("driver")
    libraries = (PACKAGE / "onnxruntime_ep_nv_tensorrt_rtx").glob("*.so")
    command = ["nm", "--dynamic", "--undefined-only", *libraries]
    needed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    for name, prefix in DRIVER.items():
        functions = sorted(set(re.findall(rf" U ({prefix}\w+)$", needed, re.MULTILINE)))
        source = folder / "driver.c"
        source.write_text("\n".join(f"int {function}(void) {{ return 100; }}" for function in functions))
        options = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name]
        subprocess.run([compiler, *options, source], check=True, capture_output=True, timeout=60)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(PACKAGE)}


@pytest.mark.parametrize(
    ("family", "layout", "stored"),
    [
        *((family, "paged", "float32") for family in (*SIZES, "llama", "gpt_oss")),
        *((family, "dense", "float16") for family in DENSE),
        *((family, "dense", "float32") for family in (*DENSE, *EXPERTS)),
    ],
)
def test_it_takes_every_node(
    family: str, layout: str, stored: str, artifacts: ArtifactCache, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = exported(artifacts, family, stored, layout=layout).folder
    model = with_weights_inside(folder, tmp_path, written_out=(layout, stored) == ("dense", "float32"))
    config = read_config(folder)
    profile = plan_build(folder, network_options(config, plugins="off")).profiles[0]
    shapes = {
        f"nv_profile_{end}_shapes": ",".join(
            f"{name}:{'x'.join(map(str, ends[index]))}" for name, ends in profile.shapes.items()
        )
        for index, end in enumerate(("min", "opt", "max"))
    }
    axes = {MAX_SEQ: config.max_seq_len, BLOCK_SIZE: PAGED_BLOCK_SIZE}
    command = [sys.executable, PROGRAM, model, json.dumps({"axes": axes, "provider": shapes})]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert set(found) == {PROVIDER}, {name: operators for name, operators in found.items() if name != PROVIDER}
    assert len(found[PROVIDER]) > 50


def with_weights_inside(artifact: Path, folder: Path, written_out: bool) -> Path:
    """A copy of the graph with its weights: ONNX Runtime gives a provider no external weights of subgraphs.

    written_out: with single operators in place of Attention.
    """
    copied = Path(shutil.copytree(artifact, folder / "artifact"))
    model = onnx.load(copied / "model.onnx", load_external_data=False)
    if written_out:
        model = native_attention(model)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attention, "last_loop", lambda model: len(model.graph.node))
            attention.support_attention(model)
    onnx.load_external_data_for_model(model, str(copied))
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"
