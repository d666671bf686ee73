"""Shared by zamba and zamba2: which layers have a shared block before their mixer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hybridge.exporter.families.decoder_config import BlockConfig, LayerConfig
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.recurrent_config import RecurrentConfig
from hybridge.exporter.families.shared_block import SharedBlockConfig

MAMBA, HYBRID = "linear_attention", "hybrid"
OLD_NAMES = {"mamba": MAMBA}


def layer_kinds(config: HfConfig, absent: Sequence[str], least: int = 1) -> list[str]:
    """MAMBA or HYBRID for each layer: ``layers_block_type``, or ``absent`` where the config does not have it.

    ``least``: of how many hybrid layers transformers can make a model.
    """
    found = config.array("layers_block_type", None)
    if found is None and "layer_types" in config:
        raise config.fail("layer_types", "layers_block_type in its place, the one that transformers reads")
    same_as(config, "layer_types", found, "layers_block_type")
    kinds = list(absent) if found is None else [OLD_NAMES.get(kind, kind) for kind in found]
    count = config.layer_count()
    if len(kinds) != count or any(kind not in (MAMBA, HYBRID) for kind in kinds):
        raise config.fail("layers_block_type", f"{MAMBA} or {HYBRID} for each of num_hidden_layers {count} layers")
    hybrids = [index for index, kind in enumerate(kinds) if kind == HYBRID]
    if len(hybrids) < least:
        raise config.fail("layers_block_type", f"{least} or more {HYBRID} layers, as transformers needs")
    same_as(config, "hybrid_layer_ids", hybrids, "layers_block_type")
    return kinds


def layers_with(
    shared: SharedBlockConfig,
    mixer: RecurrentConfig,
    kinds: Sequence[str],
    name: str,
    blocks: int = 1,
    names: tuple[tuple[str, str], ...] = (),
) -> Iterator[LayerConfig]:
    """The layers of ``kinds``.

    The first ``blocks`` hybrid layers store a ``shared`` block each, called ``name``, which the others use in turn.
    ``names``: of parts of the mixer, as in BlockConfig.
    """
    hybrids = [index for index, kind in enumerate(kinds) if kind == HYBRID]
    for index, kind in enumerate(kinds):
        if kind == MAMBA:
            yield LayerConfig((BlockConfig("input_layernorm", "mamba", mixer, names=names),))
            continue
        use = hybrids.index(index)
        own = replace(shared, source=f"layers.{hybrids[use % blocks]}.{name}", use=use)
        norm, body = "mamba_decoder.input_layernorm", "mamba_decoder.mamba"
        yield LayerConfig((BlockConfig(norm, body, mixer, names=names, shared=own),))


def same_as(config: HfConfig, name: str, value: Any, source: str) -> None:
    """Refuse another value, null included, of a field that transformers writes and that follows from ``source``."""
    if name in config and config.raw(name) != value:
        raise config.fail(name, f"{value!r} by {source}")
