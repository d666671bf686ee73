"""Logits of a checkpoint, in transformers and float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from hybridge.exporter.checkpoint.shards import read_shards, tensors_of
from hybridge.verification.reference_folder import reference_folder
from hybridge.verification.rounded_inputs import stored_roundings
from hybridge.verification.transformers_model import TransformersModel


class CheckpointLogits:
    """CheckpointError where transformers cannot load or run the checkpoint in ``folder``."""

    most_tokens = None

    def __init__(self, folder: Path) -> None:
        self._opened = ExitStack()
        with ExitStack() as opened:
            self._model = TransformersModel(opened.enter_context(reference_folder(folder)))
            self._model.round_inputs(stored_roundings(folder))
            self._opened = opened.pop_all()
        self.weight_bytes = sum(slot.nbytes for slot in tensors_of(read_shards(folder, torch_file=True)).values())
        self.name, self.notes = self._model.name, self._model.notes
        text = self._model.model.config.get_text_config()
        self.vocab_size = int(text.vocab_size)
        kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ["attention"]
        # zamba and zaya name a layer with attention and another mixer "hybrid".
        self._attends = any(
            kind.startswith("hybrid") or kind.endswith("attention") for kind in kinds if "linear" not in kind
        )

    def logits(self, tokens: np.ndarray, first: int, rows: int) -> Iterator[np.ndarray]:
        torch, last = self._model.torch, len(tokens) - 1
        ids = torch.from_numpy(tokens[:last])[None]
        arguments = self._model.arguments(last, self._attends)
        # Each block computes the window again: chunks over a cache are not exact in every family.
        for start in range(first, last, rows):
            positions = torch.arange(start, min(start + rows, last))
            with self._model.failures("run"), torch.no_grad():
                output = self._model.model(
                    ids, use_cache=False, return_dict=True, logits_to_keep=positions, **arguments
                )
            yield output.logits[0].float().numpy()

    def close(self) -> None:
        self._opened.close()
