"""Compare an artifact with its checkpoint in every way that it can be driven."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from artifact import names
from artifact.config import RuntimeConfig, read_config
from artifact.errors import located
from artifact.manifest import check_artifact
from artifact.paged import PAGED
from artifact.path_kind import require_artifact, require_checkpoint
from artifact.progress import NoProgress, Progress
from exporter.checkpoint import open_checkpoint
from hybridge.verification import paged_scenarios, scenarios
from hybridge.verification.options import VerifyOptions, default_tolerance
from hybridge.verification.reference import Reference, ReferenceRun
from hybridge.verification.reference_folder import reference_folder
from hybridge.verification.report import Comparison, VerifyReport
from hybridge.verification.scenarios import Observation
from runtime.engines import create_engine
from runtime.engines.base import Engine
from runtime.engines.factory import AUTO, check_engine, portable_unavailable
from runtime.engines.paged import PagedEngine
from runtime.engines.paged_factory import check_paged_engine, create_paged_engine

FAST, PORTABLE = "onnxruntime", "onnxruntime-portable"


def verify(
    checkpoint: Path, artifact: Path, options: VerifyOptions | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Run ``artifact`` and transformers on the same random tokens and compare logits, hidden states and states.

    ArtifactError, CheckpointError, RequestError or EngineError when one of them cannot run; a disagreement is not
    an error but a report whose ``passed`` is false.
    """
    with reference_folder(checkpoint) as folder:
        return _verify(folder, artifact, options or VerifyOptions(), progress or NoProgress())


def _verify(checkpoint: Path, artifact: Path, options: VerifyOptions, progress: Progress) -> VerifyReport:
    # What cannot be done is said before the long work: the reference may take minutes to load.
    check_engine(options.engine)
    require_checkpoint(checkpoint)
    require_artifact(artifact)
    config = read_config(artifact).require_logits()
    if config.layout == PAGED:
        check_paged_engine(options.engine)
    options.check(config.max_seq_len)
    tolerance = options.tolerance or default_tolerance(options.engine, config.dtype, config.has_kv_scales)
    notes: list[str] = []
    engines = _engine_names(options.engine, config.layout, notes)
    check_artifact(artifact)
    # transformers opens whatever lies there: the checks of an export come first.
    with located(checkpoint):
        open_checkpoint(checkpoint)
    progress.start("load the reference")
    reference = Reference(checkpoint, config)
    notes += reference.notes
    comparisons: list[Comparison] = []
    try:
        cases = Cases.of(reference, config, options, progress)
        for name in engines:
            progress.start(f"run the artifact ({name})")
            engine = create_paged_engine(artifact, name) if config.layout == PAGED else create_engine(artifact, name)
            try:
                if isinstance(engine, Engine):
                    comparisons += _comparisons(engine, cases, options.decode_steps, tolerance, progress)
                else:
                    comparisons += _paged_comparisons(engine, cases, options.decode_steps, tolerance, progress)
            finally:
                engine.close()
    finally:
        progress.finish()
    return VerifyReport(
        config.model_type,
        engines,
        reference.name,
        tolerance,
        tuple(comparisons),
        config.layer_types,
        tuple(notes),
    )


def _engine_names(wanted: str, layout: str, notes: list[str]) -> tuple[str, ...]:
    """The engines to run: the one asked for; for "auto" the fast one, and the file exactly as it was exported."""
    if wanted != AUTO:
        return (wanted,)
    # A paged graph has no operator of the newest opset, so that any ONNX Runtime runs it under an older number.
    reason = None if layout == PAGED else portable_unavailable()
    if reason is not None:
        notes.append(f"the file was not run in its own form: {reason}")
        return (FAST,)
    return (FAST, PORTABLE)


@dataclass(frozen=True)
class Cases:
    """Random prompts, the same with decode tokens after them, and the reference's results for both."""

    config: RuntimeConfig
    prompts: list[np.ndarray]
    sequences: list[np.ndarray]
    at_prompt: list[ReferenceRun]
    at_end: list[ReferenceRun]

    @classmethod
    def of(cls, reference: Reference, config: RuntimeConfig, options: VerifyOptions, progress: Progress) -> Cases:
        generator = np.random.default_rng(options.seed)
        lengths = options.prompt_lengths
        sequences = [generator.integers(0, config.vocab_size, n + options.decode_steps) for n in lengths]
        prompts = [s[:n] for s, n in zip(sequences, lengths, strict=True)]
        progress.start("run the reference", 2 * len(prompts))
        at_prompt, at_end = [], []
        for prompt, sequence in zip(prompts, sequences, strict=True):
            at_prompt.append(reference.run(prompt))
            at_end.append(reference.run(sequence))
            progress.advance(2)
        return cls(config, prompts, sequences, at_prompt, at_end)

    def expected(self, observation: Observation) -> ReferenceRun:
        """The reference run whose states belong to the observation's number of tokens."""
        is_prompt = observation.length == len(self.prompts[observation.prompt])
        return (self.at_prompt if is_prompt else self.at_end)[observation.prompt]


