"""Make a checkpoint of a model's real size, with its real tensor names, that takes no space on the disk.

Its weights are zeros that the file system does not store (sparse files), so that an export of any size can be tried. A
scan or a hash of such weights still reads every byte.

    python tools/sparse_checkpoint.py Qwen3-0.6B /tmp/qwen3
    python tools/sparse_checkpoint.py path/to/config.json /tmp/model
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # the packages are next to this folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.safetensors_header import safetensors_header
from hybridge.exporter.checkpoint.quantized.reader import MODELOPT_FILE
from hybridge.exporter.checkpoint.quantized.targets import matches
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.families.moe_parameters import MOE_NAMES
from hybridge.exporter.families.parameters import Parameter, declared
from hybridge.exporter.families.registry import decoder_config
from hybridge.exporter.families.text_models import TEXT_MODELS
from tools.published_configs import PUBLISHED

# The size of published shards.
SHARD_BYTES = 5_000_000_000
ROOTS = dict.fromkeys(("falcon_mamba", "mamba", "mamba2", "nemotron_h"), "backbone.")
# Families whose checkpoints hold one tensor for each matrix of each expert.
EXPERT_BY_EXPERT = (
    "bailing_hybrid",
    "jamba",
    "kimi_linear",
    "lfm2_moe",
    "minimax",
    "mixtral",
    "qwen3_moe",
    "qwen3_next",
    "nemotron_h",
)
FLOAT32 = ("A_log", ".D", "dt_bias", "e_score_correction_bias", "expert_bias", "balancing_biases")

Tensors = dict[str, tuple[DType, tuple[int, ...]]]


def write_sparse_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    shard_bytes: int = SHARD_BYTES,
    quantization: Mapping[str, Any] | None = None,
) -> int:
    """Write the new ``folder`` for ``config``, the object of a config.json; returns the size of its weights.

    quantization: the object of a hf_quant_config.json, by which weights are stored. Their scales are zeros, too: export
    without a scan.
    HybridgeError: no supported family. OSError: the folder exists, or the file system is out of names.
    """
    tensors = tensors_of_config(config)
    if quantization is not None:
        tensors, quantization = quantized(tensors, quantization)
    if config.get("model_type") == "gpt_oss":
        tensors, config = _in_mxfp4(tensors), {**config, "quantization_config": {"quant_method": "mxfp4"}}
    folder.mkdir(parents=True)
    if quantization is not None:
        (folder / MODELOPT_FILE).write_text(json.dumps(quantization, indent=2), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", **config}, indent=2), encoding="utf-8")
    shards = list(_shards(tensors, shard_bytes))
    names: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_sparse(folder / name, shard)
        names |= dict.fromkeys(shard, name)
    size = sum(_nbytes(*tensor) for tensor in tensors.values())
    if len(shards) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return size


def tensors_of_config(config: Mapping[str, Any]) -> Tensors:
    """Every tensor of a published checkpoint with ``config``: bfloat16, but float32 where publishers keep it."""
    decoder = decoder_config(config)
    root = ROOTS.get(decoder.model_type, "model.")
    if config.get("model_type") in TEXT_MODELS:
        root = "model.language_model."
    held = dict(_expert_names(decoder, root)) if decoder.model_type in EXPERT_BY_EXPERT else {}
    tensors: Tensors = {}
    for parameter in declared(decoder, root, held):
        for name, shape in _stored(parameter):
            tensors[name] = (DType.FLOAT32 if name.endswith(FLOAT32) else DType.BFLOAT16, shape)
    return tensors


def quantized(tensors: Tensors, config: Mapping[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """``tensors`` as ModelOpt stores them by ``config``, a hf_quant_config.json; and that, complete.

    The layers of MIXED_PRECISION that a list leaves out are quantised as those of the same name in other layers.
    """
    settings = dict(config["quantization"])
    excluded = (*settings.get("exclude_modules", ()), "lm_head", "*embed*", "*.gate", "*conv1d")
    listed = settings.get("quantized_layers", {})
    alike = {_without_numbers(module): entry for module, entry in listed.items()}
    result: Tensors = {}
    layers: dict[str, Any] = {}
    for name, (dtype, shape) in tensors.items():
        module = name.removesuffix(".weight")
        entry = alike.get(_without_numbers(module)) if listed else settings
        if len(shape) != 2 or module == name or entry is None or matches(module, excluded):
            result[name] = dtype, shape
            continue
        layers[module] = entry
        result |= modelopt_tensors(name, shape, entry["quant_algo"])
    if listed:
        settings["quantized_layers"] = layers
    return result, {**config, "quantization": settings}


def _in_mxfp4(tensors: Tensors) -> Tensors:
    """``tensors`` with the experts of gpt-oss, which have their rows on the last axis, in blocks of 32 columns."""
    result: Tensors = {}
    for name, (dtype, shape) in tensors.items():
        if len(shape) == 3:
            experts, columns, rows = shape
            result[f"{name}_blocks"] = DType.UINT8, (experts, rows, columns // 32, 16)
            result[f"{name}_scales"] = DType.UINT8, (experts, rows, columns // 32)
        else:
            result[name] = dtype, shape
    return result


def _without_numbers(module: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in module.split("."))


def modelopt_tensors(name: str, shape: tuple[int, ...], algorithm: str) -> Tensors:
    """The matrix ``name`` [rows, columns] in a format of ModelOpt: "FP8", or one of 4 bits with two scales."""
    rows, columns = shape
    if algorithm == "FP8":
        return {
            name: (DType.FLOAT8E4M3FN, shape),
            **dict.fromkeys(_named(name, "weight_scale", "input_scale"), _SCALAR),
        }
    return {
        name: (DType.UINT8, (rows, columns // 2)),
        f"{name}_scale": (DType.FLOAT8E4M3FN, (rows, columns // 16)),
        **dict.fromkeys(_named(name, "weight_scale_2", "input_scale"), _SCALAR),
    }


_SCALAR: tuple[DType, tuple[int, ...]] = (DType.FLOAT32, ())


def _named(weight: str, *suffixes: str) -> list[str]:
    return [f"{weight.removesuffix('weight')}{suffix}" for suffix in suffixes]


def _expert_names(decoder: DecoderConfig, root: str) -> Iterator[tuple[str, None]]:
    """The names of all experts' tensors, by which their layout is known."""
    for index, layer in enumerate(decoder.layers):
        for block in layer.blocks:
            if isinstance(block.body, MoeConfig):
                names = MOE_NAMES[block.body.layout]
                for expert in range(block.body.num_experts):
                    for part in (*names.each_up, *names.each_down):
                        yield f"{root}layers.{index}.{block.source}.{part.format(expert)}", None


