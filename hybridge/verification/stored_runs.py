"""The reference's runs of all prompts and rows of a verification."""

from __future__ import annotations

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.progress import Progress
from hybridge.verification.expected import Inputs, StoredRuns
from hybridge.verification.reference import Reference, ReferenceRun


def stored_runs(reference: Reference, config: RuntimeConfig, inputs: Inputs, progress: Progress) -> StoredRuns:
    """The reference's run of each of ``inputs``."""
    progress.start("run the reference", 2 * len(inputs.prompts) + len(inputs.long_rows))
    at_prompt: list[ReferenceRun] = []
    at_end: list[ReferenceRun] = []
    for prompt, sequence in zip(inputs.prompts, inputs.sequences, strict=True):
        end = reference.run(sequence, last=1 + len(sequence) - len(prompt))
        progress.advance()
        # Recurrent states after the prompt need a separate run.
        first = None if config.recurrent_layers else end.first(len(prompt))
        at_prompt.append(first or reference.run(prompt, last=1))
        at_end.append(end)
        progress.advance()
    at_long_window: list[ReferenceRun] = []
    for row in inputs.long_rows:
        at_long_window.append(reference.run(row.tokens, row.caches))
        progress.advance()
    return StoredRuns(inputs, at_prompt, at_end, at_long_window)
