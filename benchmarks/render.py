"""Render the page of results: ``python -m benchmarks.render results.json > docs/reference/benchmarks.md``."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.registry import ON_PAGE

TEMPLATE = Path(__file__).with_name("page.template")
RESULTS = Path(__file__).with_name("results")
"""Stored documents: NAME.json is what ``python -m benchmarks NAME --json`` printed."""
NO_RUN = "No run is stored in `benchmarks/results/{}.json` yet."
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
# Missed targets of one kind that are listed one by one.
_MOST_MISSED = 4
# Targets of quantised models whose values are in a list.
_IN_QUALITY_LIST = ("bytes", "mean KL", "99.9 % KL")
Document = Mapping[str, Any]


def page(documents: Mapping[str, Document], kept: Mapping[str, Document]) -> str:
    """The page of the ``documents`` that ``python -m benchmarks`` printed, and of the ``kept`` ones that there are.

    ValueError names a benchmark that is missing or was not correct.
    """
    for name in ON_PAGE:
        if name not in documents:
            raise ValueError(f"{name}: expected its document, found none: run python -m benchmarks without names")
        if not documents[name]["correct"]:
            raise ValueError(f"{name}: expected green gates, found wrong results: there are no numbers to show")
    values = {"machine": _machine(documents), "targets": _targets(documents), "gates": _gates(documents)}
    for name, render in PARTS.items():
        values |= render(documents[name])
    for name, render_kept in KEPT_PARTS.items():
        values[name] = render_kept(kept[name]) if name in kept else NO_RUN.format(name)
    text = TEMPLATE.read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every row has as many cells as the header."""
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join((head, "|---" * len(header) + "|", *lines))


