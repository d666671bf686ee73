"""The one way to run a benchmark: its settings are its options, its gates decide whether there are numbers to print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from benchmarks.machine import OtherWork, machine_json
from benchmarks.plots import PLOTTED, draw
from hybridge.artifact.errors import HybridgeError, SettingError

# Above this share of the processor time, other processes disturb the numbers.
QUIET_SHARE = 0.05
# Settings that say nothing about the numbers.
UNPRINTED = ("work", "folder", "trained")
Direction = Literal["at most", "at least"]


@dataclass(frozen=True)
class Gate:
    """A comparison with the reference, checked before anything is measured: ``value`` must not exceed ``limit``."""

    checks: str
    value: float
    limit: float

    @property
    def passed(self) -> bool:
        """False also when the value is not a number."""
        return self.value <= self.limit

    def to_json(self) -> dict[str, Any]:
        """The fields and the outcome."""
        return {**vars(self), "passed": self.passed}


@dataclass(frozen=True)
class Target:
    """A measured value and its goal."""

    name: str
    value: float
    direction: Direction
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        """Whether the value is on the right side of the limit."""
        return self.value <= self.limit if self.direction == "at most" else self.value >= self.limit

    def to_json(self) -> dict[str, Any]:
        """The fields and the outcome."""
        return {**vars(self), "met": self.met}


@dataclass(frozen=True)
class Report:
    """The outcome of a benchmark.

    described: printed with the settings. partial: each row of ``results`` says whether it is correct, so that the
    others are printed even when a gate failed.
    """

    gates: tuple[Gate, ...]
    results: Mapping[str, Any] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    described: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False


class WrongResults(Exception):
    """Gates of a benchmark failed, so it has no numbers."""

    def __init__(self, gates: tuple[Gate, ...]) -> None:
        super().__init__("; ".join(f"{gate.checks}: {gate.value:.3g}" for gate in gates if not gate.passed))
        self.gates = gates


def chosen(setting: str, text: str, known: Collection[str]) -> list[str]:
    """The names in ``text``, separated by commas; SettingError where ``known`` lacks one."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise SettingError(f"{setting}: expected some of {', '.join(known)}, found {unknown[0]!r}: choose from these")
    return names


def require(*gates: Gate) -> tuple[Gate, ...]:
    """``gates``, when all of them passed. WrongResults otherwise, before anything is measured."""
    if not all(gate.passed for gate in gates):
        raise WrongResults(gates)
    return gates


@dataclass(frozen=True)
class Benchmark:
    """One row of the registry.

    run: takes the settings, a frozen dataclass with a default for every field. commit: of the files that run, where
    they are not in a checkout.
    """

    name: str
    run: Callable[[Any], Report]

    @property
    def settings(self) -> type[Any]:
        """The class of the settings."""
        settings: type[Any] = get_type_hints(self.run)["settings"]
        return settings

    def document(self, settings: Any = None, commit: str | None = None) -> dict[str, Any]:
        """Run and return the JSON document. Without green gates it has no numbers.

        What the packages of peers print goes to standard error.
        """
        settings = self.settings() if settings is None else settings
        other_work = OtherWork()
        try:
            with redirect_stdout(sys.stderr):
                report = self.run(settings)
        except WrongResults as wrong:
            report = Report(wrong.gates)
        found = machine_json()
        found["machine"]["other_work"] = other_work.share()
        printed = {name: value for name, value in vars(settings).items() if name not in UNPRINTED}
        document = {
            "benchmark": self.name,
            **found,
            "settings": _plain({**printed, **report.described}),
            "correct": all(gate.passed for gate in report.gates),
            "gates": [gate.to_json() for gate in report.gates],
        }
        if commit is not None:
            document["commit"] = commit
        if document["correct"] or report.partial:
            document["results"] = _plain(report.results)
            document["targets"] = [target.to_json() for target in report.targets]
        return document

    def main(self, argv: Sequence[str], description: str) -> int:
        """Parse ``argv``, run, print the document or its table. The exit code: 0, 1 when a gate failed, 2 for
        bad usage or a machine that cannot run it. A missed target does not change it: it is a finding.
        """
        parser = self._parser(description)
        options = vars(parser.parse_args(argv))
        as_json, plot, kept, commit = (options.pop(name) for name in ("json", "plot", "kept", "commit"))
        if plot is not None and self.name not in PLOTTED:
            parser.error(f"--plot: expected a benchmark with a picture ({', '.join(PLOTTED)}), found {self.name}")
        names = {each.name for each in fields(self.settings)}
        if options["repeats"] is not None and options["repeats"] < 1:
            parser.error(f"--repeats: expected at least 1, found {options['repeats']}")
        given = {name: value for name, value in options.items() if value is not None and name in names}
        given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        try:
            document = self.document(self.settings(**given), commit) if kept is None else json.loads(kept.read_text())
        except (HybridgeError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(json.dumps(document, indent=2) if as_json else table_text(document))
        if not document["correct"]:
            print(f"{self.name}: wrong results", file=sys.stderr)
            return 1
        if plot is not None:
            draw(document, plot)
        return 0

    def _parser(self, description: str) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks {self.name}",
            description=description,
            epilog=self.settings.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--json", action="store_true", help="print the JSON document (default: a table)")
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the results (needs the extra plot)")
        parser.add_argument("--from", dest="kept", type=Path, metavar="FILE", help="read a kept document, run nothing")
        parser.add_argument("--commit", help="the commit of the files, where they are not in a checkout")
        types = get_type_hints(self.settings)
        for each in fields(self.settings):
            if (kind := _option_kind(types[each.name])) is not None:
                default = None if each.default is MISSING else each.default
                parser.add_argument(f"--{each.name.replace('_', '-')}", **kind, help=f"default: {_shown(default)}")
        if "repeats" not in types:
            parser.add_argument("--repeats", type=int, help="has no effect: results are counts")
        return parser


def table_text(document: Mapping[str, Any]) -> str:
    """A readable summary of one document: gates, then targets."""
    lines = [f"{document['benchmark']}  (commit {document['commit']}, {document['machine']['cpu']})"]
    others = document["machine"].get("other_work")
    if others is not None and others > QUIET_SHARE:
        lines.append(f"  noisy: other work took {100 * others:.0f}% of the processor time")
    for gate in document["gates"]:
        state = "ok  " if gate["passed"] else "FAIL"
        lines.append(f"  gate   {state} {gate['checks']}: {gate['value']:.3g} (at most {gate['limit']:.3g})")
    for target in document.get("targets", ()):
        state = "met " if target["met"] else "MISS"
        goal = f"{target['direction']} {target['limit']:g}"
        lines.append(f"  target {state} {target['name']}: {target['value']:.4g} {target['unit']} ({goal})")
    return "\n".join(lines)


def _option_kind(hint: Any) -> dict[str, Any] | None:
    """What argparse is told about a setting of type ``hint``; None for one that is no option (a model's shape)."""
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    for kind in (int, float, str):
        if hint in (kind, kind | None):
            return {"type": kind}
        if get_args(hint) == (kind, ...):
            return {"type": kind, "nargs": "+"}
    return None


def _shown(default: Any) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _plain(value: Any) -> Any:
    """``value`` as JSON has it: dataclasses and mappings are objects, tuples are arrays."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(vars(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
