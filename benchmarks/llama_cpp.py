"""llama.cpp as a peer on the CPU: its converter, its quantiser and its benchmark, run from a built checkout."""

from __future__ import annotations

import json
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.llama_logits import LlamaLogits
from benchmarks.llama_program import compiled
from benchmarks.peer_program import run_program

BENCH = "build/bin/llama-bench"
# model_type -> the class by which the converter chooses tensor names. It cannot convert Mamba without a tokenizer.
ARCHITECTURES = {
    "falcon_h1": "FalconH1ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
}
# Kind of a layer in the configs of Nemotron-H that transformers writes -> its letter in hybrid_override_pattern, from
# which the converter reads the layers.
_LETTERS = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
_OF_EXPERTS = ("n_group", "topk_group")
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


def can_convert(checkpoint: Path) -> bool:
    """Whether the family of ``checkpoint`` is one of ``ARCHITECTURES``."""
    return _config(checkpoint)["model_type"] in ARCHITECTURES


class LlamaCpp:
    """A ``checkpoint`` of a family of ``ARCHITECTURES`` as GGUF files of the types ``formats`` in ``work``."""

    def __init__(self, folder: Path, checkpoint: Path, work: Path, formats: tuple[str, ...], threads: int) -> None:
        """Convert and quantise, unless ``work`` has all files.

        CalledProcessError if a program fails, after its last output on standard error.
        """
        self._folder, self._work, self._threads = folder, work, threads
        self.files = {name: work / f"{name}.gguf" for name in formats}
        if all(file.exists() for file in self.files.values()):
            return
        whole = work / "bf16.gguf"
        named = _with_architecture(checkpoint, work / "with-architecture")
        run_program([sys.executable, "-c", _CONVERT, str(folder), str(named), str(whole)])
        for name, file in self.files.items():
            run_program([str(folder / "build/bin/llama-quantize"), str(whole), str(file), name, str(threads)])
        whole.unlink()

    def bytes(self, name: str) -> int:
        """Bytes of the file of the type ``name``."""
        return self.files[name].stat().st_size

    @cached_property
    def logits(self) -> LlamaLogits:
        """Computes the logits of files. CalledProcessError if its program cannot be compiled."""
        return LlamaLogits(self._folder, self._work, self._threads)

    @cached_property
    def _loader(self) -> Path:
        return compiled("llama_load", self._folder, self._work)

    def first_token_seconds(self, name: str) -> float:
        """Seconds in which a new process loads the file and decodes one token."""
        return float(run_program([str(self._loader), str(self.files[name]), str(self._threads)]))

    def speed(self, name: str, prompt: int, new: int) -> float:
        """Tokens per second for a prompt of ``prompt`` tokens (``new`` is 0), or for decoding ``new`` tokens."""
        counts = ["-p", str(prompt), "-n", str(new), "-r", "1", "-t", str(self._threads)]
        found = json.loads(run_program([str(self._folder / BENCH), "-m", str(self.files[name]), *counts, "-o", "json"]))
        return float(found[-1]["avg_ts"])


def _with_architecture(checkpoint: Path, folder: Path) -> Path:
    """The new ``folder``: the weights of ``checkpoint`` as a link, and its config with the class's name."""
    config = _config(checkpoint)
    folder.mkdir(exist_ok=True)
    config["architectures"] = [ARCHITECTURES[config["model_type"]]]
    if "layers_block_type" in config:
        letters = "".join(_LETTERS[kind] for kind in config.pop("layers_block_type"))
        config |= {"hybrid_override_pattern": letters, "num_hidden_layers": len(letters)}
        if "E" not in letters:  # else experts are expected
            config = {key: value for key, value in config.items() if "expert" not in key and key not in _OF_EXPERTS}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    link = folder / "model.safetensors"
    link.unlink(missing_ok=True)
    link.symlink_to(checkpoint.resolve() / "model.safetensors")
    return folder


def _config(checkpoint: Path) -> dict[str, Any]:
    return dict(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))
