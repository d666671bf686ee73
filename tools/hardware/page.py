"""The report of a check as one HTML page without any other file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hardware.charts import bars, lines
from hardware.steps import STEPS

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; max-width: 920px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { border: 1px solid #ccc; padding: .25em .6em; text-align: left }
.passed { background: #d9efd9 } .failed { background: #f6d0d0 } .skipped { background: #f4ecd0 }
.unsupported { color: #888 }
figure { margin: 1.5em 0 } figcaption { font-weight: 600 } svg { width: 100% } svg text { font-size: 11px; fill: #333 }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .6em }
"""
Steps = Sequence[Mapping[str, Any]]


def write_page(path: Path, report: Mapping[str, Any]) -> None:
    """Write the page of ``report`` (report.schema.json) to ``path``."""
    path.write_text(page_of(report), encoding="utf-8")


def page_of(report: Mapping[str, Any]) -> str:
    """The page: verdict, machine, steps by form, errors, and charts of speed, power and errors of logits."""
    steps: Steps = report["steps"]
    verdict = "passed" if report["passed"] else "failed"
    gpu = report["machine"].get("gpu") or {}
    title = f"Hybridge {report['hybridge']} on {gpu.get('name', 'no GPU')}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p><b class="{verdict}">{verdict}</b> {escape(report["created"])}, {report["seconds"] / 60:.1f} minutes</p>',
        _facts(report["machine"]),
        "<h2>Steps</h2>",
        _step_table(steps),
        *_problems(steps),
        "<h2>Measurements</h2>",
        *_charts(steps),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    content = "\n".join(filter(None, body))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{content}\n</body></html>\n'


def _facts(machine: Mapping[str, Any]) -> str:
    rows = []
    for name, value in machine.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else value
        shown = ", ".join(map(str, shown)) if isinstance(shown, list) else shown
        if shown not in ("", None):
            rows.append(f"<tr><th>{escape(name)}</th><td>{escape(str(shown))}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _step_table(steps: Steps) -> str:
    forms = list(dict.fromkeys(step["form"] for step in steps if "form" in step))
    found = {(step.get("form"), step["step"]): step for step in steps}
    rows = []
    for form in forms:
        whole = found.get((form, "form"))
        if whole is not None:
            rows.append(
                f'<tr><th>{escape(form)}</th><td class="unsupported" colspan="9">{escape(whole["reason"])}</td>'
            )
            continue
        cells = (_cell(found.get((form, name))) for name in STEPS)
        rows.append(f"<tr><th>{escape(form)}</th>{''.join(cells)}</tr>")
    heads = "".join(f"<th>{escape(name)}</th>" for name in STEPS)
    return f"<table><tr><th></th>{heads}</tr>{''.join(rows)}</table>"


def _cell(step: Mapping[str, Any] | None) -> str:
    if step is None:
        return "<td></td>"
    return f'<td class="{escape(step["status"])}">{escape(step["status"])}, {step["seconds"]:.1f} s</td>'


def _problems(steps: Steps) -> Iterator[str]:
    for step in steps:
        why = step.get("error") or (step.get("reason") if step["status"] == "skipped" else None)
        if why:
            place = " ".join(filter(None, (step.get("form"), step["step"])))
            yield f"<h3>{escape(place)}</h3><pre>{escape(str(why))}\n{escape(step.get('traceback', ''))}</pre>"


def _charts(steps: Steps) -> Iterator[str]:
    speeds = [(step["form"], step) for step in steps if step["step"] == "speed" and step["status"] == "passed"]
    for name in dict.fromkeys(key for _, step in speeds for key in step["tensorrt"]["decode"]):
        yield bars(f"Decoding, {name}: tokens per second", _rows(speeds, "decode", name, "tokens_per_second"))
    for name in dict.fromkeys(key for _, step in speeds for key in step["tensorrt"]["prefill"]):
        yield bars(f"Prompt, {name}: tokens per second", _rows(speeds, "prefill", name, "tokens_per_second"))
    yield bars("Power while decoding: mean W", [(form, watts) for form, step in speeds if (watts := _power(step))])
    drifts = {
        step["form"]: {int(length): error for length, error in step["errors"].items() if error is not None}
        for step in steps
        if step["step"] == "drift" and "errors" in step
    }
    yield lines("Relative error of logits against ONNX Runtime, by tokens decoded", drifts)


def _rows(
    speeds: Sequence[tuple[str, Mapping[str, Any]]], kind: str, name: str, value: str
) -> list[tuple[str, dict[str, float]]]:
    """The value of every engine that has one, by form."""
    return [
        (form, {engine: step[engine][kind][name][value] for engine in _ENGINES if name in step[engine][kind]})
        for form, step in speeds
    ]


_ENGINES = ("tensorrt", "onnxruntime")


def _power(step: Mapping[str, Any]) -> dict[str, float]:
    """Mean power of each rail at the largest batch of TensorRT."""
    measured = [each["power"] for each in step["tensorrt"]["decode"].values() if each["power"]]
    return {rail: each["mean_w"] for rail, each in measured[-1]["rails"].items()} if measured else {}
