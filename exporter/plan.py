"""The plan of an export, made before anything is traced or written. Imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from hybridge.artifact.config import Quantization, RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, SettingError, UnsupportedError, located
from hybridge.artifact.paged import PAGED
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.artifact.state_dtypes import STATES_8BIT, has_state_scales, state_dtype_name
from hybridge.exporter.cache_factors import cache_factors, check_scales_used
from hybridge.exporter.checkpoint import Checkpoint, open_checkpoint
from hybridge.exporter.checkpoint.quantized.cache_scales import CacheFactors
from hybridge.exporter.checkpoint.quantized.tensor import QuantizedTensor
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.mamba1_config import Mamba1Config
from hybridge.exporter.families.mlp_config import MoeConfig
from hybridge.exporter.families.moe_parameters import MOE_NAMES
from hybridge.exporter.families.mtp import MtpHead, has_mtp_head, mtp_head
from hybridge.exporter.families.parameters import (
    EMBEDDING,
    Parameter,
    bind_parameters,
    derived_value,
    ignored_prefixes,
)
from hybridge.exporter.families.recurrent_config import with_ring
from hybridge.exporter.families.registry import decoder_config
from hybridge.exporter.families.rg_lru import RgLruConfig
from hybridge.exporter.families.rope_length import at_length
from hybridge.exporter.families.stored_layout import as_stored
from hybridge.exporter.families.stored_rows import FORMS, SEPARATE, experts_in_order
from hybridge.exporter.kernel_sizes import check_kernel_sizes
from hybridge.exporter.options import COMPUTE_DTYPES, REQUIRED, ExportOptions
from hybridge.exporter.rounded_products import products_with_rounding
from hybridge.exporter.rounding.checkpoint import rounded_checkpoint, with_rounded_embedding
from hybridge.exporter.trace.interface import runtime_config, sequence_limit
from hybridge.exporter.weights.derived import DerivedTensor
from hybridge.trt_plugins.specs.ring import RINGS


@dataclass(frozen=True)
class ExportPlan:
    """The decoder, its runtime contract, and the source of every parameter.

    rounded: the weights whose products round their inputs. cache_factors, mtp_factors: of keys and values of the
    attention layers, and of those of the prediction head, in order; empty where there are none.
    """

    decoder: DecoderConfig
    config: RuntimeConfig
    parameters: tuple[Parameter, ...]
    checkpoint_dtype: DType
    weight_bytes: int
    notes: tuple[str, ...]
    mtp: MtpHead | None = None
    rounded: frozenset[str] = frozenset()
    cache_factors: tuple[CacheFactors | None, ...] = ()
    mtp_factors: tuple[CacheFactors | None, ...] = ()

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        """Parameters of the decoder and of the multi-token prediction head if it is exported."""
        return (*self.parameters, *(() if self.mtp is None else self.mtp.parameters))

    @property
    def sources(self) -> tuple[str, ...]:
        """Every tensor of the checkpoint that is used, once."""
        return tuple(dict.fromkeys(source for p in self.all_parameters for source in p.sources))

    @property
    def graph_sources(self) -> tuple[str, ...]:
        """The tensors that the graph refers to: all but those that derived tensors are computed from."""
        return tuple(dict.fromkeys(source for p in self.all_parameters if not p.derived for source in p.sources))

    def quantized(self, source: Checkpoint) -> dict[str, QuantizedTensor]:
        """The used quantised weights of ``source`` by name; inputs are rounded only for those in ``rounded``."""
        used = {name: source.quantized[name] for name in self.sources if name in source.quantized}
        return {name: w if name in self.rounded else replace(w, inputs=None) for name, w in used.items()}

    def derived_tensors(self, tensors: Mapping[str, TensorSlot]) -> dict[str, DerivedTensor]:
        """initializer name -> every derived tensor."""
        found = {}
        for p in self.parameters:
            if p.derived in FORMS:
                found[p.initializer] = _experts(p, [tensors[source] for source in p.sources])
            elif p.derived:
                found[p.initializer] = DerivedTensor.of(derived_value(p, self.decoder, tensors))
        return found

    def scan_targets(self, tensors: Mapping[str, TensorSlot]) -> list[tuple[TensorSlot, DType]]:
        """Every tensor that the decoder uses, with its compute type; of quantised ones, nothing is scanned there."""
        types = {source: p.dtype or self.config.dtype for p in self.all_parameters for source in p.sources}
        return [(tensors[source], dtype) for source, dtype in types.items()]

    def state_bytes_per_row(self) -> int:
        """Bytes of one row's fixed-size states."""
        return sum(state.unit_bytes for state in self.config.bindings.states if not state.grows)

    def cache_bytes_per_token(self) -> int:
        """Bytes of KV cache per token of one row."""
        return sum(state.unit_bytes for state in self.config.bindings.states if state.grows)

    def to_json(self) -> dict[str, Any]:
        """A JSON object for ``--dry-run``."""
        own = {form: self.checkpoint_dtype.itemsize for form in FORMS}
        derived = sum(own.get(p.derived, 4) * prod(p.shape) for p in self.parameters if p.derived)
        return {
            "model_type": self.config.model_type,
            "dtype": self.config.dtype.value,
            "checkpoint_dtype": self.checkpoint_dtype.value,
            "layout": self.config.layout,
            "layer_types": list(self.config.layer_types),
            "parameters": sum(prod(p.shape) for p in {p.initializer: p for p in self.parameters}.values()),
            "weight_bytes": self.weight_bytes,
            "derived_bytes": derived,
            "state_bytes_per_row": self.state_bytes_per_row(),
            "kv_cache_bytes_per_token": self.cache_bytes_per_token(),
            "max_batch_size": self.config.max_batch_size,
            "max_seq_len": self.config.max_seq_len,
            "mtp_layers": None if self.mtp is None else list(self.mtp.decoder.layer_types),
            "notes": list(self.notes),
        }


