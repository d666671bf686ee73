"""Comparison of an artifact's multi-token prediction head with its checkpoint, over every kind of step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from hybridge.artifact.config import MTP_CONFIG_FILE, RuntimeConfig, read_config
from hybridge.artifact.errors import ArtifactError, located
from hybridge.artifact.progress import Progress
from hybridge.artifact.untrusted_file import has_file
from hybridge.verification import paged_scenarios
from hybridge.verification.cache_scales import stored_cache_scales
from hybridge.verification.compare import compared
from hybridge.verification.expected import Inputs, StoredRuns
from hybridge.verification.head_engines import HEAD_ENGINES, open_head
from hybridge.verification.head_reference import HeadReference, head_folder
from hybridge.verification.head_states import HeadStates
from hybridge.verification.options import VerifyOptions
from hybridge.verification.report import UNCHANGED, Comparison
from hybridge.verification.stored_runs import stored_runs


@dataclass(frozen=True)
class HeadCases:
    """The reference's results of the head with ``config``, whose hidden states are ``states``."""

    config: RuntimeConfig
    states: HeadStates
    expected: StoredRuns

    def compared(
        self, artifact: Path, name: str, options: VerifyOptions, tolerance: float, progress: Progress, notes: list[str]
    ) -> Iterator[Comparison]:
        """All comparisons on the engine ``name``, which is opened and closed here; remarks are added to ``notes``."""
        if name not in HEAD_ENGINES:
            notes.append(f"the prediction head was not compared: {name} returns its tokens only")
            return
        progress.start(f"run the prediction head ({name})")
        inputs = self.expected.inputs
        with closing(open_head(artifact, name, self.states, options.float32)) as engine:
            runs = paged_scenarios.observations(engine, inputs.prompts, inputs.sequences, options.decode_steps, ())
            for observation in runs:
                found = compared(engine.name, observation, self.expected, self.config, tolerance)
                for comparison in found:
                    yield _in_head(comparison)
                progress.advance()
            for scenario, layer, same in paged_scenarios.untouched(engine, inputs.prompts[0]):
                error = 0.0 if same else float("inf")
                yield _in_head(Comparison(engine.name, scenario, UNCHANGED, layer, error, same))


def head_cases(
    source: Path,
    checkpoint: Path,
    artifact: Path,
    model: RuntimeConfig,
    inputs: Inputs,
    options: VerifyOptions,
    progress: Progress,
    notes: list[str],
) -> HeadCases | None:
    """The cases of the artifact's head; None where it has none, or with a note where it cannot be compared.

    ``checkpoint``: what transformers loads in place of ``source``.
    ArtifactError: the head is that of another model. CheckpointError: the checkpoint has no such head.
    """
    if not has_file(artifact, MTP_CONFIG_FILE):
        return None
    config = read_config(artifact, MTP_CONFIG_FILE).require_logits()
    for field in ("model_type", "vocab_size", "hidden_size", "dtype", "layout"):
        expected, found = getattr(model, field), getattr(config, field)
        if expected != found:
            raise ArtifactError(
                f"{artifact / MTP_CONFIG_FILE}: expected the head of the artifact's model, with {field} {expected}, "
                f"found {found}: export the checkpoint again"
            )
    if model.quantization is not None and model.quantization.inputs:
        notes.append("the prediction head was not compared: products of the artifact round their inputs")
        return None
    progress.start("load the reference of the prediction head")
    states = HeadStates.random(config, options.seed)
    with located(checkpoint), head_folder(checkpoint) as folder:
        reference = HeadReference(checkpoint, folder, config, states)
        if config.has_kv_scales:
            reference.scale_caches(stored_cache_scales(source, head=True))
        return HeadCases(config, states, stored_runs(reference, config, replace(inputs, long_rows=()), progress))


def _in_head(comparison: Comparison) -> Comparison:
    return replace(comparison, scenario=f"head: {comparison.scenario}", in_head=True)
