"""Statistics of the inputs of a checkpoint's linear layers over a text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.artifact.progress import Progress
from hybridge.artifact.untrusted_file import has_file
from hybridge.evaluation.windows import check_tokens, read_text, token_windows
from hybridge.quantization.input_products import InputProducts
from hybridge.quantization.layerwise import LayerWalk
from hybridge.quantization.options import CUDA
from hybridge.quantization.resumed_model import ResumedModel
from hybridge.quantization.samples import own_samples
from hybridge.requirements import require
from hybridge.runtime.text import Tokenizer
from hybridge.runtime.text.tokenizer import TOKENIZER_FILE
from hybridge.verification.transformers_model import TransformersModel

WINDOW, WINDOWS = 512, 32


class Calibration:
    """The checkpoint in transformers, and ``windows`` of tokens, sampled from the model if none are given.

    SettingError: a token is not one of the model.
    """

    def __init__(self, checkpoint: Path, given: list[np.ndarray] | None, device: str, progress: Progress) -> None:
        progress.start("load the checkpoint in transformers")
        self._model = TransformersModel(checkpoint, device=device)
        self.torch = self._model.torch
        self.vocab_size = int(self._model.model.config.get_text_config().vocab_size)
        self.parameters = sum(parameter.numel() for parameter in self._model.model.parameters())
        if given is not None:
            check_tokens(given, self.vocab_size, checkpoint)
        self.windows = own_samples(self._model, progress) if given is None else given
        self._modules = {_without_prefix(name): module for name, module in self._model.model.named_modules()}
        linear = self.torch.nn.Linear
        self._layers = {name: module for name, module in self._modules.items() if type(module) is linear}
        self._walk: LayerWalk | None = None
        self._next = 0  # the next decoder layer of the walk

    def layers_of(self, modules: Iterable[str]) -> dict[str, Any]:
        """Module to linear layer, for those ``modules`` that have one."""
        return {
            module: self._layers[_without_prefix(module)]
            for module in modules
            if _without_prefix(module) in self._layers
        }

    def resumed(self, tokens: np.ndarray) -> ResumedModel:
        """The model over ``tokens`` [rows, T]."""
        return ResumedModel(self._model, tokens)

    def products(self, index: int | None, modules: Iterable[str]) -> InputProducts:
        """The products of the inputs of ``modules``, those that exist in transformers, of the decoder layer ``index``,
        or of the head (None). Layers are requested in order; skipped ones are only computed.
        """
        self._walk = self._walk or LayerWalk(self._model, self.windows)
        names = [module for module in modules if _without_prefix(module) in self._modules]
        found = InputProducts({module: self._modules[_without_prefix(module)] for module in names})
        while self._next < (len(self._model.base.layers) if index is None else index):
            self._walk.run(self._next)
            self._next += 1
        if index is None:
            self._add_head_inputs(names, found)
        else:
            with found.collected():
                self._walk.run(index, found.next_window)
            self._next += 1
        for each in found.groups:
            each.check()
        return found

    def restart(self) -> None:
        """Let ``products`` be asked for the first layer again."""
        self._walk, self._next = None, 0

    def _add_head_inputs(self, modules: Iterable[str], found: InputProducts) -> None:
        assert self._walk is not None
        for name in modules:
            for hidden in self._walk.head_inputs():
                found.add(name, hidden)
                found.next_window()


def check_device(device: str) -> None:
    """EngineError: torch has no such device."""
    if device == CUDA:
        require("torch")
        import torch

        if not torch.cuda.is_available():
            raise EngineError("device: expected a CUDA GPU that torch can use, found none: use the device cpu")


def text_windows(checkpoint: Path, text: Path) -> list[np.ndarray]:
    """Windows of tokens of a text; SettingError: the checkpoint has no tokenizer, or the text is too short."""
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
