"""An independent reader of checkpoints in the format of compressed-tensors: what their weights mean, in float32."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the shards in ``folder``."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (not a dict)
    return found


def weights_of(config: dict[str, Any], module: str) -> dict[str, Any]:
    """The scheme of ``module``: of the first group that names it, else of that for all linear layers."""
    groups = config["config_groups"].values()
    named = [g for g in groups if matches(module, g["targets"])]
    (group,) = named or [g for g in groups if "Linear" in g["targets"]]
    assert group["input_activations"] is None and not matches(module, config["ignore"])
    return {**group["weights"], "format": group["format"]}


def integers(words: np.ndarray, bits: int, columns: int) -> np.ndarray:
    """Signed integers [rows, columns] from int32 words, bit by bit from the lowest."""
    flat = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    values = flat.reshape(len(words), -1, bits).astype(np.int64) @ (1 << np.arange(bits))
    return values[:, :columns] - (1 << (bits - 1))


def dequantized(folder: Path) -> dict[str, torch.Tensor]:
    """Tensors of the checkpoint before it was quantised, each quantised weight as float32."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors" and config["quantization_status"] == "compressed"
    tensors = stored_tensors(folder)
    found: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        match = re.fullmatch(r"(.+)\.(weight|weight_packed)", name)
        if match and f"{match[1]}.weight_scale" in tensors:
            own = {part: tensors[f"{match[1]}.{part}"] for part in PARTS if f"{match[1]}.{part}" in tensors}
            found[f"{match[1]}.weight"] = torch.from_numpy(_floats(weights_of(config, match[1]), value, own))
        elif not name.endswith(PARTS):
            found[name] = value
    return found


PARTS = ("weight_scale", "weight_shape", "weight_global_scale", "weight_zero_point")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def matches(module: str, targets: list[str]) -> bool:
    """Whether a target is the module's name, or an expression that matches it as transformers names it, too."""
    names = {module, module.replace("backbone.", "model.", 1)}
    found = [each for each in targets if each in names or (each[:3] == "re:" and re.match(each[3:], module))]
    assert all(each in names or all(re.match(each[3:], name) for name in names) for each in found)
    return bool(found)


def _floats(scheme: dict[str, Any], value: torch.Tensor, own: dict[str, torch.Tensor]) -> np.ndarray:
    """A weight of one format."""
    scales, group = own["weight_scale"].float().numpy(), scheme["group_size"]
    if scheme["format"] == "pack-quantized":
        rows, columns = own["weight_shape"].tolist()
        numbers = integers(value.numpy(), scheme["num_bits"], columns).astype(np.float32)
        assert numbers.shape == (rows, columns) and (scheme["strategy"] == "channel") == (group is None)
        assert scheme["symmetric"] == ("weight_zero_point" not in own)
        if not scheme["symmetric"]:  # packed along the rows
            zeros = integers(np.ascontiguousarray(own["weight_zero_point"].numpy().T), scheme["num_bits"], rows).T
            numbers -= zeros.repeat(group or columns, 1)
    elif scheme["format"] == "float-quantized":
        assert value.dtype == torch.float8_e4m3fn and scheme["num_bits"] == 8 and group is None
        numbers = value.float().numpy()
    else:
        bits = value.numpy()
        nibbles = np.stack([bits & 15, bits >> 4], 2).reshape(len(bits), -1)
        numbers = np.where(nibbles & 8, -E2M1[nibbles & 7], E2M1[nibbles & 7])
        if scheme["format"] == "nvfp4-pack-quantized":
            assert own["weight_scale"].dtype == torch.float8_e4m3fn and group == 16
            scales = scales / own["weight_global_scale"].numpy()
        else:
            assert (
                scheme["format"] == "mxfp4-pack-quantized" and own["weight_scale"].dtype == torch.uint8 and group == 32
            )
            scales = (2.0 ** (scales.astype(np.float64) - 127)).astype(np.float32)
    return numbers * scales.repeat(group or numbers.shape[1], 1)


def write_dequantized(folder: Path, target: Path) -> Path:
    """The plain checkpoint that ``folder`` means."""
    target.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors" and path.name != "model.safetensors.index.json":
            shutil.copy(path, target)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    save_file(
        {k: v.contiguous() for k, v in dequantized(folder).items()}, target / "model.safetensors", {"format": "pt"}
    )
    return target
