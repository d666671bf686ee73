"""The multi-token prediction head that a checkpoint may have beside its layers. No torch.

A head is a small decoder of its own. Its position i gets the embedding of token i + 1 of the sequence and what the
model made of the tokens up to i, each normalised, side by side through one matrix. A layer, a norm and the model's own
output matrix follow, which give token i + 2. Embedding and output matrix are the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from artifact.errors import UnsupportedError
from artifact.safetensors_file import TensorSlot
from exporter.models.decoder_config import BlockConfig, BodyConfig, DecoderConfig, LayerConfig, MlpConfig, MoeConfig
from exporter.models.parameters import LM_HEAD, Parameter, check_sources, declared

ROOT = "mtp."


@dataclass(frozen=True)
class MtpHead:
    """``decoder``: the head's own layers. parameters: those of ``exporter.layers.mtp_decoder.MtpDecoder``."""

    decoder: DecoderConfig
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class _Names:
    """Of tensors after ROOT; ``final_norm`` as DecoderConfig.final_norm_source."""

    projection: str
    embedding_norm: str
    hidden_norm: str
    final_norm: str


_QWEN = _Names("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")


def has_mtp_head(tensors: Mapping[str, TensorSlot]) -> bool:
    """Whether the checkpoint holds tensors of a head, of any kind."""
    return any(name.startswith(ROOT) for name in tensors)


def mtp_head(decoder: DecoderConfig, parameters: tuple[Parameter, ...], tensors: Mapping[str, TensorSlot]) -> MtpHead:
    """The head of the model ``decoder`` with ``parameters``.

    UnsupportedError: a head of another kind. CheckpointError: one of its tensors is missing or has another shape.
    """
    own, names = _layers(decoder, tensors)
    config = replace(decoder, layers=own, final_norm_source=names.final_norm, notes=())
    hidden = decoder.hidden_size
    shared = {p.name: p for p in parameters if p.name in ("embedding.weight", LM_HEAD)}
    found = [shared.get(p.name, p) for p in declared(config, ROOT, tensors)]
    target_norm = next(p for p in parameters if p.name == "final_norm.weight")
    found.append(replace(target_norm, name="target_norm.weight"))
    for name, source, shape in (
        ("projection.weight", names.projection, (hidden, 2 * hidden)),
        ("embedding_norm.weight", names.embedding_norm, (hidden,)),
        ("hidden_norm.weight", names.hidden_norm, (hidden,)),
    ):
        tensor = f"{ROOT}{source}.weight"
        found.append(Parameter(name, tensor, shape, tensor))
    check_sources(found, tensors)
    return MtpHead(config, tuple(found))


def _layers(decoder: DecoderConfig, tensors: Mapping[str, TensorSlot]) -> tuple[tuple[LayerConfig, ...], _Names]:
    if not decoder.model_type.startswith(("qwen3_next", "qwen3_5")):
        raise UnsupportedError(
            f"expected a multi-token prediction head of qwen3_next or qwen3_5, found one of {decoder.model_type}"
        )
    if f"{ROOT}layers.1.input_layernorm.weight" in tensors:
        raise UnsupportedError("expected a multi-token prediction head of one layer, found several")
    attention = decoder.attention_bodies[0]
    blocks = (
        BlockConfig("input_layernorm", "self_attn", attention),
        BlockConfig("post_attention_layernorm", "mlp", _feed_forward(decoder, tensors)),
    )
    return (LayerConfig(blocks),), _QWEN


def _feed_forward(decoder: DecoderConfig, tensors: Mapping[str, TensorSlot]) -> BodyConfig:
    """Experts where the head has a router, else the model's MLP."""
    kind = MoeConfig if f"{ROOT}layers.0.mlp.gate.weight" in tensors else MlpConfig
    bodies = (block.body for layer in decoder.layers for block in layer.blocks)
    found = next((body for body in bodies if isinstance(body, kind)), None)
    if found is None:
        raise UnsupportedError(
            f"expected a multi-token prediction head with a feed-forward layer like the model's, found {kind.__name__}"
        )
    return found
