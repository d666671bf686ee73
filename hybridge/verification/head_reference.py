"""The reference of a multi-token prediction head: transformers' layers with the head's weights.

transformers has no head. Its layers are layers of the family: a checkpoint that has them in place of the model's is
loaded like any other. The norms and the projection around them are implemented here. From the exporter only file
readers are used.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.artifact.safetensors_header import safetensors_header
from hybridge.exporter.checkpoint.checkpoint import CONFIG_FILE
from hybridge.exporter.checkpoint.entries import read_json
from hybridge.exporter.checkpoint.shards import SINGLE_FILE, read_shards, tensors_of
from hybridge.verification.head_states import HeadStates
from hybridge.verification.reference import Reference

HEAD = "mtp."
# Pattern letters of Nemotron-H layers, by a tensor that their mixer has and the later ones lack.
_LETTERS = {"q_proj.weight": "*", "gate.weight": "E", "up_proj.weight": "-"}


@dataclass(frozen=True)
class _OuterNames:
    """Names of the tensors around the layers of a head, without HEAD and ".weight"."""

    projection: str
    embedding: str
    hidden: str
    final: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{HEAD}{n}.weight" for n in (self.projection, self.embedding, self.hidden, self.final))


_QWEN = _OuterNames("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")


def _nemotron(layers: int) -> _OuterNames:
    return _OuterNames("layers.0.eh_proj", "layers.0.enorm", "layers.0.hnorm", f"layers.{layers - 1}.final_layernorm")


class HeadReference(Reference):
    """The head of ``checkpoint``, whose hidden states are ``states``. ``folder``: that of ``head_folder``."""

    def __init__(self, checkpoint: Path, folder: Path, config: RuntimeConfig, states: HeadStates) -> None:
        super().__init__(folder, config)
        missing = sorted(name for name in self.missing_keys if ".layers." in name)
        if missing:
            raise CheckpointError(
                f"expected all tensors of a prediction head of {', '.join(config.layer_types)}, found none for "
                f"{missing[0]}: verify with the checkpoint that was exported"
            )
        tensors = tensors_of(read_shards(checkpoint))
        outer = _outer_names(tensors)
        norm = next(name for name in ("norm", "norm_f") if hasattr(self.base, name))
        final: Any = getattr(self.base, norm)

        def normed_by(name: str) -> Any:
            """The model's kind of norm, with the weight ``name``."""
            module = copy.deepcopy(final)
            module.weight.data = self._tensor(tensors, name, tuple(module.weight.shape))
            return module

        hidden = config.hidden_size
        projection, embedding, before, _ = outer.names
        self._projection = self._tensor(tensors, projection, (hidden, 2 * hidden))
        self._embedding_norm, self._hidden_norm = normed_by(embedding), normed_by(before)
        self._target_norm, self._final_norm = normed_by(_final_norm(tensors)), final
        self._given_states = states
        self.model.get_input_embeddings().register_forward_hook(self._projected)

    def _tensor(self, tensors: Mapping[str, TensorSlot], name: str, shape: tuple[int, ...]) -> Any:
        slot = _found(tensors, name)
        if slot.shape != shape:
            raise CheckpointError(f"{slot.path}: expected {name} of shape {list(shape)}, found {list(slot.shape)}")
        return self.torch.from_numpy(slot.map().astype(np.float32))

    def _projected(self, _module: Any, inputs: tuple[Any, ...], embedded: Any) -> Any:
        """What the first layer gets instead of the embeddings [1, tokens, hidden]."""
        torch, states = self.torch, self._given_states
        ids = inputs[0][0].numpy()
        positions = np.arange(len(ids))
        wide = torch.from_numpy(states.table[states.rows(ids, positions)])
        own = torch.from_numpy(states.is_own(ids, positions)).bool()[:, None]
        normed = torch.where(own, self._final_norm(wide), self._target_norm(wide))
        both = torch.cat((self._embedding_norm(embedded[0].float()), self._hidden_norm(normed)), -1)
        return (both @ self._projection.T)[None]


