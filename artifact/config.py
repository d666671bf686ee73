"""config.json: the contract between export, which writes it, and the runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hybridge.artifact.bindings import BATCH, NUM_SLOTS, Binding, GraphBindings
from hybridge.artifact.dense import check_caches
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError, located
from hybridge.artifact.json_fields import Fields, is_count, load_json_object
from hybridge.artifact.kv_dtypes import E4M3_BYTES, FP8_E4M3, kv_dtype_from_name, kv_dtype_name
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.artifact.layer_types import (
    ATTENTION_LAYER_TYPES,
    CONV_LAYER_TYPES,
    LAYER_TYPES,
    LIGHTNING_ATTENTION,
    RECURRENT_LAYER_TYPES,
)
from hybridge.artifact.limits import LAYERS, POSITIONS, ROWS
from hybridge.artifact.names import LOGITS
from hybridge.artifact.paged import PAGED, check_paged, paged_inputs
from hybridge.artifact.state_dtypes import STATES_8BIT, has_state_scales, state_dtype_from_name, state_dtype_name
from hybridge.artifact.state_rings import StateRing, check_state_rings
from hybridge.artifact.state_scales import StateScales

# 2: attention and its cache update are operators in dense graphs.
FORMAT_VERSION = 2
CONFIG_FILE = "config.json"
# The multi-token prediction head of the model: its graph, and its contract in the form of config.json.
MTP_MODEL_FILE, MTP_CONFIG_FILE = "mtp.onnx", "mtp.json"
DENSE = "dense"
LAYOUTS = (DENSE, PAGED)


@dataclass(frozen=True)
class Quantization:
    """How weights are quantised. formats: format to number of weights. bits: average per weight over all matrices of
    the model, quantised or not, with scales. inputs: how the graph rounds inputs to the number of such products."""

    formats: Mapping[str, int]
    bits: float
    inputs: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields."""
        rounded = {"inputs": dict(self.inputs)} if self.inputs else {}
        return {"formats": dict(self.formats), "bits": self.bits, **rounded}


