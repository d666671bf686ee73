"""A conformance run."""

from __future__ import annotations

import secrets

from hybridge.artifact.progress import Progress
from hybridge.conformance.client import CompletionsClient
from hybridge.conformance.comparison import EQUAL, Finding
from hybridge.conformance.options import ConformanceOptions
from hybridge.conformance.prompts import PromptSource
from hybridge.conformance.report import ConformanceReport, ScenarioResult
from hybridge.conformance.scenarios import Scenarios


def run_conformance(url: str, key: str | None, options: ConformanceOptions, progress: Progress) -> ConformanceReport:
    """Run all scenarios against the server at ``url``; ServerError when it cannot be reached or accepts no prompt."""
    client = CompletionsClient(url, options.model, key, options.max_tokens, options.timeout)
    source = PromptSource(secrets.token_hex(4), options.seed, options.longest)
    scenarios = Scenarios(client, source, options)
    results: list[ScenarioResult] = []
    wrong: list[Finding] = []
    names = scenarios.names()
    progress.start("ask the server", len(names), "scenarios")
    for name, findings in zip(names, scenarios.run(), strict=True):
        results.append(ScenarioResult.of(name, findings))
        wrong += [each for each in findings if each.verdict != EQUAL]
        progress.advance()
    return ConformanceReport(url, client.model, tuple(results), tuple(wrong), tuple(_notes(client)))


def _notes(client: CompletionsClient) -> list[str]:
    notes = []
    if not client.features.logprobs:
        notes.append("the server has no logprobs: ties cannot be distinguished from differences")
    if not client.features.cache_salt:
        notes.append("the server has no cache_salt: prompts sent alone may use cached prefixes")
    return notes
