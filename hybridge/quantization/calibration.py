"""What the inputs of a checkpoint's linear layers are like over a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.artifact.limits import GIB
from hybridge.artifact.progress import Progress
from hybridge.artifact.untrusted_file import has_file
from hybridge.evaluation.windows import check_tokens, read_text, token_windows
from hybridge.quantization.samples import own_samples
from hybridge.runtime.text import Tokenizer
from hybridge.runtime.text.tokenizer import TOKENIZER_FILE
from hybridge.verification.transformers_model import TransformersModel

WINDOW, WINDOWS = 512, 32
# Sums of products of inputs that are in memory at once; each batch of layers costs a pass over the text.
_BYTES = 1 * GIB
# Added to the diagonal, in parts of its mean.
_DAMPING = 0.01


class Calibration:
    """The checkpoint in transformers, and ``windows`` of tokens of ``text``, or sampled from the model if that is None.

    SettingError: there is no tokenizer for the text, or the text is too short.
    """

    def __init__(self, checkpoint: Path, text: Path | None, progress: Progress) -> None:
        given = None if text is None else _text_windows(checkpoint, text)
        progress.start("load the checkpoint in transformers")
        self._model = TransformersModel(checkpoint)
        self.torch = self._model.torch
        self.vocab_size = int(self._model.model.config.get_text_config().vocab_size)
        if given is not None:
            check_tokens(given, self.vocab_size, checkpoint)
        self.windows = own_samples(self._model, progress) if given is None else given
        layers = self._model.model.named_modules()
        self._layers = {_without_prefix(name): layer for name, layer in layers if type(layer) is self.torch.nn.Linear}

    def layers_of(self, modules: Iterable[str]) -> dict[str, Any]:
        """Module to linear layer, for those ``modules`` that have one."""
        return {
            module: self._layers[_without_prefix(module)]
            for module in modules
            if _without_prefix(module) in self._layers
        }

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [T, vocab] float32 of ``tokens`` [T]."""
        with self._model.failures("run"), self.torch.no_grad():
            output = self._model.model(self.torch.from_numpy(tokens)[None], use_cache=False)
        return output.logits[0].float().numpy()

    def batches(self, modules: Mapping[str, int]) -> Iterator[list[str]]:
        """``modules``, given with their input sizes, in lists whose sums fit into memory; the last has no layers."""
        batch: list[str] = []
        room = _BYTES
        for module, columns in modules.items():
            if _without_prefix(module) not in self._layers:
                continue
            if batch and room < 4 * columns * columns:
                yield batch
                batch, room = [], _BYTES
            batch.append(module)
            room -= 4 * columns * columns
        if batch:
            yield batch
        if others := [module for module in modules if _without_prefix(module) not in self._layers]:
            yield others

    def factors(self, modules: Iterable[str], progress: Progress) -> dict[str, np.ndarray]:
        """The ``factor`` of ``gptq_rounded`` for each module that has a linear layer."""
        torch = self.torch
        sums: dict[str, Any] = {}

        def add(module: str, _layer: Any, inputs: Sequence[Any]) -> None:
            rows = inputs[0].reshape(-1, inputs[0].shape[-1]).float()
            product = rows.T @ rows
            sums[module] = product if module not in sums else sums[module].add_(product)

        found = self.layers_of(modules)
        if not found:
            return {}
        hooks = [layer.register_forward_pre_hook(partial(add, module)) for module, layer in found.items()]
        progress.start(f"calibrate {len(found)} matrices", len(self.windows))
        try:
            for window in self.windows:
                with self._model.failures("run"), torch.no_grad():
                    self._model.model(torch.from_numpy(window)[None], use_cache=False)
                progress.advance()
        finally:
            for hook in hooks:
                hook.remove()
        return {module: _factor(sums.pop(module).numpy(), module) for module in list(sums)}


def _text_windows(checkpoint: Path, text: Path) -> list[np.ndarray]:
    if not has_file(checkpoint, TOKENIZER_FILE):
        raise SettingError(
            f"{checkpoint}: expected a tokenizer for the text, found no {TOKENIZER_FILE}: leave the text out to "
            "calibrate on samples of the model itself"
        )
    tokenizer = Tokenizer.from_folder(checkpoint)
    try:
        return token_windows(tokenizer, read_text(text), WINDOW, WINDOWS, str(text))
    finally:
        tokenizer.close()


def _without_prefix(name: str) -> str:
    """The name from "layers." on, as transformers and checkpoints have different prefixes."""
    return name[name.index("layers.") :] if "layers." in name else name.rpartition(".")[2]


def _factor(sums: np.ndarray, module: str) -> np.ndarray:
    """The upper Cholesky factor, float32, of the inverse of ``sums``, which is damped. EngineError: not finite."""
    matrix = sums.astype(np.float64)
    diagonal = np.einsum("ii->i", matrix)
    if not np.isfinite(diagonal).all():
        raise EngineError(f"{module}: expected finite inputs over the text, found others: choose the method mse")
    diagonal += _DAMPING * diagonal.mean() or 1.0
    factor = np.linalg.cholesky(np.linalg.inv(matrix)).T
    return np.ascontiguousarray(factor, np.float32)
