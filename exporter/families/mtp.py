"""The multi-token prediction head that a checkpoint may have after its layers. No torch.

A head is a small decoder. Its position i gets the embedding of token i + 1 of the sequence and what the
model made of the tokens up to i, each normalised, side by side through one matrix. A layer, a norm and the model's own
output matrix follow, which give token i + 2. Embedding and output matrix are the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.decoder_config import BlockConfig, BodyConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.parameters import LM_HEAD, Parameter, check_sources, declared

ROOT = "mtp."


@dataclass(frozen=True)
class MtpHead:
    """``decoder``: the head's own layers. parameters: those of ``hybridge.exporter.layers.mtp_decoder.MtpDecoder``."""

    decoder: DecoderConfig
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class _Names:
    """Names of tensors, without ROOT; ``final_norm`` as DecoderConfig.final_norm_source."""

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
    if decoder.model_type == "nemotron_h":
        return _nemotron_layers(decoder, tensors)
    if not decoder.model_type.startswith(("qwen3_next", "qwen3_5")):
        raise UnsupportedError(
            "expected a multi-token prediction head of qwen3_next, qwen3_5 or nemotron_h, found one of "
            f"{decoder.model_type}"
        )
    if f"{ROOT}layers.1.input_layernorm.weight" in tensors:
        raise UnsupportedError("expected a multi-token prediction head of one layer, found several")
    kind = MoeConfig if f"{ROOT}layers.0.mlp.gate.weight" in tensors else MlpConfig
    blocks = (
        BlockConfig("input_layernorm", "self_attn", _body_like(AttentionConfig, decoder)),
        BlockConfig("post_attention_layernorm", "mlp", _body_like(kind, decoder)),
    )
    return (LayerConfig(blocks),), _QWEN


def _nemotron_layers(
    decoder: DecoderConfig, tensors: Mapping[str, TensorSlot]
) -> tuple[tuple[LayerConfig, ...], _Names]:
    """One mixer a layer, of the kinds and sizes of the model's. The first layer holds the matrix in front, the last one
    the norm behind."""
    count = 0
    while f"{ROOT}layers.{count}.norm.weight" in tensors:
        count += 1
    if f"{ROOT}layers.0.eh_proj.weight" not in tensors or any(
        f"{ROOT}layers.{index}.eh_proj.weight" in tensors for index in range(1, count)
    ):
        raise UnsupportedError(
            "expected one multi-token prediction head, whose first layer alone has an eh_proj, found none or several"
        )
    layers = []
    for index in range(count):
        kinds = (kind for name, kind in _MIXERS.items() if f"{ROOT}layers.{index}.mixer.{name}" in tensors)
        kind = next(kinds, None)
        if kind is None:
            raise UnsupportedError(
                "expected attention, an MLP or experts in every layer of a multi-token prediction head, found another "
                f"mixer in layer {index}, as one with a recurrent state"
            )
        layers.append(LayerConfig((BlockConfig("norm", "mixer", _body_like(kind, decoder)),)))
    first = "layers.0."
    return tuple(layers), _Names(
        f"{first}eh_proj", f"{first}enorm", f"{first}hnorm", f"layers.{count - 1}.final_layernorm"
    )


def _body_like(kind: type[BodyConfig], decoder: DecoderConfig) -> BodyConfig:
    """The first of the model's bodies of that kind."""
    bodies = (body for layer in decoder.layers for body in layer.bodies)
    found = next((body for body in bodies if isinstance(body, kind)), None)
    if found is None:
        raise UnsupportedError(
            f"expected a multi-token prediction head of layers like the model's, found {kind.__name__} that it has not"
        )
    return found


# A tensor that each kind of mixer has and those after it have not.
_MIXERS: Mapping[str, type[BodyConfig]] = {
    "q_proj.weight": AttentionConfig,
    "gate.weight": MoeConfig,
    "up_proj.weight": MlpConfig,
}