def _stored(parameter: Parameter) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in parameter.sources:
        yield name, parameter.source_shape


def _shards(tensors: Tensors, shard_bytes: int) -> Iterator[Tensors]:
    shard: Tensors = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + _nbytes(*tensor) > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += _nbytes(*tensor)
    yield shard


def _write_sparse(path: Path, tensors: Tensors) -> None:
    header = safetensors_header(tensors)
    with path.open("xb") as file:
        file.write(header)
    os.truncate(path, len(header) + sum(_nbytes(*tensor) for tensor in tensors.values()))


def _nbytes(dtype: DType, shape: tuple[int, ...]) -> int:
    return dtype.nbytes(math.prod(shape))


def main() -> int:
    """Exit code 0, or 2 when the checkpoint cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help=f"a config.json, or one of {', '.join(PUBLISHED)}")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the new checkpoint")
    parser.add_argument("--quantization", metavar="FILE", type=Path, help="a hf_quant_config.json of NVFP4 or FP8")
    arguments = parser.parse_args()
    try:
        config = PUBLISHED.get(arguments.model) or json.loads(Path(arguments.model).read_text(encoding="utf-8"))
        path = arguments.quantization
        quantization = None if path is None else json.loads(path.read_text(encoding="utf-8"))
        size = write_sparse_checkpoint(arguments.folder, config, quantization=quantization)
    except (HybridgeError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    stored = sum(512 * path.stat().st_blocks for path in arguments.folder.iterdir())
    print(f"{arguments.folder}: {size / 1e9:.1f} GB of weights in {stored / 1e6:.1f} MB on disk")
    return 0


if __name__ == "__main__":
    sys.exit(main())
