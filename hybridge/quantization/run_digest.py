"""A digest of everything that the result of a quantisation depends on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hybridge.artifact.errors import CheckpointError, SettingError
from hybridge.artifact.limits import EVALUATION_TEXT_BYTES, JSON_BYTES, TOKENIZER_BYTES
from hybridge.artifact.source_digest import source_digest
from hybridge.artifact.untrusted_file import has_file, read_given, read_inside
from hybridge.exporter.checkpoint import Checkpoint
from hybridge.exporter.checkpoint.checkpoint import CONFIG_FILE
from hybridge.quantization.options import QuantizeOptions
from hybridge.runtime.text.tokenizer import TOKENIZER_FILE

# Settings that change no weight.
_WITHOUT_EFFECT = ("overwrite", "resume")
# Folders of the code that a quantisation runs.
SOURCES = (
    "quantization",
    "verification",
    "evaluation",
    "exporter",
    "runtime/text",
    "runtime/sandbox",
    "trt_plugins",
    "artifact",
)
_PACKAGES = ("numpy", "torch", "transformers")


def run_digest(source: Checkpoint, options: QuantizeOptions) -> str:
    """SHA-256 in hexadecimal: of the weights' headers, sizes and times, not of their bytes. SettingError: the text
    cannot be read.
    """
    settings = {name: value for name, value in asdict(options).items() if name not in _WITHOUT_EFFECT}
    if options.text is not None:
        text = read_given(Path(options.text), EVALUATION_TEXT_BYTES, SettingError, "give a text file")
        settings["text"] = hashlib.sha256(text).hexdigest()
    shards = [
        (shard.path.name, shard.nbytes, shard.header_sha256, shard.path.stat().st_mtime_ns) for shard in source.shards
    ]
    files = {
        name: hashlib.sha256(read_inside(source.path, name, limit, CheckpointError, "fetch it again")).hexdigest()
        for name, limit in ((CONFIG_FILE, JSON_BYTES), (TOKENIZER_FILE, TOKENIZER_BYTES))
        if has_file(source.path, name)
    }
    code = [source_digest(*SOURCES), {name: _version(name) for name in _PACKAGES}]
    content = [settings, shards, files, code]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