def _experts(parameter: Parameter, slots: Sequence[TensorSlot]) -> DerivedTensor:
    """The experts of one slot with their rows in the graph's order, or the biases of all slots."""
    slot = slots[0]
    if parameter.derived == SEPARATE:
        return DerivedTensor(slot.dtype, parameter.shape, lambda: (bias.map() for bias in slots))
    return DerivedTensor(slot.dtype, parameter.shape, partial(experts_in_order, parameter.derived, slot))


def plan_export(checkpoint: Path, options: ExportOptions | None = None) -> ExportPlan:
    """The plan for ``checkpoint``; the same errors as the export itself, but nothing is traced or written."""
    return open_plan(checkpoint, options or ExportOptions())[1]


def open_plan(checkpoint: Path, options: ExportOptions) -> tuple[Checkpoint, ExportPlan]:
    """Open the checkpoint and plan its export; errors name files by ``checkpoint`` as it was given."""
    with located(Path(checkpoint)):
        return _open_plan(Path(checkpoint), options)


def _open_plan(checkpoint: Path, options: ExportOptions) -> tuple[Checkpoint, ExportPlan]:
    source = open_checkpoint(checkpoint)
    decoder = as_stored(decoder_config(source.config, options.ignore_config_fields), source.tensors)
    decoder = at_length(decoder, sequence_limit(decoder, options))
    if options.kernels == REQUIRED:
        check_kernel_sizes(decoder)
    _check_expert_rows(decoder, source)
    parameters = bind_parameters(decoder, source.tensors, options.head)
    dtype = _compute_dtype(source, options)
    _check_state_dtype(decoder, options, dtype)
    config = runtime_config(decoder, options, dtype, source.eos_token_ids)
    embedding = next(p.sources[0] for p in parameters if p.name == EMBEDDING)
    if options.quantize is not None:
        names = [name for p in parameters if not p.derived for name in p.sources]
        names = [name for name in names if name != embedding or options.quantize_embedding is None]
        source = rounded_checkpoint(source, names, options.quantize, decoder.tie_word_embeddings)
    if options.quantize_embedding is not None:
        source = with_rounded_embedding(source, embedding, options.quantize_embedding)
    notes = [*source.notes, *decoder.notes]
    limit = decoder.max_position_embeddings
    if limit is not None and config.max_seq_len > limit:
        notes.append(f"max_seq_len {config.max_seq_len} exceeds the {limit} positions that the model was trained for")
    mtp = _mtp_head(decoder, parameters, source, options, notes)
    plan = ExportPlan(decoder, config, parameters, source.dtype, 0, (), mtp)
    if config.has_kv_scales:
        plan = _with_cache_factors(plan, source)
    rounded = products_with_rounding(source, plan.all_parameters, options, notes)
    plan = replace(plan, rounded=rounded, notes=tuple(notes))
    weight_bytes = sum(source.tensors[name].nbytes for name in plan.sources)
    config = replace(config, quantization=_quantization(source, plan))
    return source, replace(plan, config=config, weight_bytes=weight_bytes)


