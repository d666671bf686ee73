"""Memory of calibrated runs: that of a layer, whatever the number of layers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.random_checkpoint import nemotron_h, write_random_checkpoint
from tests.runtime.text.tokenizer_files import SENTENCES, byte_level_tokenizer

SIZES = {
    "hidden_size": 512,
    "vocab_size": 512,
    "intermediate_size": 1536,
    "mamba_num_heads": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# The most bytes of its own memory and of mapped files that the process has, sampled.
RUN = """
import sys, threading
from pathlib import Path
import hybridge

def used():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssFile")))

def sample():
    global most
    while not done.wait(0.005):
        most = max(most, used())

checkpoint, out, method, text = sys.argv[1:]
most, done = 0, threading.Event()
thread = threading.Thread(target=sample)
thread.start()
hybridge.quantize(checkpoint, out, method=method, text=text)
done.set()
thread.join()
print(most)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and madvise of Linux")
@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_the_peak_does_not_grow_with_the_number_of_layers(method: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(SENTENCES) * 3, encoding="utf-8")
    peaks, sizes = [], []
    for name, pattern in (("few", "M-*-"), ("many", "M-*-" * 8)):
        sizes.append(write_random_checkpoint(tmp_path / name, nemotron_h(pattern, **SIZES)))
        byte_level_tokenizer(tmp_path / name)
        # Each of many arenas would keep memory that was freed in one of many threads.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        command = [sys.executable, "-c", RUN, str(tmp_path / name), str(tmp_path / f"{name}-out"), method, str(text)]
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        peaks.append(int(result.stdout.split()[-1]))
    # The mapped weights of all layers alone would be this much more.
    assert peaks[1] - peaks[0] < 0.5 * (sizes[1] - sizes[0])
