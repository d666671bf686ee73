"""Which scales of a checkpoint the FP8 keys and values of each attention layer get."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from hybridge.artifact.errors import CheckpointError
from hybridge.exporter.checkpoint.quantized.cache_scales import CacheFactors, CacheScales
from hybridge.exporter.families.attention_config import CachedConfig, LatentAttentionConfig
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.parameters import Parameter

_OUTPUT = ".o_proj.weight"


def cache_factors(
    decoder: DecoderConfig, parameters: Iterable[Parameter], scales: CacheScales
) -> tuple[CacheFactors | None, ...]:
    """What each attention layer divides keys and values by before it caches them, in [1, 2); None for 1.

    These are the checkpoint's scales without their powers of two: caches have powers of two of their own, which
    do not change how a number is rounded. Errors as of ``CacheScales.factors``, and CheckpointError where no scale
    belongs to a layer.
    """
    if not scales.of_e4m3:
        return ()
    stored = {p.name: p.source for p in parameters if p.name.endswith(_OUTPUT)}
    found = tuple(_of_layers(decoder, stored, scales))
    if not any(found):
        raise CheckpointError(
            f"expected k_scale and v_scale of the layers with attention, found only {next(iter(scales.tensors))}: the "
            "config does not describe this checkpoint"
        )
    return tuple(None if factors is None else _mantissas(factors) for factors in found)


def _of_layers(
    decoder: DecoderConfig, stored: dict[str, str | None], scales: CacheScales
) -> Iterator[CacheFactors | None]:
    for i, layer in enumerate(decoder.layers):
        for body in layer.bodies:
            if isinstance(body, CachedConfig):
                source = next(source for name, source in stored.items() if name.startswith(f"layers.{i}."))
                assert source is not None
                attention = source.removesuffix(".weight").rpartition(".")[0]
                factors = scales.factors(attention, body.num_kv_heads)
                # Both caches of latent attention hold the same numbers.
                is_latent = isinstance(body, LatentAttentionConfig)
                yield CacheFactors(factors.keys, factors.keys) if factors is not None and is_latent else factors


def _mantissas(factors: CacheFactors) -> CacheFactors | None:
    keys, values = (2 * np.frexp(scale)[0] for scale in (factors.keys, factors.values))
    return None if (keys == 1).all() and (values == 1).all() else CacheFactors(keys, values)