def _with_cache_factors(plan: ExportPlan, source: Checkpoint) -> ExportPlan:
    scales, decoder, mtp = source.cache_scales, plan.decoder, plan.mtp
    check_scales_used(decoder, plan.parameters, ignored_prefixes(decoder, source.tensors), scales)
    of_head = () if mtp is None else cache_factors(mtp.decoder, mtp.parameters, scales)
    return replace(plan, cache_factors=cache_factors(decoder, plan.parameters, scales), mtp_factors=of_head)


def _check_state_dtype(decoder: DecoderConfig, options: ExportOptions, dtype: DType) -> None:
    """SettingError where the recurrent layers of a model that computes in ``dtype`` have no such states."""
    scans = [body for body in decoder.recurrent_bodies if isinstance(body, Mamba1Config | RgLruConfig)]
    if options.state_rings:
        ringed = any(with_ring(body).has_ring for body in decoder.recurrent_bodies)
        if scans or not ringed:
            found = f"those of type {scans[0].layer_type} with the operator selective_scan" if scans else "none"
            raise SettingError(
                f"state_rings: expected recurrent layers with the operators {' or '.join(RINGS)}, found {found}: leave "
                "it out"
            )
    if has_state_scales(options.state_dtype):
        if scans:
            raise SettingError(
                f"state_dtype: expected a type of 16 or 32 bits for layers of type {scans[0].layer_type} with the "
                f"operator selective_scan, found {state_dtype_name(options.state_dtype)}: leave it out"
            )
    elif decoder.recurrent_bodies and options.state_dtype not in (DType.FLOAT32, dtype):
        raise SettingError(
            f"state_dtype: expected float32, {', '.join(STATES_8BIT)}, or {dtype.value} as the model computes in, "
            f"found {options.state_dtype.value}: choose one of these or another `dtype`"
        )


def _check_expert_rows(decoder: DecoderConfig, source: Checkpoint) -> None:
    """Refuse quantised experts of which it is not known where the rows of a transposing layout are."""
    if not any(isinstance(b, MoeConfig) and MOE_NAMES[b.layout].transposed for b in decoder.layers[0].bodies):
        return
    for weight in source.quantized.values():
        if weight.experts is not None and weight.format != "mxfp4":
            raise UnsupportedError(
                f"{weight.name}: expected experts in quant_method 'mxfp4' or in full precision, found "
                f"{weight.format}: take such a checkpoint"
            )


def _quantization(source: Checkpoint, plan: ExportPlan) -> Quantization | None:
    """The field ``quantization`` of config.json; None without quantised weights."""
    quantized = plan.quantized(source).values()
    if not quantized:
        return None
    matrices = [source.tensors[name] for name in plan.sources if len(source.tensors[name].shape) > 1]
    bits = 8 * sum(slot.nbytes for slot in matrices) / sum(prod(slot.shape) for slot in matrices)
    formats = Counter(weight.format for weight in quantized)
    model = {source for p in plan.parameters for source in p.sources}
    inputs = Counter(weight.inputs.name for weight in quantized if weight.inputs and weight.name in model)
    return Quantization(dict(sorted(formats.items())), round(bits, 2), dict(sorted(inputs.items())))


def _mtp_head(
    decoder: DecoderConfig,
    parameters: tuple[Parameter, ...],
    source: Checkpoint,
    options: ExportOptions,
    notes: list[str],
) -> MtpHead | None:
    """The checkpoint's prediction head in layout paged; an unsupported one is left out with a note."""
    if options.layout != PAGED or not options.mtp or not has_mtp_head(source.tensors):
        return None
    try:
        return mtp_head(decoder, parameters, source.tensors)
    except UnsupportedError as error:
        notes.append(f"the multi-token prediction head is left out: {error}")
        return None
    except CheckpointError as error:
        raise CheckpointError(f"{error}; `mtp=False` leaves the multi-token prediction head out") from error


def _compute_dtype(source: Checkpoint, options: ExportOptions) -> DType:
    if options.dtype is not None:
        return options.dtype
    if source.dtype not in COMPUTE_DTYPES:
        known = ", ".join(d.value for d in COMPUTE_DTYPES)
        raise UnsupportedError(f"the checkpoint's type is {source.dtype.value}: pass `dtype`, one of {known}")
    return source.dtype
