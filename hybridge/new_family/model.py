"""The tensors of one decoder layer, from a model that transformers builds without storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.errors import UnsupportedError

LAYERS = "model.layers."


@dataclass(frozen=True)
class ModelTensors:
    """tensors: name -> shape of a model of two layers; config: transformers' defaults, as it saves them.

    spellings: field of the config -> the other name under which transformers keeps it.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    spellings: Mapping[str, str]

    @property
    def layer(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the first layer's tensors, without its prefix."""
        first = f"{LAYERS}0."
        return {name.removeprefix(first): shape for name, shape in self.tensors.items() if name.startswith(first)}

    def sources(self, parent: str) -> tuple[str, ...]:
        """The modules of the first layer whose weights are directly in ``parent``."""
        names = [name.removeprefix(parent) for name in self.layer if name.startswith(parent)]
        return tuple(dict.fromkeys(name.partition(".")[0] for name in names if name.count(".") == 1))


def model_tensors(model_type: str, config_class: Any) -> ModelTensors:
    """UnsupportedError: transformers has no causal language model of this type in the usual layout."""
    import json

    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config_class(num_hidden_layers=2))
    except Exception as error:  # transformers raises a different error for each
        why = " ".join(str(error).split())[:200]
        raise UnsupportedError(
            f"{model_type}: expected a type whose causal language model transformers can build, found none ({why})"
        ) from error
    found = ModelTensors(
        json.loads(config_class().to_json_string(use_diff=False)),
        {name: tuple(parameter.shape) for name, parameter in model.named_parameters()},
        dict(config_class.attribute_map),
    )
    if not any(name.startswith("self_attn.") for name in found.layer):
        raise UnsupportedError(
            f"{model_type}: expected attention as {LAYERS}N.self_attn in every layer, found "
            f"{', '.join(list(found.tensors)[:3])}: describe this family by hand"
        )
    return found
