"""The parts of a verification that depend on the artifact's layout; no other module of this package checks it.

Dense artifacts do not run through ``DenseAsPaged``, as in `LLM`: it feeds prompts and single tokens in separate steps,
so faults of padding would not be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hybridge.artifact.config import DENSE, RuntimeConfig
from hybridge.artifact.paged import PAGED
from hybridge.runtime.engines.dense import DenseEngine
from hybridge.runtime.engines.factory import EngineOptions, create_dense_engine
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.verification import paged_scenarios, scenarios
from hybridge.verification.long_windows import LongWindowRow
from hybridge.verification.observation import Observation
from hybridge.verification.options import VerifyOptions

Prompts = list[np.ndarray]
# Of ``product_inputs``; None: the reference computes every layer from its own inputs.
Products = Mapping[str, str] | None


@dataclass(frozen=True)
class OpenedEngine:
    """An engine, which the caller closes, and the scenarios on it."""

    engine: DenseEngine | PagedEngine
    observations: Callable[[Prompts, Prompts, int, Sequence[LongWindowRow], Products], Iterator[Observation]]
    untouched: Callable[[np.ndarray], Iterator[tuple[str, int | None, bool]]]


@dataclass(frozen=True)
class LayoutSteps:
    """opened: the engine of a name over a folder, with a verification's options.

    cache_bytes: memory of the caches of a row that crosses a long window, from the bytes of each layer.
    """

    opened: Callable[[Path, str, VerifyOptions], OpenedEngine]
    cache_bytes: Callable[[Iterable[int]], int]


def layout_steps(config: RuntimeConfig) -> LayoutSteps:
    """The steps for an artifact with this config."""
    return _LAYOUTS[config.layout]


def _engine_options(options: VerifyOptions) -> EngineOptions:
    """Exact products; ``evaluate`` measures the effect of rounding inputs."""
    return EngineOptions(exact_products=True, float32=options.float32)


def _dense(artifact: Path, name: str, options: VerifyOptions) -> OpenedEngine:
    engine = create_dense_engine(artifact, name, _engine_options(options))
    return OpenedEngine(engine, partial(scenarios.observations, engine), partial(scenarios.untouched, engine))


def _paged(artifact: Path, name: str, options: VerifyOptions) -> OpenedEngine:
    engine = create_paged_engine(artifact, name, _engine_options(options))

    def observations(
        prompts: Prompts, sequences: Prompts, steps: int, long_rows: Sequence[LongWindowRow], products: Products
    ) -> Any:
        drafts, mode = options.speculative_tokens, options.draft_states
        return paged_scenarios.observations(engine, prompts, sequences, steps, long_rows, drafts, mode, products)

    return OpenedEngine(engine, observations, partial(paged_scenarios.untouched, engine))


_LAYOUTS: Mapping[str, LayoutSteps] = MappingProxyType(
    {
        # A dense engine holds the caches of all layers, a paged one attends in one layer at a time.
        DENSE: LayoutSteps(_dense, sum),
        PAGED: LayoutSteps(_paged, max),
    }
)