@dataclass(frozen=True)
class RuntimeConfig:
    """The runtime contract of one artifact. Local layer indices count layers of one kind from 0.

    kv_cache_dtype: of the tensors of keys and values; E4M3_BYTES where these are e4m3 with scales.
    recurrent_state_dtype: of the recurrent states' tensors; INT8 or E4M3_BYTES where these have scales.
    quantization: None where no weight is quantised.
    """

    model_type: str
    layout: str
    dtype: DType
    vocab_size: int
    hidden_size: int
    max_batch_size: int
    max_seq_len: int
    layer_types: tuple[str, ...]
    kv_layers: tuple[KVLayerConfig, ...]
    kv_cache_dtype: DType
    recurrent_layers: tuple[RecurrentLayerConfig, ...]
    recurrent_state_dtype: DType
    conv_state_dtype: DType
    eos_token_ids: tuple[int, ...]
    bindings: GraphBindings
    quantization: Quantization | None = None
    format_version: int = FORMAT_VERSION

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    @property
    def attention_layer_indices(self) -> tuple[int, ...]:
        """Absolute indices of the attention layers; the position is the local index."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind in ATTENTION_LAYER_TYPES)

    @property
    def recurrent_layer_indices(self) -> tuple[int, ...]:
        """Absolute indices of the recurrent layers; the position is the local index."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind in RECURRENT_LAYER_TYPES)

    @property
    def has_kv_scales(self) -> bool:
        """Whether keys and values are e4m3, with a scale for every token and head."""
        return self.kv_cache_dtype is E4M3_BYTES

    @property
    def recurrent_layer_types(self) -> tuple[str, ...]:
        """Of ``recurrent_layers``, in their order."""
        return tuple(self.layer_types[index] for index in self.recurrent_layer_indices)

    @property
    def state_scales(self) -> tuple[StateScales, ...]:
        """The recurrent states in 8 bits; empty where they have a wider type."""
        if not has_state_scales(self.recurrent_state_dtype):
            return ()
        kinds = self.recurrent_layer_types
        return tuple(
            StateScales.of(r, layer, kinds[r], self.recurrent_state_dtype)
            for r, layer in enumerate(self.recurrent_layers)
            if layer.has_recurrent_state
        )

    @property
    def state_rings(self) -> tuple[StateRing, ...]:
        """The rings of the recurrent states; empty where they are written for every token."""
        layers = zip(self.recurrent_layers, self.recurrent_layer_types, strict=True)
        return tuple(
            StateRing.of(r, layer, kind, self.conv_state_dtype)
            for r, (layer, kind) in enumerate(layers)
            if layer.has_ring
        )

    @property
    def all_logits(self) -> bool:
        """True when a step returns its result for every token [batch, seq, width], not only for the last."""
        return len(self.result.shape) == 3

    @property
    def result(self) -> Binding:
        """The output of a step that is not a state: logits, or hidden states where the graph has no head."""
        states = {state.replaced_by for state in self.bindings.states}
        return next(output for output in self.bindings.outputs if output.name not in states)

    def require_logits(self) -> RuntimeConfig:
        """Return self, or raise ArtifactError when the graph ends in hidden states."""
        if self.result.name != LOGITS:
            raise ArtifactError(
                f"expected an artifact that gives logits, found one that ends in {self.result.name} (made for "
                "hybridge.accelerate): export the checkpoint with hybridge export"
            )
        return self

    def check(self) -> RuntimeConfig:
        """Return self, or raise ArtifactError naming the first contradiction between the fields."""
        for ok, message in (
            (self.layout in LAYOUTS, f"layout {self.layout!r} is not one of {', '.join(LAYOUTS)}"),
            (
                set(self.layer_types) <= set(LAYER_TYPES),
                f"layer_types holds a kind that is not one of {', '.join(LAYER_TYPES)}",
            ),
            (
                len(self.kv_layers) == len(self.attention_layer_indices),
                f"{len(self.kv_layers)} kv_layer_configs for {len(self.attention_layer_indices)} attention layers",
            ),
            (
                len(self.recurrent_layers) == len(self.recurrent_layer_indices),
                f"recurrent shapes for {len(self.recurrent_layers)} of {len(self.recurrent_layer_indices)} layers",
            ),
            (
                all(
                    layer.has_recurrent_state == (self.layer_types[index] not in CONV_LAYER_TYPES)
                    for index, layer in zip(self.recurrent_layer_indices, self.recurrent_layers, strict=False)
                ),
                f"recurrent_state_num_heads is 0 for other layers than {', '.join(CONV_LAYER_TYPES)}, or not for these",
            ),
            (
                all(
                    layer.has_conv_state == (self.layer_types[index] != LIGHTNING_ATTENTION)
                    for index, layer in zip(self.recurrent_layer_indices, self.recurrent_layers, strict=False)
                ),
                f"conv_dim is 0 for other layers than {LIGHTNING_ATTENTION}, or not for these",
            ),
            (
                self.layout == PAGED or not self.has_kv_scales,
                f"kv_cache_dtype {FP8_E4M3} in layout {self.layout}, whose caches have no scales",
            ),
        ):
            if not ok:
                raise ArtifactError(f"{CONFIG_FILE}: {message}: export the checkpoint again")
        self.bindings.check(CONFIG_FILE)
        self._check_state_scales()
        rows = NUM_SLOTS if self.layout == PAGED else BATCH
        check_state_rings(self.recurrent_layers, self.recurrent_state_dtype, self.state_rings, self.bindings, rows)
        if self.layout == PAGED:
            expected = paged_inputs(
                self.kv_layers,
                zip(self.recurrent_layers, self.recurrent_layer_types, strict=True),
                (self.kv_cache_dtype, self.conv_state_dtype, self.recurrent_state_dtype),
            )
            check_paged(self.bindings, expected, self.vocab_size)
        else:
            check_caches(self.bindings, self.kv_layers, self.kv_cache_dtype)
        return self

    def _check_state_scales(self) -> None:
        states = {binding.name: binding for binding in self.bindings.states}
        for state in self.state_scales:
            values, scales = states.get(state.name), states.get(state.scales)
            if scales is None or (scales.dtype, scales.shape[1:]) != (DType.FLOAT32, state.scale_shape):
                described = "none" if scales is None else "another type or shape"
                raise ArtifactError(
                    f"{CONFIG_FILE}: bindings: expected the state {state.scales} float32{list(state.scale_shape)} "
                    f"beside {state.name}, found {described}: export the checkpoint again"
                )
            if values is None or values.dtype is not state.dtype:
                raise ArtifactError(
                    f"{CONFIG_FILE}: bindings: expected the state {state.name} of type {state.dtype.value} as "
                    "recurrent_state_dtype says, found another: export the checkpoint again"
                )


