"""Every parameter of a decoder: its name in our module, its tensor in the checkpoint, its shape. No torch.

Derived parameters are computed, not referenced: decays such as A = -exp(A_log) in float32, and rotary frequencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.families.decoder_config import BlockConfig, BodyConfig, DecoderConfig, ParallelConfig
from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.families.moe_parameters import MOE_NAMES, moe_tensors
from hybridge.exporter.families.parameter_shapes import body_shapes
from hybridge.exporter.families.recurrent_config import (
    LightningAttentionConfig,
    MambaConfig,
)
from hybridge.exporter.families.rg_lru import SHARPNESS
from hybridge.exporter.families.shared_block import SharedBlockConfig, shared_block_sources
from hybridge.exporter.families.stored_rows import QUANTIZED_TYPES, stored_shape

# A whole language model inside of a model of text and images.
INNER = "language_model."
# The second and the last two are those of text models in such models.
ROOTS = ("model.", "model.language_model.", "backbone.", "", f"{INNER}model.", f"{INNER}backbone.")
EMBEDDING, LM_HEAD, ROPES = "embedding.weight", "lm_head.weight", "inv_freqs."
# The vectors of a scaled residual: of what the body gives, then of what it gets.
RESIDUAL_SCALE = ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias")
# Tensors that follow from the config: of old checkpoints, and the decays of lightning attention.
REDUNDANT = (
    ".rotary_emb.inv_freq",
    *(f".self_attn.{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")),
)


@dataclass(frozen=True)
class Parameter:
    """``name`` in the traced module; ``source`` in the checkpoint (None: computed from the config alone, or joined).

    ``parts`` are the tensors of the checkpoint that the parameter joins, one after another, where it has no source
    of its own. ``dtype`` None is the compute type. ``derived`` names the computation: "" (none), "neg_exp",
    "softplus" (the decays of an RG-LRU), "inv_freq", "log_decays", "multipliers" (of the family's one kind of Mamba2
    mixer) or one of stored_rows.FORMS.
    ``initializer`` is the name in the ONNX graph; ``alias`` another name of ``source``, which checkpoints may use.
    """

    name: str
    source: str | None
    shape: tuple[int, ...]
    initializer: str
    dtype: DType | None = None
    derived: str = ""
    alias: str = ""
    parts: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Every tensor of the checkpoint that the parameter is made from."""
        return self.parts or (() if self.source is None else (self.source,))

    @property
    def source_shape(self) -> tuple[int, ...]:
        """The shape of each of ``sources``."""
        if not self.parts:
            return stored_shape(self.derived, self.shape)
        return (self.shape[0] * self.shape[1] // len(self.parts), *self.shape[2:])


def bind_parameters(
    config: DecoderConfig, tensors: Mapping[str, TensorSlot], head: bool = True
) -> tuple[Parameter, ...]:
    """All parameters of the decoder (without ``head`` all but its), each found in ``tensors`` with its shape.

    CheckpointError: a tensor is missing, has another shape, or is not used by the decoder.
    """
    root = tensor_root(config, tensors)
    parameters = tuple(declared(config, root, tensors))
    check_sources(parameters, tensors)
    used = {source for p in parameters for source in p.sources}
    ignored = ignored_prefixes(config, tensors)
    unused = sorted(n for n in tensors if n not in used and not n.startswith(ignored) and not n.endswith(REDUNDANT))
    own_head = head_source(root)
    if config.tie_word_embeddings and own_head in unused and _same_bytes(tensors, own_head, parameters[0].source):
        unused.remove(own_head)
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        raise CheckpointError(
            f"the checkpoint holds tensors that {config.model_type} does not use: {', '.join(unused[:3])}{more}: "
            "the config does not describe this checkpoint"
        )
    return parameters if head else tuple(p for p in parameters if p.name != LM_HEAD)


def ignored_prefixes(config: DecoderConfig, tensors: Mapping[str, TensorSlot]) -> tuple[str, ...]:
    """What names of tensors begin with that the decoder does not need."""
    root = tensor_root(config, tensors)
    return (*config.ignored_sources, *(root + source for source in config.ignored_sources))


def check_sources(parameters: Iterable[Parameter], tensors: Mapping[str, TensorSlot]) -> None:
    """CheckpointError when a tensor is missing, or has another shape or type than its parameter."""
    for parameter in parameters:
        for source in parameter.sources:
            _check_source(parameter, source, tensors)
        if len({tensors[part].dtype for part in parameter.parts}) > 1:
            raise CheckpointError(f"{parameter.parts[0]}: expected one type for all experts of a layer, found several")


def derived_value(parameter: Parameter, config: DecoderConfig, tensors: Mapping[str, TensorSlot]) -> np.ndarray:
    """The value of a derived parameter, float32, computed in float64."""
    if parameter.derived == "neg_exp":
        assert parameter.source is not None
        return (-np.exp(tensors[parameter.source].map().astype(np.float64))).astype(np.float32)
    if parameter.derived == "softplus":
        assert parameter.source is not None
        numbers = tensors[parameter.source].map().astype(np.float64)
        return (-SHARPNESS * np.logaddexp(numbers, 0.0)).astype(np.float32)
    if parameter.derived == "log_decays":
        layer = config.layers[int(parameter.name.split(".")[1])]
        body = next(body for body in layer.bodies if isinstance(body, LightningAttentionConfig))
        return np.array(body.log_decays, np.float64).astype(np.float32)
    if parameter.derived == "multipliers":
        mixer = next(body for body in config.recurrent_bodies if isinstance(body, MambaConfig))
        assert mixer.multipliers is not None
        return np.repeat(np.array(mixer.multipliers, np.float32), mixer.projection_sizes)
    rope = config.ropes[int(parameter.name.removeprefix(ROPES))]
    return np.array(rope.inv_freq, dtype=np.float64).astype(np.float32)


def declared(config: DecoderConfig, root: str, tensors: Mapping[str, object]) -> Iterator[Parameter]:
    """Every parameter of the decoder whose tensors' names begin with ``root``."""
    hidden, vocab = config.hidden_size, config.vocab_size
    embeddings = [root + s for s in config.embedding_sources]
    embedding = next((s for s in embeddings if s in tensors), embeddings[0])
    yield Parameter(EMBEDDING, embedding, (vocab, hidden), embedding)
    if config.scaled_embeddings:
        for part in ("scale", "bias"):
            source = f"{root}input_hidden_states_{part}"
            yield Parameter(f"embedding_{part}", source, (hidden,), source, DType.FLOAT32)
    for i, layer in enumerate(config.layers):
        for j, block in enumerate(layer.blocks):
            ours, theirs = f"layers.{i}.blocks.{j}", f"{root}layers.{i}"
            norms = [f"{theirs}.{name}.weight" for name in _norm_names(block)]
            norm = next((name for name in norms if name in tensors), norms[0])
            alias = "".join(norms[1:])
            yield Parameter(f"{ours}.norm.weight", norm, (hidden,), norm, alias=alias)
            if block.output_norm_source is not None:
                norm = f"{theirs}.{block.output_norm_source}.weight"
                yield Parameter(f"{ours}.output_norm.weight", norm, (hidden,), norm)
            for part in RESIDUAL_SCALE if block.residual_scale is not None else ():
                source = f"{theirs}.{block.residual_scale}.{part}"
                yield Parameter(f"{ours}.residual_scale.{part}", source, (hidden,), source, DType.FLOAT32)
            if block.shared is not None:
                yield from _shared_parameters(block.shared, f"{ours}.shared.", root, theirs, hidden)
            source = f"{theirs}.{block.source}." if block.source else f"{theirs}."
            yield from _body_parameters(block.body, f"{ours}.body.", source, hidden, tensors, dict(block.names))
    final_norm = f"{root}{config.final_norm_source}.weight"
    yield Parameter("final_norm.weight", final_norm, (hidden,), final_norm)
    if not config.tie_word_embeddings:
        yield Parameter(LM_HEAD, head_source(root), (vocab, hidden), LM_HEAD)
    for index, rope in enumerate(config.ropes):
        name = "rotary.inv_freq" if len(config.ropes) == 1 else f"rotary.{index}.inv_freq"
        yield Parameter(f"{ROPES}{index}", None, (len(rope.inv_freq),), name, DType.FLOAT32, "inv_freq")


def head_source(root: str) -> str:
    """The name of the head in a checkpoint whose tensors' names begin with ``root``."""
    return f"{INNER}{LM_HEAD}" if root.startswith(INNER) else LM_HEAD


def _shared_parameters(shared: SharedBlockConfig, ours: str, root: str, layer: str, hidden: int) -> Iterator[Parameter]:
    """The parameters of a shared block, under the names of the layer that stores them, and the layer's own matrix."""
    for name, stored, shape in shared_block_sources(shared, hidden):
        source = f"{root}{shared.source}.{stored}"
        yield Parameter(ours + name, source, shape, source)
    own = f"{layer}.linear.weight"
    yield Parameter(f"{ours}linear.weight", own, (hidden, hidden), own)


def _norm_names(block: BlockConfig) -> Iterator[str]:
    yield block.norm_source
    if block.norm_alias is not None:
        yield block.norm_alias


def _stored_name(suffix: str, names: Mapping[str, str]) -> str:
    part, dot, rest = suffix.partition(".")
    return names.get(part, part) + dot + rest


def _body_parameters(
    body: BodyConfig, ours: str, theirs: str, hidden: int, tensors: Mapping[str, object], names: Mapping[str, str]
) -> Iterator[Parameter]:
    """The parameters of a block's body; ``ours`` and ``theirs`` are what its names begin with, ``names`` of parts."""
    if isinstance(body, ParallelConfig):
        for name, branch in (("attention", body.attention), ("mamba", body.mamba)):
            source = f"{theirs}{branch.source}."
            yield from _body_parameters(branch.body, f"{ours}{name}.", source, hidden, tensors, names)
        return
    if not isinstance(body, MoeConfig):
        for suffix, shape in body_shapes(body, hidden):
            yield _body_parameter(ours + suffix, theirs + _stored_name(suffix, names), shape)
        return
    for tensor in moe_tensors(body, theirs, hidden, tensors):
        if tensor.joins:
            joined = f"{theirs}{tensor.name}"
            yield Parameter(
                ours + tensor.name, None, tensor.shape, joined, tensor.dtype, tensor.derived, parts=tensor.sources
            )
        else:
            (source,) = tensor.sources
            initializer = f"{source}.rows" if tensor.derived else source
            own = (ours + tensor.name, source, tensor.shape, initializer)
            yield Parameter(*own, tensor.dtype, tensor.derived)
    if body.shared is not None:
        shared = f"{theirs}{MOE_NAMES[body.layout].shared}."
        yield from _body_parameters(body.shared, f"{ours}shared.", shared, hidden, tensors, {})


def _body_parameter(name: str, source: str, shape: tuple[int, ...]) -> Parameter:
    last = name.rsplit(".", 1)[1]
    if last == "A":
        return Parameter(name, f"{source}_log", shape, source, DType.FLOAT32, "neg_exp")
    if last == "open_log_decays":
        stored = f"{source.removesuffix(last)}recurrent_param"
        return Parameter(name, stored, shape, source, DType.FLOAT32, "softplus")
    if last == "log_decays":
        return Parameter(name, None, shape, source, DType.FLOAT32, "log_decays")
    if last == "multipliers":
        return Parameter(name, None, shape, source, DType.FLOAT32, "multipliers")
    if last in ("D", "dt_bias", "sinks"):
        return Parameter(name, source, shape, source, DType.FLOAT32)
    return Parameter(name, source, shape, source)


def tensor_root(config: DecoderConfig, tensors: Iterable[str]) -> str:
    """The prefix before ``layers.N`` in this checkpoint."""
    names = set(tensors)
    norms = [f"layers.0.{name}.weight" for name in _norm_names(config.layers[0].blocks[0])]
    for root in ROOTS:
        if any(root + norm in names for norm in norms):
            return root
    tried = ", ".join(root + norms[0] for root in ROOTS)
    raise CheckpointError(f"expected one of the tensors {tried}, found none: the config does not describe the weights")


def _check_source(parameter: Parameter, source: str, tensors: Mapping[str, TensorSlot]) -> None:
    slot, shape = tensors.get(source), parameter.source_shape
    if slot is None:
        alias = f" or {parameter.alias}" if parameter.alias else ""
        raise CheckpointError(
            f"expected the tensor {source}{alias} {list(shape)}, found none: "
            "the checkpoint is incomplete or its config does not describe it"
        )
    if slot.shape != shape:
        raise CheckpointError(f"{source}: expected shape {list(shape)} by the config, found {list(slot.shape)}")
    if slot.dtype in QUANTIZED_TYPES:
        if len(shape) < 2 or parameter.derived:
            raise UnsupportedError(f"{source}: quantised vectors are not supported, found {slot.dtype.value}")
        if parameter.name.endswith("conv1d.weight"):
            raise UnsupportedError(f"{source}: quantised convolutions are not supported, found {slot.dtype.value}")
    elif not slot.dtype.is_floating or slot.dtype is DType.FLOAT64:
        raise CheckpointError(f"{source}: expected float16, bfloat16 or float32 weights, found {slot.dtype.value}")


def _same_bytes(tensors: Mapping[str, TensorSlot], name: str, other: str | None) -> bool:
    """A tied checkpoint may store the head a second time; it must then equal the embedding."""
    if other is None or tensors[name].dtype in QUANTIZED_TYPES:
        return False
    if tensors[name].shape != tensors[other].shape or tensors[name].dtype != tensors[other].dtype:
        return False
    return bool(np.array_equal(tensors[name].map().view(np.uint8), tensors[other].map().view(np.uint8)))
