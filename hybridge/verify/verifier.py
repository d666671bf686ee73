"""Compare an artifact with its checkpoint in every way that it can be driven."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from artifact import names
from artifact.config import RuntimeConfig, read_config
from artifact.manifest import check_files, read_manifest
from artifact.progress import NoProgress, Progress
from hybridge.verify import scenarios
from hybridge.verify.options import VerifyOptions
from hybridge.verify.reference import Reference, ReferenceRun
from hybridge.verify.report import Comparison, VerifyReport
from hybridge.verify.scenarios import Observation
from runtime.engines import create_engine
from runtime.engines.base import Engine


def verify(
    checkpoint: Path, artifact: Path, options: VerifyOptions | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Run ``artifact`` and transformers on the same random tokens and compare logits, hidden states and states.

    ArtifactError, CheckpointError, RequestError or EngineError when one of them cannot run; a disagreement is not
    an error but a report whose ``passed`` is false.
    """
    options, progress = options or VerifyOptions(), progress or NoProgress()
    config = read_config(artifact)
    options.check(config.max_seq_len)
    check_files(artifact, read_manifest(artifact))
    progress.start("load the reference")
    reference = Reference(checkpoint, config)
    progress.start("load the engine")
    engine = create_engine(artifact, options.engine)
    try:
        comparisons = tuple(_comparisons(engine, reference, config, options, progress))
    finally:
        engine.close()
        progress.finish()
    return VerifyReport(
        config.model_type,
        engine.name,
        reference.name,
        options.tolerance,
        comparisons,
        config.layer_types,
        reference.notes,
    )


def _comparisons(
    engine: Engine, reference: Reference, config: RuntimeConfig, options: VerifyOptions, progress: Progress
) -> Iterator[Comparison]:
    generator = np.random.default_rng(options.seed)
    sequences = [
        generator.integers(0, config.vocab_size, length + options.decode_steps) for length in options.prompt_lengths
    ]
    prompts = [s[:length] for s, length in zip(sequences, options.prompt_lengths, strict=True)]
    batches = [
        range(i, min(i + engine.max_batch_size, len(prompts))) for i in range(0, len(prompts), engine.max_batch_size)
    ]
    progress.start("run the reference", 2 * len(prompts))
    at_prompt, at_end = [], []
    for prompt, sequence in zip(prompts, sequences, strict=True):
        at_prompt.append(reference.run(prompt))
        at_end.append(reference.run(sequence))
        progress.advance(2)
    progress.start("run the artifact")

    def run_of(observation: Observation) -> ReferenceRun:
        is_prompt = observation.length == len(prompts[observation.prompt])
        return (at_prompt if is_prompt else at_end)[observation.prompt]

    streams: list[Iterable[Observation]] = [scenarios.one_shot(engine, prompts), scenarios.chunked(engine, prompts)]
    for rows in batches:
        ragged = scenarios.ragged_then_decode(engine, [sequences[i] for i in rows], options.decode_steps)
        streams.append(_renumbered(ragged, rows.start))
    for stream in streams:
        for observation in stream:
            yield from _compare(observation, run_of(observation), config, options.tolerance)
            progress.advance()
    if engine.max_batch_size > 1 and 2 * len(prompts[0]) <= config.max_seq_len:
        yield from _compare_empty_row(engine, prompts[0], config)


def _renumbered(observations: Iterable[Observation], start: int) -> Iterator[Observation]:
    for o in observations:
        yield Observation(o.scenario, o.prompt + start, o.length, o.logits, o.states, o.hidden)


def _compare(
    observed: Observation, expected: ReferenceRun, config: RuntimeConfig, tolerance: float
) -> Iterator[Comparison]:
    def comparison(item: str, layer: int | None, found: np.ndarray, wanted: np.ndarray) -> Comparison:
        error = relative_error(found, wanted)
        return Comparison(observed.scenario, item, layer, error, error <= tolerance)

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
        yield Comparison("row without tokens", "unchanged", layer, 0.0 if same else float("inf"), same)


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
