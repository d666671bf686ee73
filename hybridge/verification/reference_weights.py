"""Weights of the reference: mapped in the types in which the checkpoint stores them, float32 one layer at a time.

So the reference takes the memory of the checkpoint's files and of one layer, not of the model in float32.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.exporter.checkpoint.shards import read_shards, tensors_of

# Many tensors' names end in one of these: the last two parts of the name tell them apart.
_COMMON_PARTS = ("weight", "bias")


@dataclass(frozen=True)
class StoredTypes:
    """``main``: the floating-point type of most bytes. ``wide``: ends of the names of tensors that it cannot hold."""

    main: DType
    wide: tuple[str, ...]


def stored_types(checkpoint: Path) -> StoredTypes:
    """The types of the safetensors files in ``checkpoint``; CheckpointError if there are none or they are damaged.

    Where matrices have several types (a stacked expert may come from several tensors), all are float32.
    """
    floats = [t for t in tensors_of(read_shards(checkpoint)).values() if t.dtype in _FLOATS]
    sizes: Counter[DType] = Counter()
    for tensor in floats:
        sizes[tensor.dtype] += tensor.nbytes
    main = sizes.most_common(1)[0][0] if sizes else DType.FLOAT32
    others = [t for t in floats if t.dtype is not main]
    if main is DType.FLOAT32 or any(len(t.shape) > 1 for t in others):
        return StoredTypes(DType.FLOAT32, ())
    return StoredTypes(main, tuple(sorted({_end(t.name) for t in others})))


_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def _end(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[-2:] if parts[-1] in _COMMON_PARTS else parts[-1:])


def generating_model(config: Any, names: tuple[str, ...]) -> Any:
    """transformers' AutoModelForCausalLM, or for a ``config`` of text and images AutoModelForImageTextToText.

    It loads parameters whose names end in one of ``names`` in float32.

    It has its own classes, so that nothing changes for other users of transformers in this process.
    """
    import torch
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    if type(config) not in auto._model_mapping:
        auto = transformers.AutoModelForImageTextToText
    if not names:
        return auto

    class Classes:
        """Config class -> a subclass of the model class that transformers has for it."""

        def __contains__(self, config_class: Any) -> bool:
            return config_class in auto._model_mapping

        def __iter__(self) -> Any:
            return iter(auto._model_mapping)

        def __getitem__(self, config_class: Any) -> Any:
            kind = auto._model_mapping[config_class]

            def plan(model: Any, dtype: Any) -> dict[str, Any]:
                return {**kind._get_dtype_plan(model, dtype), **dict.fromkeys(names, torch.float32)}

            # The name and place of the class: transformers looks some properties of models up by them.
            return type(kind.__name__, (kind,), {"_get_dtype_plan": plan, "__module__": kind.__module__})

    return type(auto.__name__, (auto,), {"_model_mapping": Classes()})


def widen_in_turn(model: Any, layers: Any, device: str = "cpu") -> None:
    """Let ``model`` compute in float32 on ``device``, each of ``layers`` with parameters that are wide, and there, only
    while it computes.

    Parameters outside of layers stay wide: some models round their input to the type of the final norm or of the head.
    Embeddings are looked up as they are stored, and the result is widened.
    """
    import torch

    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)
        if buffer.is_floating_point():
            buffer.data = buffer.data.float()
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    for layer in layers:
        _widen_during_forward(layer, list(layer.parameters()), device)
    lookups = [module for module in model.modules() if type(module) is torch.nn.Embedding]
    for module in model.modules():
        if module not in lookups:
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in inside:
                    parameter.data = parameter.data.to(device).float()
    for module in lookups:
        if device != "cpu":
            module.weight.data = module.weight.data.to(device)
        module.register_forward_hook(lambda _module, _inputs, output: output.float())


def _widen_during_forward(module: Any, parameters: list[Any], device: str) -> None:
    import torch

    narrow: list[Any] = []

    def widen(_module: Any, _inputs: Any) -> None:
        narrow.extend(parameter.data for parameter in parameters)
        for parameter in parameters:
            parameter.data = parameter.data.to(device)
            if parameter.dtype in (torch.float16, torch.bfloat16):
                parameter.data = parameter.data.float()

    def restore(_module: Any, _inputs: Any, _output: Any) -> None:
        for parameter, data in zip(parameters, narrow, strict=True):
            parameter.data = data
        narrow.clear()

    module.register_forward_pre_hook(widen)
    module.register_forward_hook(restore, always_call=True)
