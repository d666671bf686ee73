"""The memory of a build with weights that outweigh everything else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hybridge
from benchmarks.random_checkpoint import nemotron_h, write_random_checkpoint

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")

SIZES = {
    "hidden_size": 3072,
    "vocab_size": 65536,
    "intermediate_size": 12288,
    "mamba_num_heads": 96,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
}
# The largest resident size of the building process, which is a child of this one.
BUILD = """
import resource, sys
from pathlib import Path
from hybridge.trt_plugins.build.builder import build_engine
from hybridge.trt_plugins.build.options import BuildOptions
build_engine(Path(sys.argv[1]), BuildOptions(target="rtx-ada", library="tensorrt_rtx", plugins="on"))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs madvise of Linux")
def test_a_build_holds_the_weights_once(tmp_path: Path) -> None:
    """1.4 GB of different numbers. Twice the weights, mapped and copied, would need 3.2 GB."""
    weights = write_random_checkpoint(tmp_path / "checkpoint", nemotron_h("M-M*-", **SIZES))
    try:
        hybridge.export(tmp_path / "checkpoint", tmp_path / "out", scan=False)
        command = [sys.executable, "-c", BUILD, str(tmp_path / "out")]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        for folder in ("checkpoint", "out"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
    assert weights > 1.4e9
    # 1.83 GB in three runs, one of them beside two busy processes on the same core.
    assert weights < int(result.stdout) < 1.3 * weights + 4e8
