"""The parameters of a mixture of experts, in the layouts that checkpoints use.

Stacked: one tensor for all experts, referenced as it is. Per expert: one tensor for each matrix of each expert (older
checkpoints, and what transformers writes for some families); the graph joins them, no file does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.families.stored_rows import COLUMNS, COLUMNS_IN_TURNS, SEPARATE, TURNS, is_quantized


@dataclass(frozen=True)
class MoeNames:
    """Tensor names of one family, relative to the block; of several, checkpoints use any one.

    ``each_up`` and ``each_down`` are the tensors of one expert, a {} for its number: the gate before what it gates;
    their biases end in .bias instead of .weight. With ``transposed`` they count only where they are quantised.
    ``transposed``: unless they are quantised, ``up`` and ``down`` have their rows on the last axis. There, and in the
    biases, the rows of the gate and of what it gates take turns.
    """

    router: tuple[str, ...]
    up: tuple[str, ...]
    down: tuple[str, ...]
    each_up: tuple[str, ...] = ()
    each_down: tuple[str, ...] = ()
    correction_bias: str = ""
    shared: str = ""
    shared_gate: str = ""
    latent: tuple[str, str] = ("", "")
    router_bias: str = ""
    up_bias: str = ""
    down_bias: str = ""
    transposed: bool = False


QWEN = MoeNames(
    router=("gate.weight",),
    up=("experts.gate_up_proj",),
    down=("experts.down_proj",),
    each_up=("experts.{}.gate_proj.weight", "experts.{}.up_proj.weight"),
    each_down=("experts.{}.down_proj.weight",),
    shared="shared_expert",
    shared_gate="shared_expert_gate.weight",
)
GRANITE = MoeNames(
    router=("block_sparse_moe.router.layer.weight", "block_sparse_moe.router.weight"),
    up=("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"),
    down=("block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj"),
    shared="shared_mlp",
)
NEMOTRON_H = MoeNames(
    router=("gate.weight",),
    up=("experts.up_proj",),
    down=("experts.down_proj",),
    each_up=("experts.{}.up_proj.weight",),
    each_down=("experts.{}.down_proj.weight",),
    correction_bias="gate.e_score_correction_bias",
    shared="shared_experts",
    latent=("fc1_latent_proj", "fc2_latent_proj"),
)
LFM2 = MoeNames(
    router=("gate.weight",),
    up=("experts.gate_up_proj",),
    down=("experts.down_proj",),
    each_up=("experts.{}.w1.weight", "experts.{}.w3.weight"),
    each_down=("experts.{}.w2.weight",),
    correction_bias="expert_bias",
)
KIMI = replace(LFM2, correction_bias="gate.e_score_correction_bias", shared="shared_experts")
LING = replace(QWEN, correction_bias="gate.expert_bias", shared="shared_experts", shared_gate="")
JAMBA = replace(QWEN, router=("router.weight",), shared="", shared_gate="")
GPT_OSS = MoeNames(
    router=("router.weight",),
    up=("experts.gate_up_proj",),
    down=("experts.down_proj",),
    each_up=("experts.{}.gate_proj.weight", "experts.{}.up_proj.weight"),
    each_down=("experts.{}.down_proj.weight",),
    router_bias="router.bias",
    up_bias="experts.gate_up_proj_bias",
    down_bias="experts.down_proj_bias",
    transposed=True,
)
ZAYA = replace(QWEN, shared="", shared_gate="")
MOE_NAMES: Mapping[str, MoeNames] = {
    "qwen": QWEN,
    "granite": GRANITE,
    "nemotron_h": NEMOTRON_H,
    "lfm2": LFM2,
    "jamba": JAMBA,
    "kimi": KIMI,
    "ling": LING,
    "gpt_oss": GPT_OSS,
    "zaya": ZAYA,
}


@dataclass(frozen=True)
class MoeTensor:
    """One parameter: its name in our module, its shape, and its tensor in the checkpoint, or those that it joins.

    ``derived``: how it is computed from its tensor of ``source_shape`` (one of stored_rows.FORMS).
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    dtype: DType | None = None
    joins: bool = False
    derived: str = ""


