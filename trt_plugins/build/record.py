"""The record of a built engine: its bindings checked against the artifact, and everything engine.json holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hybridge.artifact.bindings import BLOCK_SIZE, MAX_SEQ, Binding
from hybridge.artifact.engine_record import AdvanceRecord, EngineRecord, PluginsRecord
from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build.build_plan import PLAN_FILE, BuildPlan
from hybridge.trt_plugins.build.job import BuildResult, TensorSummary
from hybridge.trt_plugins.build.model import ParserModel
from hybridge.trt_plugins.build.plugin_choice import PluginChoice
from hybridge.trt_plugins.build.profiles import PAGED_BLOCK_SIZE, Limits, row_buckets
from hybridge.trt_plugins.catalog import DENSE_VERSION, DOMAIN
from hybridge.trt_plugins.plugins.data_types import network_dtype


def engine_bindings(declared: Sequence[Binding], limits: Limits, tensors: list[TensorSummary]) -> list[dict[str, Any]]:
    """The engine's bindings, which are ``declared`` in this order; EngineError when the network's are others."""
    expected = [(b.name, network_dtype(b.dtype).value) for b in declared]
    found = [(t.name, t.dtype) for t in tensors]
    if expected != found:
        wrong = next((f"{f[0]} ({f[1]})" for e, f in zip(expected, found, strict=False) if e != f), "another number")
        raise EngineError(f"expected the bindings that config.json declares in the engine, found {wrong}: export again")
    bindings = []
    for binding, tensor in zip(declared, tensors, strict=True):
        fixed = {MAX_SEQ: limits.max_seq_len, BLOCK_SIZE: PAGED_BLOCK_SIZE}
        shape = [fixed.get(str(size), size) for size in binding.shape]
        entry: dict[str, Any] = {"name": tensor.name, "mode": tensor.mode, "dtype": tensor.dtype, "shape": shape}
        if binding.replaced_by is not None:
            entry["replaced_by"] = binding.replaced_by
        if tensor.aliases is not None:
            entry["aliases"] = tensor.aliases
        bindings.append(entry)
    return bindings


def engine_record(
    plan: BuildPlan,
    bindings: list[dict[str, Any]],
    result: BuildResult,
    model: ParserModel,
    seconds: float,
    advance: AdvanceRecord | None = None,
) -> EngineRecord:
    """The record in engine.json of the engine that ``result`` describes; ``seconds`` is the wall time of the build."""
    return EngineRecord(
        engine=PLAN_FILE,
        nbytes=result.nbytes,
        sha256=result.sha256,
        library=plan.target.library,
        library_version=result.library_version,
        preset=plan.target.preset.name,
        compute_capabilities=list(plan.target.compute_capabilities),
        plugins=plugins_record(model.plugins, result.plugins_aliased),
        max_batch_size=plan.limits.max_batch_size,
        max_seq_len=plan.limits.max_seq_len,
        profiles=plan.profiles,
        bindings=bindings,
        layers=result.layers,
        model_sha256=model.sha256,
        build_seconds=round(seconds, 3),
        scratch_bytes=result.scratch_bytes,
        row_buckets=row_buckets(plan.config, plan.limits),
        speculative_tokens=plan.options.speculative_tokens,
        advance=advance,
    )


def plugins_record(choice: PluginChoice, aliased: bool) -> PluginsRecord:
    """The record of plugins in engine.json; ``aliased``: TensorRT lets them update states in place."""
    version = max((spec.version for spec in choice.specs.values()), default=DENSE_VERSION)
    return PluginsRecord(DOMAIN, str(version), dict(Counter(choice.nodes.values())), aliased, choice.reason)
