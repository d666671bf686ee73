"""The tensors of each kind of decoder layer, from a model that transformers builds without storage."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.errors import UnsupportedError
from hybridge.new_family.kinds import kind_of

LAYERS = "model.layers."
# Names of layer_types.
ATTENTION = ("full_attention", "sliding_attention", "attention")
_LAYER = re.compile(re.escape(LAYERS) + r"(\d+)\.(.*)")


@dataclass(frozen=True)
class ModelTensors:
    """tensors: name -> shape of transformers' default model; config: its config, as transformers saves it.

    spellings: field of the config -> the other name under which transformers keeps it. divided: whether the config
    class refuses a hidden size that the heads do not divide. interleaved: whether pairs of neighbours are rotated.
    biases: the tensors of layer 0 that end in .bias, without its prefix, where every switch of biases is on.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    spellings: Mapping[str, str]
    divided: bool
    interleaved: bool
    biases: frozenset[str]

    @property
    def layers(self) -> list[dict[str, tuple[int, ...]]]:
        """Names and shapes of each layer's tensors, without its prefix."""
        found: dict[int, dict[str, tuple[int, ...]]] = {}
        for name, shape in self.tensors.items():
            if match := _LAYER.fullmatch(name):
                found.setdefault(int(match[1]), {})[match[2]] = shape
        return [found[index] for index in sorted(found)]

    @property
    def first(self) -> int:
        """The number of the first layer with attention; -1 without one."""
        return next((number for number, layer in enumerate(self.layers) if self._attends(number, layer)), -1)

    @property
    def layer(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors of the first layer with attention."""
        return self.layers[self.first]

    @property
    def other_layers(self) -> dict[int, dict[str, tuple[int, ...]]]:
        """Of each kind of layer without attention the first one's number, names and shapes of its tensors."""
        found: dict[int, dict[str, tuple[int, ...]]] = {}
        for number, layer in enumerate(self.layers):
            if not self._attends(number, layer) and layer not in found.values():
                found[number] = layer
        return found

    def _attends(self, number: int, layer: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the module self_attn of a layer is attention: linear attention may have the same name."""
        kinds = self.config.get("layer_types") or ()
        other = number < len(kinds) and kinds[number] not in ATTENTION
        return not other and any(name.startswith("self_attn.") for name in layer)

    def sources(self, parent: str) -> tuple[str, ...]:
        """The modules of the first layer with attention whose weights are directly in ``parent``."""
        names = [name.removeprefix(parent) for name in self.layer if name.startswith(parent)]
        return tuple(dict.fromkeys(name.partition(".")[0] for name in names if name.count(".") == 1))


def model_tensors(model_type: str, config_class: Any) -> ModelTensors:
    """UnsupportedError: transformers has no causal language model of this type in the usual layout."""
    import json

    config = config_class()
    if getattr(config, "head_dim", 0) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    try:
        model = _built(config)
    except Exception as error:  # transformers raises a different error for each
        why = " ".join(str(error).split())[:200]
        raise UnsupportedError(
            f"{model_type}: expected a type whose causal language model transformers can build, found none ({why})"
        ) from error
    found = ModelTensors(
        json.loads(config_class().to_json_string(use_diff=False)),
        {name: tuple(parameter.shape) for name, parameter in model.named_parameters()},
        dict(config_class.attribute_map),
        _refuses(config_class, hidden_size=8 * getattr(config, "num_attention_heads", 1) + 1),
        _rotates_neighbours(model),
        _biases(config_class),
    )
    if found.first < 0:
        raise UnsupportedError(
            f"{model_type}: expected attention as {LAYERS}N.self_attn in some layers, found "
            f"{', '.join(list(found.tensors)[:3])}: describe this family by hand"
        )
    return found


def _built(config: Any) -> Any:
    """The model of ``config``, without storage."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _rotates_neighbours(model: Any) -> bool:
    """Whether rotate_half, as the model's file defines it, pairs neighbours instead of elements of two halves."""
    import torch

    rotate = getattr(sys.modules[type(model).__module__], "rotate_half", None)
    try:
        return rotate is not None and rotate(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [-2.0, 1.0, -4.0, 3.0]
    except Exception:  # other arguments than usual
        return False


def _biases(config_class: Any) -> frozenset[str]:
    """Names of the biases of layer 0 where every switch of biases is on."""
    own = [field for field in dataclasses.fields(config_class) if field.name.endswith("bias")]
    switches = {field.name: True for field in own if kind_of(str(field.type)).startswith("bool")}
    try:
        names = [name for name, _ in _built(config_class(**switches)).named_parameters()]
    except Exception:  # transformers raises a different error for each
        return frozenset()
    first = f"{LAYERS}0."
    return frozenset(name.removeprefix(first) for name in names if name.startswith(first) and name.endswith(".bias"))


def _refuses(config_class: Any, **fields: Any) -> bool:
    try:
        config_class(**fields)
    except Exception:  # transformers raises a different error for each
        return True
    return False
