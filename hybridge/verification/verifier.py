"""Compare an artifact with its checkpoint, over every kind of step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError, located
from hybridge.artifact.manifest import check_artifact, read_manifest
from hybridge.artifact.path_kind import require_artifact, require_checkpoint
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.runtime.engines.factory import AUTO, check_engine
from hybridge.verification.cache_scales import stored_cache_scales
from hybridge.verification.engine_runs import EngineRuns
from hybridge.verification.expected import Expected, ForcedRuns, Inputs, SteppedRuns
from hybridge.verification.head_cases import head_cases
from hybridge.verification.layouts import layout_steps
from hybridge.verification.options import VerifyOptions, computed_type, default_tolerance, shows_layers
from hybridge.verification.plan import Plan, plan_of
from hybridge.verification.product_inputs import product_inputs
from hybridge.verification.reference import Reference
from hybridge.verification.reference_folder import reference_folder
from hybridge.verification.report import UNCHANGED, Comparison, VerifyReport
from hybridge.verification.rounded_inputs import stored_roundings
from hybridge.verification.router_inputs import router_inputs
from hybridge.verification.stored_runs import stored_runs

# An engine in 16 bits rounds what experts compute between their two products a few times before that is rounded again.
INNER_TIES = {DType.FLOAT16: 2.0**-9, DType.BFLOAT16: 2.0**-6}

FAST, PORTABLE = "onnxruntime", "onnxruntime-portable"


def verify(
    checkpoint: Path, artifact: Path, options: VerifyOptions | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Run ``artifact`` and transformers on the same random tokens and compare logits, hidden states and states.

    ArtifactError, CheckpointError, RequestError or EngineError when one of them cannot run; a disagreement is not
    an error but a report whose ``passed`` is false.
    """
    with reference_folder(checkpoint) as folder:
        return _verify(checkpoint, folder, artifact, options or VerifyOptions(), progress or NoProgress())


def _verify(source: Path, checkpoint: Path, artifact: Path, options: VerifyOptions, progress: Progress) -> VerifyReport:
    """``verify`` with ``checkpoint``, the folder that transformers loads in place of ``source``."""
    config = _verifiable(checkpoint, artifact, options)
    rounded_states = config.recurrent_state_dtype if config.state_scales else None
    tolerance = options.tolerance or default_tolerance(
        options.engine, config.dtype, config.has_kv_scales, _rounds_inputs(config), options.float32, rounded_states
    )
    notes: list[str] = []
    # For "auto" the engine that generates, then the file exactly as exported.
    engines = (FAST, PORTABLE) if options.engine == AUTO else (options.engine,)
    check_artifact(artifact)
    # The checks of an export come first: transformers would open any file.
    with located(checkpoint):
        open_checkpoint(checkpoint)
    plan = plan_of(artifact, config, options)
    try:
        cases = _cases(source, checkpoint, artifact, config, options, plan, progress)
        # To save memory, a reference that is not needed again is freed before the first engine is opened, and each
        # engine before the next.
        comparisons = [*_compare_windows(engines[0], cases)]
        for name in engines:
            gc.collect()
            progress.start(f"run the artifact ({name})")
            comparisons += _run(artifact, name, cases, options, tolerance, progress, notes)
        head = head_cases(source, checkpoint, artifact, config, cases.inputs, options, progress, notes)
        if head is not None:
            for name in engines:
                gc.collect()
                comparisons += head.compared(artifact, name, options, tolerance, progress, notes)
    finally:
        progress.finish()
    return VerifyReport(
        config.model_type,
        engines,
        tuple(computed_type(name, config.dtype, options.float32).value for name in engines),
        config.dtype.value,
        cases.reference,
        tolerance,
        plan.lengths,
        options.decode_steps,
        tuple(str(row.edge) for row in plan.long_rows),
        plan.not_crossed,
        tuple(comparisons),
        config.layer_types,
        (*notes, *plan.notes, *cases.notes),
        cases.products is not None,
        () if head is None else head.config.layer_types,
    )


def _verifiable(checkpoint: Path, artifact: Path, options: VerifyOptions) -> RuntimeConfig:
    """The config of ``artifact``; refuses what cannot run before the reference is loaded, which may take minutes."""
    check_engine(options.engine)
    require_checkpoint(checkpoint)
    require_artifact(artifact)
    config = read_config(artifact).require_logits()
    arguments = read_manifest(artifact).arguments
    if rounded := arguments.get("quantize") or arguments.get("quantize_embedding"):
        raise UnsupportedError(
            f"{artifact}: expected the weights of the checkpoint, found weights that the export rounded to {rounded}: "
            "measure the difference with `hybridge evaluate`"
        )
    options.check(config.max_seq_len)
    return config


def _cases(
    source: Path,
    checkpoint: Path,
    artifact: Path,
    config: RuntimeConfig,
    options: VerifyOptions,
    plan: Plan,
    progress: Progress,
) -> Cases:
    progress.start("load the reference")
    shown = shows_layers(options.engine)
    forced, inner = _rounds_inputs(config) and shown, None
    if shown and _rounds_values(config, options):
        inner = router_inputs(artifact)
    opened = partial(_opened, source, checkpoint, config, options, tuple(inner or ()))
    reference = opened()
    if inner and not reference.has_routers:
        inner = {}
    products = {**product_inputs(artifact), **(inner or {})} if forced else None
    return Cases.of(reference, cache(opened), config, options, plan, progress, products, inner)