def read_config(folder: Path, file: str = CONFIG_FILE) -> RuntimeConfig:
    """Read and check ``folder``/config.json; ArtifactError when it is missing, malformed or of another version."""
    data = load_json_object(folder / file)
    if "bindings" not in data or "format_version" not in data:
        raise ArtifactError(
            f"{folder}: expected a folder written by hybridge export, found a config.json of another origin"
        )
    with located(folder):
        return config_from_json(data)


def config_to_json(config: RuntimeConfig) -> dict[str, Any]:
    """The JSON object of config.json; recurrent shapes are a number where all layers agree, else a list."""
    recurrent = config.recurrent_layers
    columns = {**_RECURRENT_FIELDS, **(_RING_FIELDS if config.state_rings else {})}
    return {
        "format_version": config.format_version,
        "model_type": config.model_type,
        "layout": config.layout,
        "dtype": config.dtype.value,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "max_batch_size": config.max_batch_size,
        "max_seq_len": config.max_seq_len,
        "num_attention_layers": len(config.kv_layers),
        "num_linear_attn_layers": len(recurrent),
        "layer_types": list(config.layer_types),
        "kv_layer_configs": [
            {
                "num_kv_heads": kv.num_kv_heads,
                "head_dim": kv.head_dim,
                "sliding_window": kv.sliding_window,
                **({} if kv.latent_dim is None else {"latent_dim": kv.latent_dim}),
            }
            for kv in config.kv_layers
        ],
        "kv_cache_dtype": kv_dtype_name(config.kv_cache_dtype),
        **{key: _one_or_list([getattr(r, name) for r in recurrent]) for key, name in columns.items()},
        "recurrent_state_dtype": state_dtype_name(config.recurrent_state_dtype),
        "conv_state_dtype": config.conv_state_dtype.value,
        "eos_token_id": list(config.eos_token_ids),
        **({} if config.quantization is None else {"quantization": config.quantization.to_json()}),
        "bindings": config.bindings.to_json(),
    }


def config_text(config: RuntimeConfig) -> str:
    """The text of config.json."""
    return json.dumps(config_to_json(config), indent=2) + "\n"


