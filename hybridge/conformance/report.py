"""The result of a conformance run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hybridge.conformance.comparison import DIFFERENT, EQUAL, FAILED, TIE, Finding

if TYPE_CHECKING:
    from rich.console import Group

_SHOWN = 5
_TEXT = 60


@dataclass(frozen=True)
class ScenarioResult:
    """Answers of one scenario by verdict. cached_tokens: of all its prompts, None where the server reports none."""

    name: str
    answers: int
    equal: int
    ties: int
    different: int
    failed: int
    cached_tokens: int | None

    @classmethod
    def of(cls, name: str, findings: Sequence[Finding]) -> ScenarioResult:
        """The counts of ``findings``."""
        counts = Counter(each.verdict for each in findings)
        cached = [each.cached_tokens for each in findings if each.cached_tokens is not None]
        equal, ties, different, failed = (counts[each] for each in (EQUAL, TIE, DIFFERENT, FAILED))
        return cls(name, len(findings), equal, ties, different, failed, sum(cached) if cached else None)


@dataclass(frozen=True)
class ConformanceReport:
    """findings: those that are not equal, in order."""

    url: str
    model: str
    scenarios: tuple[ScenarioResult, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every answer equals that of the prompt sent alone, except for ties."""
        return not any(each.different or each.failed for each in self.scenarios)

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields and ``passed``."""
        return {**asdict(self), "passed": self.passed}

    def render(self) -> Group:
        """Tables for a terminal."""
        from rich.console import Group
        from rich.table import Table

        table = Table(title=f"{self.model} at {self.url}", title_justify="left")
        table.add_column("scenario")
        for name in ("answers", "equal", "ties", "different", "failed", "cached tokens"):
            table.add_column(name, justify="right")
        for each in self.scenarios:
            numbers = (each.answers, each.equal, each.ties, each.different, each.failed)
            table.add_row(each.name, *map(str, numbers), "-" if each.cached_tokens is None else str(each.cached_tokens))
        wrong = [each for each in self.findings if each.verdict != TIE]
        lines = [_line(each) for each in wrong[:_SHOWN]]
        if len(wrong) > _SHOWN:
            lines.append(f"and {len(wrong) - _SHOWN} more: --json lists all")
        lines.append("passed" if self.passed else "not passed")
        return Group(table, *lines)


def _line(finding: Finding) -> str:
    where = f"{finding.scenario}: prompt {_short(finding.prompt)}"
    if finding.verdict == FAILED:
        return f"{where}: {finding.found}"
    return (
        f"{where}: expected {_short(finding.expected)} as alone, found {_short(finding.found)}, "
        f"different from position {finding.position}"
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= _TEXT else text[: _TEXT - 3] + "...")