@contextlib.contextmanager
def head_folder(checkpoint: Path) -> Iterator[Path]:
    """A temporary checkpoint whose only layers and final norm are those of the head of ``checkpoint``.

    CheckpointError: ``checkpoint`` has no head, or not all of one; there is no room for the copy.
    """
    tensors = tensors_of(read_shards(checkpoint))
    outer = _outer_names(tensors)
    config = read_json(checkpoint, CONFIG_FILE) or {}
    chosen = _head_tensors(tensors, outer)
    with tempfile.TemporaryDirectory(prefix="hybridge-") as name:
        folder = Path(name)
        try:
            with (folder / SINGLE_FILE).open("xb") as file:
                file.write(safetensors_header({n: (slot.dtype, slot.shape) for n, slot in chosen.items()}))
                for slot in chosen.values():
                    file.write(slot.map().tobytes())
        except OSError as error:
            raise CheckpointError(
                f"{checkpoint}: expected room for a copy of its prediction head in {folder.parent}, found none: "
                f"{error.strerror or error}: set TMPDIR to another folder"
            ) from error
        (folder / CONFIG_FILE).write_text(json.dumps(_head_config(config, tensors, outer)), encoding="utf-8")
        yield folder


def _head_tensors(tensors: Mapping[str, TensorSlot], outer: _OuterNames) -> dict[str, TensorSlot]:
    """The tensors of the temporary checkpoint: the head's layers, and all of the model's outside of its layers."""
    final, root = _final_norm(tensors), _root(tensors)
    chosen = {n: slot for n, slot in tensors.items() if not n.startswith((HEAD, f"{root}layers."))}
    chosen[final] = _found(tensors, outer.names[-1])
    layers = f"{HEAD}layers."
    for name, slot in tensors.items():
        if name.startswith(layers) and name not in outer.names:
            chosen[f"{root}{name.removeprefix(HEAD)}"] = slot
    return chosen


def _head_config(config: Mapping[str, Any], tensors: Mapping[str, TensorSlot], outer: _OuterNames) -> dict[str, Any]:
    """``config`` of a model with the head's layers alone."""
    text = config.get("text_config")
    if text is not None:
        return {**config, "text_config": _head_config(text, tensors, outer)}
    count = _count(tensors)
    if outer is _QWEN:
        experts = f"{HEAD}layers.0.mlp.gate.weight" in tensors
        own = {"layer_types": ["full_attention"], "decoder_sparse_step": 1, "mlp_only_layers": [] if experts else [0]}
    else:
        own = {"hybrid_override_pattern": "".join(_letter(tensors, index) for index in range(count))}
    dropped = ("layers_block_type", "num_nextn_predict_layers", "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    return {n: value for n, value in config.items() if n not in dropped} | own | {"num_hidden_layers": count}


def _letter(tensors: Mapping[str, TensorSlot], layer: int) -> str:
    mixer = f"{HEAD}layers.{layer}.mixer."
    return next((letter for name, letter in _LETTERS.items() if mixer + name in tensors), "M")


def _outer_names(tensors: Mapping[str, TensorSlot]) -> _OuterNames:
    count = _count(tensors)
    if not count:
        raise CheckpointError(
            "expected a checkpoint with a multi-token prediction head (tensors mtp.*), as the artifact has, found "
            "none: verify with the checkpoint that was exported"
        )
    is_nemotron = any(name.startswith(f"{HEAD}layers.0.mixer.") for name in tensors)
    outer = _nemotron(count) if is_nemotron else _QWEN
    for name in outer.names:
        _found(tensors, name)
    return outer


def _count(tensors: Mapping[str, TensorSlot]) -> int:
    """Number of the head's layers."""
    return len({n.split(".")[2] for n in tensors if n.startswith(f"{HEAD}layers.")})


def _root(tensors: Mapping[str, TensorSlot]) -> str:
    """What comes before "layers.N." in the names of the model's layers."""
    found = (re.match(r"(.*?)layers\.\d+\.", name) for name in tensors if not name.startswith(HEAD))
    root = next((match[1] for match in found if match), None)
    if root is None:
        raise CheckpointError("expected layers in the checkpoint, found none: verify with the one that was exported")
    return root


def _final_norm(tensors: Mapping[str, TensorSlot]) -> str:
    root = _root(tensors)
    names = [f"{root}{name}.weight" for name in ("norm", "norm_f")]
    return next((name for name in names if name in tensors), names[0])


def _found(tensors: Mapping[str, TensorSlot], name: str) -> TensorSlot:
    if name not in tensors:
        raise CheckpointError(f"expected the tensor {name} in the checkpoint, found none: fetch the checkpoint again")
    return tensors[name]
