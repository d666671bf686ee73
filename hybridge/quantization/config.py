"""quantization_config of a checkpoint in the format of compressed-tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hybridge.quantization.scheme import Scheme

_LINEAR = "Linear"
# vLLM's module of an LM head is no "Linear": a head is quantised there only if a target names it.
_HEAD, _HEADS = "lm_head", "re:.*lm_head$"


def quantization_config(modules: Mapping[str, Scheme], ignored: list[str], default: Scheme) -> dict[str, Any]:
    """``modules`` are quantised, the linear layers ``ignored`` are not.

    default: the scheme of the group that stands for all linear layers; modules of others are named.
    """
    # The library takes the first group that matches a module.
    others = dict.fromkeys(scheme for scheme in modules.values() if scheme != default)
    targets = {scheme: [name for name, own in modules.items() if own == scheme] for scheme in others}
    heads = [_HEADS] if any(_is_head(name) and own == default for name, own in modules.items()) else []
    schemes = {**targets, default: [_LINEAR, *heads]}
    formats = {scheme.format for scheme in schemes}
    return {
        "quant_method": "compressed-tensors",
        "format": default.format if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": {
            f"group_{i}": _group(scheme, [_target(name) for name in names])
            for i, (scheme, names) in enumerate(schemes.items())
        },
        "ignore": [_target(name) for name in ignored],
    }


def _is_head(name: str) -> bool:
    return name.rpartition(".")[2] == _HEAD


def _target(name: str) -> str:
    """A target for the module ``name``: transformers uses ``model`` for the ``backbone`` of older checkpoints."""
    rest = name.removeprefix("backbone.")
    return name if rest == name else f"re:(model|backbone)\\.{re.escape(rest)}$"


def _group(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
    weights = {
        "symmetric": True,
        "dynamic": False,
        "actorder": None,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
        **scheme.weights_config(),
    }
    nothing = {"input_activations": None, "output_activations": None}
    return {"targets": targets, "weights": weights, **nothing, "format": scheme.format}