def number(value: float) -> str:
    """Three significant digits, never with an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread_cell(spread: Mapping[str, float], scale: float = 1.0, unit: str = "") -> str:
    """Median and range of a measurement."""
    middle, low, high = (number(scale * spread[key]) for key in ("median", "min", "max"))
    return f"{middle}{unit} ({low} to {high})"


def _machine(documents: Mapping[str, Document]) -> str:
    document = documents["export"]
    machine, versions = document["machine"], document["versions"]
    rows = [
        ("processor", f"{machine['cpu']}, {machine['cores']} cores"),
        ("memory", f"{machine['memory_gb']} GB"),
        ("system", machine["system"]),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("commit", _commits(documents)),
        ("processor time taken by other work", _other_work(documents)),
    ]
    return table(("machine", ""), rows)


def _commits(documents: Mapping[str, Document]) -> str:
    """The commit of all documents, or those of each."""
    names: dict[str, list[str]] = {}
    for name, document in documents.items():
        names.setdefault(document["commit"], []).append(f"`{name}`")
    if len(names) == 1:
        return f"`{next(iter(names))}`"
    return "; ".join(f"`{commit}`: {', '.join(of)}" for commit, of in names.items())


def _other_work(documents: Mapping[str, Document]) -> str:
    """The largest share of all documents; unknown where one lacks it."""
    shares = [document["machine"].get("other_work") for document in documents.values()]
    known = [share for share in shares if share is not None]
    return f"at most {math.ceil(100 * max(known))} %" if len(known) == len(shares) else "unknown"


def _targets(documents: Mapping[str, Document]) -> str:
    """How many targets are met; those that are missed, and those of benchmarks without a section of their own."""
    targets = [(name, target) for name, document in documents.items() for target in document["targets"]]
    rows = []
    for name, target in targets:
        if target["met"] and name in PARTS:
            continue
        goal = f"{target['direction']} {target['limit']:.4g} {target['unit']}"
        found = f"{target['value']:.4g} {target['unit']}"
        rows.append((f"`{name}`: {target['name']}", found, goal if target["met"] else f"**missed**: {goal}"))
    met = sum(target["met"] for _, target in targets)
    sentence = (
        f"In the CPU set, {met} of {len(targets)} targets are met. "
        "For benchmarks with a section below, only missed targets are listed."
    )
    return f"{sentence}\n\n{table(('benchmark', 'measured', 'target'), rows)}"


def _gates(documents: Mapping[str, Document]) -> str:
    """One sentence: how much differed, in logits and in tokens; every document is correct."""
    gates = [gate for document in documents.values() for gate in document["gates"]]
    exact = [gate for gate in gates if gate["limit"] == 0]
    largest = max((gate["value"] / gate["limit"] for gate in gates if gate["limit"] > 0), default=0.0)
    return (
        f"All {len(gates)} comparisons passed: {len(exact)} of tokens found no difference, the others errors of "
        f"at most {100 * largest:.2g} % of the tolerance."
    )


def _model(config: Mapping[str, Any]) -> str:
    layers = f"{config['num_hidden_layers']} layers `{config['hybrid_override_pattern']}`"
    return f"{layers}, hidden size {config['hidden_size']}, vocabulary {config['vocab_size']}"


def _cpu_decode(document: Document) -> dict[str, str]:
    results, settings = document["results"], document["settings"]
    rows: list[Sequence[str]] = []
    for title, cell in (
        ("decode, `LLM.generate`, tokens/s", lambda r: spread_cell(r["decode_tokens_per_s"]["ours"])),
        ("decode, transformers, tokens/s", lambda r: spread_cell(r["decode_tokens_per_s"]["peer"])),
        ("**decode, times transformers**", lambda r: spread_cell(r["decode_ratio"])),
        ("prefill, ours, tokens/s", lambda r: spread_cell(r["prefill_tokens_per_s"]["ours"])),
        ("prefill, transformers, tokens/s", lambda r: spread_cell(r["prefill_tokens_per_s"]["peer"])),
        ("**prefill, times transformers**", lambda r: spread_cell(r["prefill_ratio"])),
        ("Python per step, µs: median (95th percentile)", lambda r: _overhead(r["python_overhead_us"])),
    ):
        rows.append((title, *(cell(result) for result in results.values())))
    names = [f"{name}, {settings['new_tokens'][name]} new tokens" for name in results]
    return {
        "decode": table((f"(prefill: {settings['prefill_tokens']} tokens)", *names), rows),
        "decode_shape": _model(settings["model"]),
        "threads": str(settings["threads"]),
        "prompt_tokens": str(settings["prompt_tokens"]),
    }


def _overhead(overhead: Mapping[str, float]) -> str:
    return f"{overhead['median']:.0f} ({overhead['p95']:.0f})"


def _serving(document: Document) -> dict[str, str]:
    results, settings = document["results"], document["settings"]
    rows = [(name, spread_cell(spread)) for name, spread in results["tokens_per_second"].items()]
    names = ("first_token_p50", "first_token_p99", "between_tokens_p50", "between_tokens_p99")
    latencies = [(load, *(f"{values[n]:.3g}" for n in names)) for load, values in results["latency_ms"].items()]
    heads = ("load", "first token, ms: p50", "p99", "between tokens, ms: p50", "p99")
    sizes = {"requests": "requests", "batch": "batch", "prompt": "prompt", "new": "new_tokens"}
    return {
        "serving": table(("", "tokens/s"), [*rows, ("**batched, times dense**", spread_cell(results["ratio"]))]),
        "latencies": table(heads, latencies),
        **{f"serving_{name}": str(settings[key]) for name, key in sizes.items()},
    }


def _export_sizes(document: Document) -> str:
    limits = {target["name"]: target for target in document["targets"]}
    rows = [
        (
            f"{name} (constructed)" if result["constructed"] else name,
            f"{result['checkpoint_bytes'] / 1e9:.1f}",
            number(result["wall_s"]["median"]),
            number(result["cpu_s"]["median"]),
            number(result["peak_rss_bytes"]["max"] / 1e6),
            number(limits[f"{name}, wall time"]["limit"]),
            _times_imports(result, limits.get(f"{name}, wall time over that of the imports")),
        )
        for name, result in document["results"].items()
    ]
    header = ("model", "weights, GB", "wall, s", "processor, s", "peak, MB", "target, s", "times imports")
    return f"{_kept_machine(document)}\n\n{table(header, rows)}"


def _times_imports(result: Document, target: Document | None) -> str:
    """Wall time over that of the imports; with its target where there is one."""
    ratio = number(result["over_imports"]["median"])
    if target is None:
        return ratio
    return f"{ratio} ({'' if target['met'] else '**missed**: '}at most {number(target['limit'])})"


def _quantized_decode(document: Document) -> str:
    """Median ratios to llama.cpp, or the speeds where it was left out; ranges are in the stored document."""
    lines = []
    for model, result in document["results"].items():
        parts = []
        for kind in ("decode", "prompt"):
            speeds = result.get(f"{kind}_times_llama_cpp", result.get(f"{kind}_tokens_per_s", {}))
            medians = [number(speeds[name]["median"]) for name in ("bf16", "int4", "int8") if name in speeds]
            parts += [f"{kind} {', '.join(medians)}"] if medians else []
        if parts:
            lines.append(f"- {model}: {'; '.join(parts)}")
    lines += _missed_targets(document)
    formats = ", ".join(document.get("settings", {}).get("formats", "bf16,int4,int8").split(","))
    return f"{_kept_machine(document)} {formats}:\n\n" + "\n".join(lines) + _quality(document)


def _missed_targets(document: Document) -> list[str]:
    """A line for each target that models missed; those of quality have a list of their own."""
    missed: dict[str, list[tuple[str, float]]] = {}
    for target in document["targets"]:
        where, _, what = target["name"].partition(": ")
        if not target["met"] and not what.startswith(_IN_QUALITY_LIST):
            missed.setdefault(f"{what} (target {target['limit']:g})", []).append((where, target["value"]))
    return [f"- **missed**: {what}: {_missed(found)}" for what, found in missed.items()]


def _quality(document: Document) -> str:
    """Bytes times llama.cpp's, and KL divergences, ours and llama.cpp's, where they were measured."""
    lines = []
    for model, result in document["results"].items():
        parts = []
        for form, peer in (("int4", "Q4_K_M"), ("int8", "Q8_0")):
            ours, theirs = (result.get("quality", {}).get(name) for name in (form, peer))
            if ours is not None and theirs is not None:
                share = ours["weight_bytes"] / theirs["weight_bytes"]
                cells = [_bold_above(share, 1.0, f"{share:.3f}")]
                cells += [_divergences(ours[key], theirs[key]) for key in ("mean_kl", "kl_999")]
                parts.append(f"{form} {', '.join(cells)}")
        if parts:
            lines.append(f"\n- {model}: {'; '.join(parts)}")
    if not lines:
        return ""
    goal = "(**missed** where bold)"
    return f"\n\nBytes times llama.cpp's; mean, 99.9 % KL divergence, ours/llama.cpp's {goal}:\n" + "".join(lines)


def _divergences(ours: float, theirs: float) -> str:
    """Both, in bold where ours is larger."""
    return _bold_above(ours, theirs, f"{ours:.2g}/{theirs:.2g}")


def _bold_above(value: float, limit: float, text: str) -> str:
    return f"**{text}**" if value > limit else text


def _missed(found: Sequence[tuple[str, float]]) -> str:
    """Where a target was missed, and the values; of many, their number and range."""
    if len(found) <= _MOST_MISSED:
        return "; ".join(f"{where} {value:.3g}" for where, value in found)
    values = [value for _, value in found]
    return f"{len(found)} times, {min(values):.3g} to {max(values):.3g}"


def _hybrid_decode(document: Document) -> str:
    lines = []
    for model, result in document["results"].items():
        cells = []
        for kind in ("decode", "prompt"):
            ratios = (number(ratio["median"]) for ratio in result[f"{kind}_ratios"].values())
            cells.append(f"{kind} {number(result[f'{kind}_tokens_per_s']['ours']['median'])} ({', '.join(ratios)})")
        lines.append(f"- {model}: {', '.join(cells)}")
    lines += _missed_targets(document)
    return f"{_kept_machine(document)} Median tokens/s (times transformers, llama.cpp):\n\n" + "\n".join(lines)


def _accelerated_generate(document: Document) -> str:
    lines = []
    for model, result in document["results"].items():
        times = {name: number(spread["median"]) for name, spread in result["token_ms"].items()}
        ratios = result["speed_up"]
        cells = (
            f"{name} {time}" + (f" ({number(ratios[name]['median'])})" if name in ratios else "")
            for name, time in times.items()
        )
        lines.append(f"- {model}: {', '.join(cells)}")
    return f"{_kept_machine(document)} Milliseconds a token (ratios):\n\n" + "\n".join(lines)


def _kept_machine(document: Document) -> str:
    """The processor with its family, because generations share a name; cores, commit and share of other work."""
    machine = document["machine"]
    processor = machine["cpu"].partition(" model ")[0].replace(" (family", ", family")
    other = f"other work {100 * machine['other_work']:.0f} %"
    return f"{processor}, {machine['cores']} cores, commit `{document['commit']}`, {other}."


PARTS: Mapping[str, Callable[[Document], dict[str, str]]] = {
    "cpu_decode": _cpu_decode,
    "serving": _serving,
}
"""For each benchmark of the page, the placeholders of the template that it fills."""
KEPT_PARTS: Mapping[str, Callable[[Document], str]] = {
    "accelerated_generate": _accelerated_generate,
    "export_sizes": _export_sizes,
    "hybrid_decode": _hybrid_decode,
    "quantized_decode": _quantized_decode,
}


def main() -> int:
    """Print the page of the results file; 2 when the file cannot be rendered."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument("results", type=Path, help="what python -m benchmarks printed")
    try:
        documents = _read(parser.parse_args().results)["benchmarks"]
        kept = {name: RESULTS / f"{name}.json" for name in KEPT_PARTS}
        sys.stdout.write(page(documents, {name: _read(path) for name, path in kept.items() if path.exists()}))
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
