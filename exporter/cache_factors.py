"""Which scales of a checkpoint the FP8 keys and values of each attention layer get."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hybridge.artifact.errors import CheckpointError
from hybridge.exporter.checkpoint.quantized.cache_scales import CacheFactors, CacheScales
from hybridge.exporter.families.attention_config import CachedConfig, LatentAttentionConfig
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.parameters import Parameter

_OUTPUT = ".o_proj.weight"
_LAYER = re.compile(r"(?<=layers\.)\d+(?=\.)")


def cache_factors(
    decoder: DecoderConfig, parameters: Iterable[Parameter], scales: CacheScales
) -> tuple[CacheFactors | None, ...]:
    """What each attention layer of a model or of a prediction head divides keys and values by before it caches them.

    In [1, 2), None for 1: these are the checkpoint's scales without their powers of two. Caches have powers of two of
    their own, which do not change how a number is rounded. A layer whose attention is shared has scales of its own, or
    those of the layer that stores the weights. Errors as of ``CacheScales.factors``.
    """
    if not scales.of_e4m3:
        return ()
    found = []
    for body, modules in _attentions(decoder, parameters):
        of_modules = (scales.factors(module, body.num_kv_heads) for module in modules)
        factors = next((each for each in of_modules if each is not None), None)
        if factors is not None and isinstance(body, LatentAttentionConfig):
            # Keys of latent attention are its values.
            factors = CacheFactors(factors.keys, factors.keys)
        found.append(None if factors is None else _mantissas(factors))
    return tuple(found)


def check_scales_used(
    decoder: DecoderConfig, parameters: Iterable[Parameter], ignored: Sequence[str], scales: CacheScales
) -> None:
    """CheckpointError for scales of no attention of ``decoder`` whose names begin with none of ``ignored``."""
    modules = [f"{module}." for _, each in _attentions(decoder, parameters) for module in each]
    unused = [name for name in scales.tensors if not name.startswith((*modules, *ignored))]
    if scales.of_e4m3 and unused:
        raise CheckpointError(
            f"expected scales of keys and values of the layers with attention, found {unused[0]}: the config does not "
            "describe this checkpoint"
        )


def _attentions(decoder: DecoderConfig, parameters: Iterable[Parameter]) -> Iterator[tuple[CachedConfig, list[str]]]:
    """Each attention and the names of its module in the checkpoint: the layer's own, and the one with the weights."""
    stored = {p.name: p.source for p in parameters if p.name.endswith(_OUTPUT)}
    for i, layer in enumerate(decoder.layers):
        for body in layer.bodies:
            if isinstance(body, CachedConfig):
                source = next(source for name, source in stored.items() if name.startswith(f"layers.{i}."))
                assert source is not None
                module = source.removesuffix(".weight").rpartition(".")[0]
                yield body, [_LAYER.sub(str(i), module, count=1), module]


def _mantissas(factors: CacheFactors) -> CacheFactors | None:
    keys, values = (2 * np.frexp(scale)[0] for scale in (factors.keys, factors.values))
    return None if (keys == 1).all() and (values == 1).all() else CacheFactors(keys, values)