def _comparisons(
    engine: Engine, cases: Cases, decode_steps: int, tolerance: float, progress: Progress
) -> Iterator[Comparison]:
    for stream in _streams(engine, cases, decode_steps):
        for observation in stream:
            yield from _compare(engine.name, observation, cases.expected(observation), cases.config, tolerance)
            progress.advance()
    prompt = cases.prompts[0]
    if engine.max_batch_size > 1 and 2 * len(prompt) <= engine.max_seq_len:
        yield from _compare_empty_row(engine, prompt, cases.config)


def _paged_comparisons(
    engine: PagedEngine, cases: Cases, decode_steps: int, tolerance: float, progress: Progress
) -> Iterator[Comparison]:
    for observation in paged_scenarios.observations(engine, cases.prompts, cases.sequences, decode_steps):
        yield from _compare(engine.name, observation, cases.expected(observation), cases.config, tolerance)
        progress.advance()
    for scenario, same in paged_scenarios.untouched(engine, cases.prompts[0]):
        yield Comparison(engine.name, scenario, "unchanged", None, 0.0 if same else float("inf"), same)


def _streams(engine: Engine, cases: Cases, decode_steps: int) -> Iterator[Iterable[Observation]]:
    yield scenarios.one_shot(engine, cases.prompts)
    yield scenarios.chunked(engine, cases.prompts)
    step = engine.max_batch_size
    for start in range(0, len(cases.prompts), step):
        ragged = scenarios.ragged_then_decode(engine, cases.sequences[start : start + step], decode_steps)
        yield _renumbered(ragged, start)


def _renumbered(observations: Iterable[Observation], start: int) -> Iterator[Observation]:
    for o in observations:
        yield Observation(o.scenario, o.prompt + start, o.length, o.logits, o.states, o.hidden)


def _compare(
    engine: str, observed: Observation, expected: ReferenceRun, config: RuntimeConfig, tolerance: float
) -> Iterator[Comparison]:
    def comparison(item: str, layer: int | None, found: np.ndarray, wanted: np.ndarray) -> Comparison:
        error = relative_error(found, wanted)
        return Comparison(engine, observed.scenario, item, layer, error, error <= tolerance)

    for index, hidden in enumerate(observed.hidden):
        yield comparison("hidden", index, hidden, expected.hidden[index])
    for name, layer, item in state_items(config):
        if name in observed.states:
            wanted = expected.states[name]
            found = observed.states[name]
            # A sliding window's reference cache keeps only the last positions.
            yield comparison(item, layer, found[:, -wanted.shape[1] :] if item in ("key", "value") else found, wanted)
    yield comparison("logits", None, observed.logits, expected.logits[observed.length - 1])


def _compare_empty_row(engine: Engine, prompt: np.ndarray, config: RuntimeConfig) -> Iterator[Comparison]:
    before, after = scenarios.empty_row(engine, prompt)
    for name, layer, _item in state_items(config):
        same = bool(np.array_equal(before[name], after[name]))
        yield Comparison(engine.name, "row without tokens", "unchanged", layer, 0.0 if same else float("inf"), same)


def state_items(config: RuntimeConfig) -> Iterator[tuple[str, int, str]]:
    """(graph input, absolute layer, item) of every state."""
    for k, layer in enumerate(config.attention_layer_indices):
        yield names.past_key(k), layer, "key"
        yield names.past_value(k), layer, "value"
    for r, layer in enumerate(config.recurrent_layer_indices):
        yield names.conv_state(r), layer, "conv_state"
        yield names.recurrent_state(r), layer, "recurrent_state"


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """L2 norm of the difference over the norm of ``wanted`` (absolute where that is 0); infinite if shapes differ."""
    if found.shape != wanted.shape:
        return float("inf")
    difference = float(np.linalg.norm(found.astype(np.float64) - wanted.astype(np.float64)))
    norm = float(np.linalg.norm(wanted.astype(np.float64)))
    return difference / norm if norm > 0 else difference
