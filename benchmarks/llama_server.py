"""llama.cpp's HTTP server as a peer, with the demo checkpoint as a GGUF file of float32."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER = "build/bin/llama-server"
_READY_SECONDS = 30.0
# The demo checkpoint under the names of the converter: no experts, and its tokenizer as one of GPT-2's kind.
_CONVERT = """
import json, pathlib, sys
source, checkpoint, out = sys.argv[1:]
sys.path[:0] = [source, source + "/gguf-py"]
import convert_hf_to_gguf
from conversion import get_model_class
from conversion.base import ModelBase
config = json.loads((pathlib.Path(checkpoint) / "config.json").read_text())
kinds = {"linear_attention": "M", "full_attention": "*", "mlp": "-"}
layers = config.pop("layers_block_type")
config["hybrid_override_pattern"] = "".join(kinds[layer] for layer in layers)
config["num_hidden_layers"] = len(layers)
others = {"n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"}
for name in [name for name in config if "expert" in name or name in others]:
    del config[name]
ModelBase.load_hparams = staticmethod(lambda *_, **__: dict(config))
model = get_model_class(config["architectures"][0])
model.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
model.set_vocab = model._set_vocab_gpt2
sys.argv = ["convert", checkpoint, "--outfile", out, "--outtype", "f32"]
convert_hf_to_gguf.main()
"""


def missing_server(folder: str | None) -> str | None:
    """Why llama-server cannot run from the checkout ``folder``; None where it can."""
    if folder is None:
        return "no folder of llama.cpp was given (--llama-cpp)"
    lacking = [name for name in (SERVER, "convert_hf_to_gguf.py") if not (Path(folder) / name).exists()]
    return f"{folder} has no {', '.join(lacking)}" if lacking else None


@contextmanager
def llama_server(folder: Path, checkpoint: Path, work: Path, streams: int, tokens: int, threads: int) -> Iterator[str]:
    """The address of a server with ``streams`` slots of ``tokens`` each. ``work``: for the GGUF file.

    CalledProcessError when the checkpoint cannot be converted, RuntimeError when the server does not start.
    """
    model = work / "model.gguf"
    convert = [sys.executable, "-c", _CONVERT, str(folder), str(checkpoint), str(model)]
    subprocess.run(convert, capture_output=True, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(folder / SERVER), "-m", str(model), "--port", str(port), "--jinja", "-np", str(streams)]
    command += ["-c", str(streams * tokens), "-t", str(threads), "-tb", str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as response:
                if json.load(response)["status"] == "ok":
                    return
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    raise RuntimeError("llama-server: expected it to be ready, found that it is not")
