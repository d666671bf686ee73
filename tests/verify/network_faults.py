"""Seeded faults of a parsed network and its profiles: each changes one layer, field, shape or order of updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hybridge.artifact.engine_record import ProfileRecord
from hybridge.trt_plugins.network.description import PLUGIN, NetworkDescription, NetworkLayer
from tests.support.export_cases import ExportCase

HYBRID = {"hybrid_override_pattern": "M*-"}
DELTA = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "head_dim": 64}
PER_TOKEN = ("input_ids", "positions", "slot_mapping")
PLUGINS, NATIVE = "tensorrt-network", "tensorrt-network-native"
# An artifact and the engine that computes its network.
SOURCES = {
    "dense": (ExportCase("nemotron_h", "float32", HYBRID), PLUGINS),
    "native": (ExportCase("nemotron_h", "float32", HYBRID), NATIVE),
    "paged": (ExportCase("qwen3_next", "float32", DELTA, {"layout": "paged"}), PLUGINS),
}
Profiles = list[ProfileRecord]


def _same_network(description: NetworkDescription) -> NetworkDescription:
    return description


def _same_profiles(profiles: Profiles) -> Profiles:
    return profiles


@dataclass(frozen=True)
class NetworkFault:
    """A change of the network of ``source``, or of its profiles."""

    source: str
    network: Callable[[NetworkDescription], NetworkDescription] = field(default=_same_network, repr=False)
    profiles: Callable[[Profiles], Profiles] = field(default=_same_profiles, repr=False)


def _edited(source: str, output: str, edit: Callable[[NetworkLayer], NetworkLayer]) -> NetworkFault:
    """The one layer with an output that begins with ``output``, edited."""

    def change(description: NetworkDescription) -> NetworkDescription:
        found = [layer for layer in description.layers if any(name.startswith(output) for name in layer.outputs)]
        assert len(found) == 1, [layer.title for layer in found]
        assert edit(found[0]) != found[0]
        layers = tuple(edit(layer) if layer is found[0] else layer for layer in description.layers)
        return replace(description, layers=layers)

    return NetworkFault(source, change)


def _attributes(source: str, output: str, **changes: Any) -> NetworkFault:
    return _edited(source, output, lambda layer: replace(layer, attributes={**layer.attributes, **changes}))


def _inputs(source: str, output: str, by_index: Mapping[int, int | str | None]) -> NetworkFault:
    """The layer's inputs at some places are others of its own, other tensors, or left out."""

    def edit(layer: NetworkLayer) -> NetworkLayer:
        inputs = list(layer.inputs)
        for index, other in by_index.items():
            inputs[index] = layer.inputs[other] if isinstance(other, int) else other
        return replace(layer, inputs=tuple(inputs))

    return _edited(source, output, edit)


def _plugin_field(source: str, operator: str, **changes: Any) -> NetworkFault:
    def change(description: NetworkDescription) -> NetworkDescription:
        layers = list(description.layers)
        for index, layer in enumerate(layers):
            if layer.kind == PLUGIN and layer.attributes["operator"] == operator:
                fields = {**layer.attributes["fields"], **changes}
                layers[index] = replace(layer, attributes={**layer.attributes, "fields": fields})
        assert tuple(layers) != description.layers
        return replace(description, layers=tuple(layers))

    return NetworkFault(source, change)


def _read_instead(source: str, tensor: str, instead: str, kind: str = "") -> NetworkFault:
    """Layers, or those of ``kind`` alone, read ``instead`` in place of ``tensor``."""

    def change(description: NetworkDescription) -> NetworkDescription:
        def reads(layer: NetworkLayer) -> NetworkLayer:
            if kind not in ("", layer.kind):
                return layer
            return replace(layer, inputs=tuple(instead if name == tensor else name for name in layer.inputs))

        layers = tuple(map(reads, description.layers))
        assert layers != description.layers
        return replace(description, layers=layers)

    return NetworkFault(source, change)


def _exchanged_states(description: NetworkDescription) -> NetworkDescription:
    """Keys are written into the cache of values, and values into that of keys."""
    names = {"past_key_0": "past_value_0", "past_value_0": "past_key_0"}

    def exchanged(layer: NetworkLayer) -> NetworkLayer:
        if layer.kind != "KV_CACHE_UPDATE":
            return layer
        return replace(layer, inputs=tuple(names.get(str(name), name) for name in layer.inputs))

    return replace(description, layers=tuple(map(exchanged, description.layers)))