def moe_tensors(moe: MoeConfig, block: str, hidden: int, stored: Mapping[str, Any]) -> Iterator[MoeTensor]:
    """The parameters of a block whose tensors begin with ``block``, except for the shared expert's.

    ``stored`` are the checkpoint's tensors, by which the layout is chosen.
    """
    names, width = MOE_NAMES[moe.layout], moe.latent_size or hidden
    if moe.router == "mlp":
        yield from _mlp_router_tensors(moe, block, hidden)
    else:
        yield MoeTensor("router.weight", (moe.num_experts, hidden), _any_of(block, names.router, stored))
    if moe.router == "sigmoid" and moe.correction_bias:
        bias = (block + names.correction_bias,)
        yield MoeTensor("router.correction_bias", (moe.num_experts,), bias, DType.FLOAT32)
    if moe.biased:
        yield MoeTensor("router.bias", (moe.num_experts,), (block + names.router_bias,), DType.FLOAT32)
    up, down = (moe.num_experts, moe.up_size, width), (moe.num_experts, width, moe.intermediate_size)
    turns = TURNS if moe.gated else ""
    for name, shape, stacked, each, form, bias_name, bias_form in (
        ("experts.up", up, names.up, names.each_up, COLUMNS_IN_TURNS, names.up_bias, turns),
        ("experts.down", down, names.down, names.each_down, COLUMNS, names.down_bias, ""),
    ):
        sources = _any_of(block, stacked, stored)
        if sources[0] in stored or not _holds_experts(moe, block, each, stored, names.transposed):
            plain = names.transposed and not is_quantized(stored.get(sources[0]))
            yield MoeTensor(name, shape, sources, derived=form if plain else "")
            if moe.biased:
                yield MoeTensor(f"{name}_bias", shape[:2], (block + bias_name,), derived=bias_form)
            continue
        if moe.num_experts * len(each) > len(stored):
            raise CheckpointError(
                f"{block}experts: expected {moe.num_experts} experts by the config, found a checkpoint of "
                f"{len(stored)} tensors: it is incomplete, or its config does not describe it"
            )
        parts = tuple(block + part.format(expert) for expert in range(moe.num_experts) for part in each)
        yield MoeTensor(name, shape, parts, joins=True)
        if moe.biased:
            biases = tuple(f"{part.removesuffix('weight')}bias" for part in parts)
            yield MoeTensor(f"{name}_bias", shape[:2], biases, joins=True, derived=SEPARATE)
    if moe.shared_gate:
        yield MoeTensor("shared_gate.weight", (1, hidden), (block + names.shared_gate,))
    if moe.latent_size is not None:
        yield from _latent_tensors(moe, block, hidden, names)


def _mlp_router_tensors(moe: MoeConfig, block: str, hidden: int) -> Iterator[MoeTensor]:
    assert moe.router_size is not None
    size, classes = moe.router_size, moe.num_experts + 1
    shapes: dict[str, tuple[int, ...]] = {"down_proj.weight": (size, hidden), "down_proj.bias": (size,)}
    if moe.router_adds:
        shapes["router_states_scale"] = (size,)
    shapes["router_mlp.norm.weight"] = (size,)
    for name in ("fc1", "fc2"):
        shapes |= {f"router_mlp.{name}.weight": (size, size), f"router_mlp.{name}.bias": (size,)}
    shapes["router_mlp.out_proj.weight"] = (classes, size)
    for name, shape in shapes.items():
        yield MoeTensor(f"router.{name}", shape, (f"{block}gate.{name}",))
    yield MoeTensor("router.balancing_biases", (classes,), (f"{block}gate.balancing_biases",), DType.FLOAT32)


def _holds_experts(
    moe: MoeConfig, block: str, each: tuple[str, ...], stored: Mapping[str, object], quantized: bool
) -> bool:
    """Whether the checkpoint has a tensor of some expert; only three are checked, because there may be too many.

    An incomplete set is still that layout, so that the missing tensor is named. ``quantized``: tensors in full
    precision do not count.
    """
    names = [block + part.format(expert) for expert in (0, 1, moe.num_experts - 1) for part in each]
    return any(is_quantized(stored[name]) if quantized else True for name in names if name in stored)


def _latent_tensors(moe: MoeConfig, block: str, hidden: int, names: MoeNames) -> Iterator[MoeTensor]:
    assert moe.latent_size is not None
    for ours, theirs, rows, columns in (
        ("latent_in", names.latent[0], moe.latent_size, hidden),
        ("latent_out", names.latent[1], hidden, moe.latent_size),
    ):
        yield MoeTensor(f"{ours}.weight", (rows, columns), (f"{block}{theirs}.weight",))
        if moe.latent_bias:
            yield MoeTensor(f"{ours}.bias", (rows,), (f"{block}{theirs}.bias",))


def _any_of(block: str, names: tuple[str, ...], stored: Mapping[str, object]) -> tuple[str, ...]:
    """The one of ``names`` that the checkpoint holds, else the first."""
    return (next((block + name for name in names if block + name in stored), block + names[0]),)
