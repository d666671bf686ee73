"""Traced buckets on disk, so that a second process does not trace. They hold no weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.export import ExportedProgram

from hybridge.artifact.source_digest import source_digest
from hybridge.artifact.user_cache import is_private, make_private


class BucketStore:
    """The folder of one model's buckets: its name is a hash of config, limits, types, versions and the tracing code."""

    def __init__(self, cache_folder: Path, text_model: Any, max_cache_len: int) -> None:
        config = text_model.config.to_dict()
        for key in ("_name_or_path", "_commit_hash", "transformers_version"):
            config.pop(key, None)
        versions = (source_digest("transformers_host"), torch.__version__, transformers.__version__)
        details = (str(text_model.dtype), str(text_model.device), text_model.config._attn_implementation, max_cache_len)
        key = json.dumps([config, versions, details], sort_keys=True, default=str)
        name = f"{text_model.config.model_type}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
        self.folder = cache_folder / "buckets" / name

    def load(self, name: str) -> ExportedProgram | None:
        """The bucket ``name``, or None where none was saved or it cannot be read any more."""
        path = self._path(name)
        # Such a file is a program, as a pickle is.
        if not path.is_file() or not is_private(self.folder, "models are traced at every start"):
            return None
        try:
            return torch.export.load(path)
        except Exception:  # a file of another version, or a damaged one: it is traced and written again
            return None

    def save(self, name: str, program: ExportedProgram) -> None:
        """Write the bucket ``name`` at once or not at all; a folder that cannot be written is not an error."""
        with contextlib.suppress(OSError):
            make_private(self.folder)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".pt2")
            os.close(handle)
            try:
                # The arguments that it was traced with hold all weights.
                program.example_inputs = None
                torch.export.save(program, temporary)
                os.replace(temporary, self._path(name))
            finally:
                Path(temporary).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.pt2"