def _axis(source: str, change: Callable[[str, list[int]], list[int]]) -> NetworkFault:
    """The most of each input's shape in all profiles is what ``change`` makes of the input's name and shape."""

    def changed(profiles: Profiles) -> Profiles:
        return [
            replace(profile, shapes={n: [*s[:2], change(n, s[2])] for n, s in profile.shapes.items()})
            for profile in profiles
        ]

    return NetworkFault(source, profiles=changed)


def _cache_of(length: int) -> Callable[[Profiles], Profiles]:
    def shape(name: str, sizes: list[int]) -> list[int]:
        return [*sizes[:2], length, sizes[3]] if name in ("past_key_0", "past_value_0") else sizes

    return lambda profiles: [
        replace(p, shapes={n: [shape(n, s) for s in shapes] for n, shapes in p.shapes.items()}) for p in profiles
    ]


FAULTS: dict[str, NetworkFault] = {
    # The graph.
    "swapped operands of a quotient": _inputs("dense", "node_rms_norm.0_4_output", {0: 1, 1: 0}),
    "swapped values of a selection": _inputs("dense", "where_2__2_46", {1: 2, 2: 1}),
    "swapped operands of a difference": _inputs("dense", "sub_15__1_15", {0: 1, 1: 0}),
    "mean over another axis": _attributes("dense", "node_rms_norm.0_0_output", axes=2),
    "sum in place of a mean": _attributes("dense", "node_rms_norm.0_0_output", op="SUM"),
    "gather along another axis": _attributes("dense", "gatherelements_1__2_45", axis=1),
    "dropped cast": _read_instead("dense", "cast_2__1_2", "past_lengths"),
    "slice by one": _attributes("dense", "getitem_2.0", start=[0, 0, 527]),
    "matrix transposed": _attributes("dense", "linear_3.1", op1="TRANSPOSE"),
    "heads not transposed": _attributes("dense", "transpose_1.1", first_transpose=list(range(8))),
    "another comparison": _attributes("dense", "less_17__1_17", op="GREATER"),
    "weights of another layer": _read_instead("dense", "ONNXTRT_Broadcast_6_output", "ONNXTRT_Broadcast_58_output"),
    "exclusive sum": _attributes("native", "cumsum_67", exclusive=True),
    "inclusive sum": _attributes("native", "cumsum_73", exclusive=False),
    "sum in the other direction": _attributes("native", "cumsum_106", reverse=True),
    "another activation": _attributes("native", "softplus_17", type="RELU"),
    # Fields of plugins.
    "no softplus of dt": _plugin_field("dense", "mamba2_conv_scan", dt_softplus=0),
    "no activation of the convolution": _plugin_field("dense", "mamba2_conv_scan", activation="none"),
    "limit of dt": _plugin_field("dense", "mamba2_conv_scan", time_step_max=0.1),
    "no norm of queries and keys": _plugin_field("paged", "gated_delta_rule", use_qk_l2norm=0),
    "scale of attention": _plugin_field("paged", "paged_attention", scale=0.12),
    "window of attention": _plugin_field("paged", "paged_attention", sliding_window=4),
    # Shapes of profiles.
    "another batch of one state": _axis("dense", lambda name, s: [2, *s[1:]] if name == "conv_state_0" else s),
    "caches shorter than the network's": NetworkFault("dense", profiles=_cache_of(95)),
    "one row less than the artifact's": _axis("dense", lambda name, s: [1, *s[1:]]),
    "no bound behind the last row": _axis("paged", lambda name, s: [s[0] - 1] if name == "query_start_loc" else s),
    "fewer tokens than the artifact's": _axis("paged", lambda name, s: [3] if name in PER_TOKEN else s),
    "another size of blocks": _axis("paged", lambda name, s: [*s[:2], 8, *s[3:]] if name == "kv_pool_0" else s),
    # Order and memory of updates.
    "keys read before their update": _read_instead("dense", "present_key_0", "past_key_0"),
    "values read before their update": _read_instead("dense", "present_value_0", "past_value_0", "ATTENTION_INPUT"),
    "keys in the cache of values": NetworkFault("dense", _exchanged_states),
    "pages read before their update": _read_instead("paged", "present_kv_pool_0", "kv_pool_0"),
    "pages not updated in place": _attributes("paged", "present_kv_pool_0", aliased=False),
}
ON_PUSH = ("swapped operands of a quotient", "limit of dt", "values read before their update")