def config_from_json(data: dict[str, Any]) -> RuntimeConfig:
    """Parse and check the JSON object of config.json; ArtifactError names the field that is wrong."""
    f = Fields(data, CONFIG_FILE)
    version = f.integer("format_version")
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{CONFIG_FILE}: expected format_version {FORMAT_VERSION}, found {version}: export the checkpoint again"
        )
    layer_types = tuple(f.strings("layer_types"))
    if len(layer_types) > LAYERS:
        raise ArtifactError(f"{CONFIG_FILE}: layer_types: expected at most {LAYERS} layers, found {len(layer_types)}")
    config = RuntimeConfig(
        model_type=f.string("model_type"),
        layout=f.string("layout"),
        dtype=f.enum("dtype", DType),
        vocab_size=f.integer("vocab_size", minimum=1),
        hidden_size=f.integer("hidden_size", minimum=1),
        max_batch_size=f.integer("max_batch_size", minimum=1, maximum=ROWS),
        max_seq_len=f.integer("max_seq_len", minimum=1, maximum=POSITIONS),
        layer_types=layer_types,
        kv_layers=f.map("kv_layer_configs", _kv_from_json),
        kv_cache_dtype=kv_dtype_from_name(f.choice("kv_cache_dtype", _KV_DTYPES)),
        recurrent_layers=_recurrent_from_json(f, sum(kind in RECURRENT_LAYER_TYPES for kind in layer_types)),
        recurrent_state_dtype=state_dtype_from_name(f.choice("recurrent_state_dtype", _STATE_DTYPES)),
        conv_state_dtype=f.enum("conv_state_dtype", DType),
        eos_token_ids=tuple(_ints(f, "eos_token_id")),
        bindings=GraphBindings.from_json(f.fields("bindings")),
        quantization=_quantization_from_json(f.fields("quantization")) if "quantization" in f else None,
    )
    for key, count in (
        ("num_hidden_layers", len(layer_types)),
        ("num_attention_layers", len(config.kv_layers)),
        ("num_linear_attn_layers", len(config.recurrent_layers)),
    ):
        if f.integer(key) != count:
            raise f.fail(key, str(count))
    f.refuse_unknown()
    return config.check()


_RECURRENT_FIELDS = {
    "recurrent_state_num_heads": "num_heads",
    "recurrent_state_head_dim": "head_dim",
    "recurrent_state_size": "state_size",
    "conv_dim": "conv_dim",
    "conv_kernel": "conv_kernel",
}
# Only of states with rings.
_RING_FIELDS = {"recurrent_state_ring_heads": "ring_heads", "recurrent_state_ring_decays": "ring_decays"}
assert {*_RECURRENT_FIELDS.values(), *_RING_FIELDS.values()} == {f.name for f in fields(RecurrentLayerConfig)}


def _one_or_list(values: list[int]) -> int | list[int] | None:
    if not values:
        return None
    return values[0] if len(set(values)) == 1 else values


def _recurrent_from_json(f: Fields, count: int) -> tuple[RecurrentLayerConfig, ...]:
    columns: dict[str, list[int]] = {}
    for key, name in {**_RECURRENT_FIELDS, **_RING_FIELDS}.items():
        value = f.raw(key, 0) if key in _RING_FIELDS else f.raw(key)
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count or not all(is_count(v) for v in values):
            raise f.fail(key, f"a count or a list of {count} counts")
        columns[name] = values
    return tuple(RecurrentLayerConfig(**{name: columns[name][i] for name in columns}) for i in range(count))


def _kv_from_json(f: Fields) -> KVLayerConfig:
    config = KVLayerConfig(
        f.integer("num_kv_heads", minimum=1),
        f.integer("head_dim", minimum=1),
        f.integer("sliding_window", None, 1),
        f.integer("latent_dim", None, 1),
    )
    if config.latent_dim is not None and config.latent_dim > config.head_dim:
        raise f.fail("latent_dim", f"at most head_dim, {config.head_dim}")
    f.refuse_unknown()
    return config


def _quantization_from_json(f: Fields) -> Quantization:
    formats, inputs = f.object("formats"), f.object("inputs", {})
    for name, counts in (("formats", formats), ("inputs", inputs)):
        if not all(is_count(count) for count in counts.values()):
            raise f.fail(name, "an object of counts")
    found = Quantization(formats, float(f.number("bits")), inputs)
    f.refuse_unknown()
    return found


def _ints(f: Fields, key: str) -> list[int]:
    values = f.array(key)
    if not all(is_count(v) for v in values):
        raise f.fail(key, "a list of integers of at least 0")
    return values


_KV_DTYPES = [*(d.value for d in DType if d.is_floating), FP8_E4M3]
_STATE_DTYPES = [*(d.value for d in DType if d.is_floating), *STATES_8BIT]
