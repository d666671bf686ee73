"""llama.cpp as a peer on the CPU: its converter, its quantiser and its benchmark, run from a built checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = "build/bin/llama-bench"
# model_type -> the class by which the converter chooses tensor names. It cannot convert Mamba without a tokenizer.
ARCHITECTURES = {
    "falcon_h1": "FalconH1ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
}
# Converts without a tokenizer, which random weights lack, and without the expert settings that transformers would add.
_CONVERT = """
import json, pathlib, sys
source, checkpoint, out = sys.argv[1:]
sys.path[:0] = [source, source + "/gguf-py"]
import convert_hf_to_gguf
from conversion import get_model_class
from conversion.base import ModelBase
config = json.loads((pathlib.Path(checkpoint) / "config.json").read_text())
ModelBase.load_hparams = staticmethod(lambda *_, **__: dict(config))
model = get_model_class(config["architectures"][0])
def set_vocab(self):
    self._set_vocab_none()
    self.gguf_writer.add_vocab_size(config["vocab_size"])  # some classes do not
model.set_vocab = set_vocab
sys.argv = ["convert", checkpoint, "--outfile", out, "--outtype", "bf16"]
if model.supports_mtp_export:
    sys.argv.append("--no-mtp")  # else it expects a prediction head
convert_hf_to_gguf.main()
"""


def missing_peer(folder: str | None) -> str | None:
    """Why llama.cpp cannot run from the checkout ``folder``; None where it can."""
    if folder is None:
        return "no folder of llama.cpp was given (--llama-cpp)"
    needed = (BENCH, "build/bin/llama-quantize", "convert_hf_to_gguf.py")
    lacking = [name for name in needed if not (Path(folder) / name).exists()]
    return f"{folder} has no {', '.join(lacking)}" if lacking else None


class LlamaCpp:
    """A ``checkpoint`` of a family of ``ARCHITECTURES`` as GGUF files of the types ``formats`` in ``work``."""

    def __init__(self, folder: Path, checkpoint: Path, work: Path, formats: tuple[str, ...], threads: int) -> None:
        """Convert and quantise. CalledProcessError if a program fails, after its last output on standard error."""
        self._bench, self._threads = folder / BENCH, threads
        whole = work / "bf16.gguf"
        named = _with_architecture(checkpoint, work / "with-architecture")
        _run([sys.executable, "-c", _CONVERT, str(folder), str(named), str(whole)])
        self.files = {name: work / f"{name}.gguf" for name in formats}
        for name, file in self.files.items():
            _run([str(folder / "build/bin/llama-quantize"), str(whole), str(file), name, str(threads)])
        whole.unlink()

    def speed(self, name: str, prompt: int, new: int) -> float:
        """Tokens per second for a prompt of ``prompt`` tokens (``new`` is 0), or for decoding ``new`` tokens."""
        counts = ["-p", str(prompt), "-n", str(new), "-r", "1", "-t", str(self._threads)]
        found = json.loads(_run([str(self._bench), "-m", str(self.files[name]), *counts, "-o", "json"]))
        return float(found[-1]["avg_ts"])


def _with_architecture(checkpoint: Path, folder: Path) -> Path:
    """The new ``folder``: the weights of ``checkpoint`` as a link, and its config with the class's name."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    folder.mkdir()
    config["architectures"] = [ARCHITECTURES[config["model_type"]]]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    return folder


def _run(command: list[str]) -> str:
    """Standard output of ``command``."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    done.check_returncode()
    return done.stdout
