"""Memory of a prompt of 32k tokens, which is fed in chunks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hybridge
from tests.project.test_wheel import ROOT

CHECKPOINT = ROOT / "examples" / "checkpoints" / "tiny-nemotron-h"
TOKENS = 32_000
# Prints by how much the peak of a process grows with the prompt.
SCRIPT = """
import sys
import numpy as np
import hybridge
def peak():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmHWM"].split()[0]) * 1024
with hybridge.LLM(sys.argv[1], engine="onnxruntime") as llm:
    prompt = np.random.default_rng(0).integers(3, llm.config.vocab_size, int(sys.argv[2])).tolist()
    llm.generate(prompt[:1100], max_new_tokens=2)
    before = peak()
    llm.generate(prompt[1100:], max_new_tokens=int(sys.argv[3]))
    print(peak() - before)
"""


# A paged decode step gathers the blocks of a layer, here half of the caches; a prompt reads them in place.
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
@pytest.mark.parametrize(("layout", "new_tokens", "most"), [("dense", 2, 1.2), ("paged", 1, 1.2), ("paged", 2, 2.0)])
def test_it_grows_with_the_caches_alone(layout: str, new_tokens: int, most: float, tmp_path: Path) -> None:
    hybridge.export(CHECKPOINT, tmp_path / "out", layout=layout, max_seq_len=TOKENS + 768)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), str(TOKENS), str(new_tokens)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    with hybridge.LLM(tmp_path / "out") as llm:
        config = llm.config
    caches = TOKENS * sum(2 * 4 * layer.num_kv_heads * layer.head_dim for layer in config.kv_layers)
    assert int(done.stdout) < most * caches
