"""With any quantization_config, weights are read or refused with a typed error of one line."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.checkpoint.quantized.reader import logical_tensors, without_quantization
from hybridge.exporter.checkpoint.quantized.scale_check import check_scales
from hybridge.exporter.checkpoint.shards import read_shards, tensors_of
from tests.exporter.checkpoint.test_quantized import FORMATS, MODULE, matrix, meaning, written
from tests.exporter.checkpoint.test_stacked_experts import CASES, values
from tests.support.fuzzing import RandomInput, fuzzed


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each format, by its name."""
    folder = tmp_path_factory.mktemp("formats")
    made: dict[str, Path] = {}
    for name, (form, shape) in FORMATS.items():
        made[name] = written(folder / str(len(made)), form.pack(MODULE, matrix(*shape))[0], form.config)
    for name, (pack, config, weight, sizes) in CASES.items():
        made[f"experts, {name}"] = written(folder / str(len(made)), pack(weight, values(sizes))[0], config)
    for checkpoint in made.values():
        open_checkpoint(checkpoint)
    return made


@fuzzed(2000)
def test_any_quantization_config_is_read_or_an_error(checkpoints: dict[str, Path], random: RandomInput) -> None:
    folder = checkpoints[random.choice(list(checkpoints))]
    tensors = dict(tensors_of(read_shards(folder)))
    stored = json.loads((folder / "config.json").read_text())["quantization_config"]
    config = {"quantization_config": random.damaged(stored)}
    if random.chance(0.3):  # a tensor of another shape or type, or none
        key = random.choice(list(tensors))
        slot = tensors.pop(key)
        if random.chance(0.8):
            tensors[key] = _other(slot, random)
    try:
        found = logical_tensors(without_quantization(config)[1], tensors)
    except HybridgeError as error:
        assert "\n" not in str(error)
        return
    for weight in found.quantized.values():
        assert found.tensors[weight.name].shape == weight.model_shape
        meaning(weight)


def _other(slot: TensorSlot, random: RandomInput) -> TensorSlot:
    """A tensor in the bytes of ``slot``, or in the first of them."""
    rows, *rest = slot.shape or (1,)
    dtype = random.choice([dtype for dtype in DType if dtype.nbytes(2) == slot.dtype.nbytes(2)])
    shapes = [
        slot.shape[::-1],
        (*slot.shape, 1),
        (prod(slot.shape),),
        (rows - 1, *rest),
        (0, *rest),
        (rows, 0),
        (1,),
        (),
    ]
    shape = random.choice(shapes)
    return replace(slot, shape=shape, dtype=dtype, nbytes=dtype.nbytes(prod(shape)))


@fuzzed(300)
def test_any_damaged_file_is_read_or_an_error(
    checkpoints: dict[str, Path], random: RandomInput, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    path = shutil.copytree(checkpoints[random.choice(list(checkpoints))], folder) / "model.safetensors"
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    if random.chance(0.3):
        damaged = raw[: random.randrange(len(raw))]
    else:
        header = random.damaged_json(json.loads(raw[8:start]))
        damaged = len(header).to_bytes(8, "little") + header + raw[start:]
    path.write_bytes(damaged)
    try:
        weights = open_checkpoint(folder).quantized.values()
        check_scales(weights, threading.Event())
    except HybridgeError as error:
        assert "\n" not in str(error)
        return
    for weight in weights:
        meaning(weight)