def _opened(
    source: Path, checkpoint: Path, config: RuntimeConfig, options: VerifyOptions, routers: tuple[str, ...]
) -> Reference:
    """The reference, whose ``routers`` have these names if it has as many."""
    reference = Reference(checkpoint, config)
    computed = computed_type(options.engine, config.dtype, options.float32)
    reference.notes = (*reference.notes, *round_inputs(reference, source, config, INNER_TIES.get(computed, 0.0)))
    if config.has_kv_scales:
        reference.scale_caches(stored_cache_scales(source))
    if routers:
        reference.use_routers(routers)
    return reference


def _rounds_inputs(config: RuntimeConfig) -> bool:
    """Whether products of the artifact round their inputs."""
    return config.quantization is not None and bool(config.quantization.inputs)


def _rounds_values(config: RuntimeConfig, options: VerifyOptions) -> bool:
    """Whether the engine rounds more than float32 does, so that near ties of experts may fall to another one."""
    narrow = computed_type(options.engine, config.dtype, options.float32) is not DType.FLOAT32
    return narrow or config.has_kv_scales or bool(config.state_scales) or _rounds_inputs(config)


def round_inputs(reference: Reference, source: Path, config: RuntimeConfig, inner_tie: float = 0.0) -> tuple[str, ...]:
    """Make ``reference`` round inputs like the artifact with ``config``, as the checkpoint ``source`` says; remarks.

    inner_tie: as in ``Reference.round_inputs``.
    CheckpointError: the artifact rounds the inputs of more or fewer products than the checkpoint.
    """
    roundings = stored_roundings(source)
    expected = sum(config.quantization.inputs.values()) if config.quantization is not None else 0
    if not expected:
        if not roundings:
            return ()
        return ("the checkpoint rounds inputs of products; neither the artifact nor the reference does",)
    found = reference.round_inputs(roundings, inner_tie)
    if found != expected:
        raise CheckpointError(
            f"{source}: expected a checkpoint that rounds the inputs of {expected} products, as the artifact does, "
            f"found {found}: verify with the checkpoint that was exported"
        )
    return (f"the inputs of {found} products are rounded as the checkpoint says, in the reference too",)


def _run(
    artifact: Path,
    name: str,
    cases: Cases,
    options: VerifyOptions,
    tolerance: float,
    progress: Progress,
    notes: list[str],
) -> Iterator[Comparison]:
    """All comparisons of the engine ``name``, which is open only here; its remarks are added to ``notes``."""
    opened = layout_steps(cases.config).opened(artifact, name, options)
    notes += opened.engine.notes
    with closing(opened.engine) as engine:
        inputs = cases.inputs
        tokens = inputs.prompts, inputs.sequences, options.decode_steps, inputs.long_rows
        runs = EngineRuns(
            engine.name,
            partial(opened.observations, *tokens),
            cases.expected,
            cases.config,
            tolerance,
            cases.products,
            cases.inner,
            progress,
        )
        yield from runs.comparisons()
        for scenario, layer, same in opened.untouched(inputs.prompts[0]):
            yield Comparison(engine.name, scenario, UNCHANGED, layer, 0.0 if same else float("inf"), same)


@dataclass(frozen=True)
class Cases:
    """The tokens and the reference's results for them.

    windows: the sliding window of each layer, or None. reference, notes: its name, and remarks for the user.
    products: the values of the artifact's graph that rounded products and routers get, if products round their inputs;
    None: the reference gets no inputs from the artifact. inner: those of routers, as ``EngineRuns`` has them.
    """

    config: RuntimeConfig
    inputs: Inputs
    expected: Expected
    windows: tuple[int | None, ...]
    reference: str
    notes: tuple[str, ...]
    products: Mapping[str, str] | None
    inner: Mapping[str, str] | None

    @classmethod
    def of(
        cls,
        reference: Reference,
        reopened: Callable[[], Reference],
        config: RuntimeConfig,
        options: VerifyOptions,
        plan: Plan,
        progress: Progress,
        products: Mapping[str, str] | None,
        inner: Mapping[str, str] | None,
    ) -> Cases:
        prompts, sequences = random_prompts(options.seed, config.vocab_size, plan.lengths, options.decode_steps)
        inputs = Inputs(prompts, sequences, plan.long_rows)
        computed: DType | None = computed_type(options.engine, config.dtype, options.float32)
        computed = None if computed is DType.FLOAT32 else computed
        forced = products is not None
        if config.state_scales:
            expected: Expected = SteppedRuns(inputs, reference, forced, computed)
        elif forced:
            expected = ForcedRuns(inputs, reference)
        else:
            stored = stored_runs(reference, config, inputs, progress)
            expected = replace(stored, reopened=reopened, computed=computed)
        return cls(config, inputs, expected, reference.windows, reference.name, reference.notes, products, inner)


def random_prompts(
    seed: int, vocab_size: int, lengths: tuple[int, ...], steps: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Prompts of ``lengths``, and the same with ``steps`` more tokens; none repeats before all have been used."""
    generator, count = np.random.default_rng(seed), sum(lengths) + steps * len(lengths)
    rounds = [generator.permutation(vocab_size) for _ in range(-(-count // vocab_size))]
    ends = np.cumsum([*lengths, *(steps for _ in lengths)])
    parts = np.split(np.concatenate(rounds), ends)[:-1]
    prompts, tails = parts[: len(lengths)], parts[len(lengths) :]
    return prompts, [np.concatenate(pair) for pair in zip(prompts, tails, strict=True)]


def _compare_windows(engine: str, cases: Cases) -> Iterator[Comparison]:
    """The windows that config.json declares: schedulers free the blocks that are outside of them."""
    config = cases.config
    for layer, kv in zip(config.attention_layer_indices, config.kv_layers, strict=True):
        declared, expected_window = kv.sliding_window, cases.windows[layer]
        if declared or expected_window:
            error = 0.0 if declared == expected_window else float("inf")
            yield Comparison(engine, "sliding windows in config.json", UNCHANGED, layer, error, not error)
