"""Render the page of results: ``python -m benchmarks.render results.json > docs/reference/benchmarks.md``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.__main__ import BENCHMARKS
from benchmarks.kernels.render import group_table, machine_table
from benchmarks.markdown import number, spread_cell, table

TEMPLATE = Path(__file__).with_name("page.template")
KERNELS = Path(__file__).with_name("results") / "kernels.json"
"""The kept run of ``python -m benchmarks.kernels --json`` on a GPU."""
VERIFY = KERNELS.with_name("verify.json")
"""The kept output of ``python -m benchmarks.verify``."""
EXPORT_SIZES = KERNELS.with_name("export_sizes.json")
"""The kept run of ``python -m benchmarks.export_sizes --json``."""
NO_EXPORT_SIZES = "No run is kept in `benchmarks/results/export_sizes.json` yet."
NO_VERIFY = "No run is kept in `benchmarks/results/verify.json` yet."
NO_KERNELS = (
    "No run is kept in `benchmarks/results/kernels.json` yet. [kernels.md](../explanation/kernels.md) has what was "
    "measured while each kernel was written."
)
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
Documents = Mapping[str, Mapping[str, Any]]


def page(
    documents: Documents,
    kernels: Mapping[str, Any] | None = None,
    verify: Mapping[str, Any] | None = None,
    export_sizes: Mapping[str, Any] | None = None,
) -> str:
    """The page of the documents of all benchmarks; ValueError names a benchmark that is missing or was not correct.

    kernels, verify, export_sizes: the documents of the kernel benchmarks, of ``benchmarks.verify`` and of
    ``benchmarks.export_sizes``, None where no run is kept.
    """
    for name in BENCHMARKS:
        if name not in documents:
            raise ValueError(f"{name}: expected its document, found none: run python -m benchmarks without names")
        if not documents[name]["correct"]:
            raise ValueError(f"{name}: expected green gates, found wrong results: there are no numbers to show")
    values = {
        **_values(documents),
        "kernels": NO_KERNELS if kernels is None else _kernels(kernels),
        "verify": NO_VERIFY if verify is None else _verify(verify),
        "export_sizes": NO_EXPORT_SIZES if export_sizes is None else _export_sizes(export_sizes),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], text)


def _values(documents: Documents) -> dict[str, str]:
    decode = documents["cpu_decode"]
    return {
        "machine": _machine(documents),
        "targets": _targets(documents),
        "gates": _gates(documents),
        "threads": str(decode["settings"]["threads"]),
        "prompt_tokens": str(decode["settings"]["prompt_tokens"]),
        "decode_shape": _shape(decode["settings"]["shape"]),
        "decode": _decode(decode),
        "host_new_tokens": str(documents["transformers_host"]["settings"]["new"]),
        "transformers_host": _transformers_host(documents["transformers_host"]["results"]),
        **_serving_values(documents["serving"]),
    }


def _serving_values(serving: Mapping[str, Any]) -> dict[str, str]:
    settings = serving["settings"]
    return {
        "serving_requests": str(settings["requests"]),
        "serving_batch": str(settings["batch"]),
        "serving_prompt": str(settings["prompt"]),
        "serving_new": str(settings["new_tokens"]),
        "serving": _serving(serving["results"]),
        "latencies": _latencies(serving["results"]["latency_ms"]),
    }


def _kernels(document: Mapping[str, Any]) -> str:
    return f"{machine_table(document)}\n\n{group_table(document)}"


def _verify(document: Mapping[str, Any]) -> str:
    found = document["checkpoints"]
    rows = [
        (name, engine, f"{max(scenarios.values()):.1e}")
        for name, checkpoint in found.items()
        for engine, scenarios in checkpoint["largest_errors"].items()
    ]
    verdicts = "\n".join(
        f"- {name}: {checkpoint['verdict'].split(',')[0]}{_use(checkpoint)}" for name, checkpoint in found.items()
    )
    return f"{verdicts}\n\n{table(('checkpoint', 'engine', 'largest relative error'), rows)}"


def _use(checkpoint: Mapping[str, Any]) -> str:
    if "peak_bytes" not in checkpoint:
        return ""
    ratio = checkpoint["peak_over_float32"]
    use = f"; {checkpoint['wall_s']:g} s, {checkpoint['peak_bytes'] / 1e9:.2f} GB of memory"
    return use if ratio is None else f"{use}, {ratio:g} times the weights in float32"


def _export_sizes(document: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{name} (constructed)" if result["constructed"] else name,
            f"{result['checkpoint_bytes'] / 1e9:.1f}",
            number(result["wall_s"]["median"]),
            number(result["cpu_s"]["median"]),
            number(result["peak_rss_bytes"]["max"] / 1e6),
            number(next(t["limit"] for t in document["targets"] if t["name"] == f"{name}, wall time")),
        )
        for name, result in document["results"].items()
    ]
    machine = f"{document['machine']['cores']} cores, commit `{document['commit']}`"
    other = f"processor time taken by other work {100 * document['machine']['other_work']:.0f} %"
    header = ("model", "weights, GB", "wall, s", "processor, s", "peak, MB", "at most, s")
    return f"{machine}, {other}.\n\n{table(header, rows)}"


def _machine(documents: Documents) -> str:
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


def _commits(documents: Documents) -> str:
    """The commit of all documents, or those of each."""
    names: dict[str, list[str]] = {}
    for name, document in documents.items():
        names.setdefault(document["commit"], []).append(f"`{name}`")
    if len(names) == 1:
        return f"`{next(iter(names))}`"
    return "; ".join(f"`{commit}`: {', '.join(of)}" for commit, of in names.items())


def _other_work(documents: Documents) -> str:
    """The largest share of all documents; unknown where one lacks it."""
    shares = [document["machine"].get("other_work") for document in documents.values()]
    known = [share for share in shares if share is not None]
    return f"at most {100 * max(known):.0f} %" if len(known) == len(shares) else "unknown"


def _targets(documents: Documents) -> str:
    rows = []
    for name, document in documents.items():
        for target in document["targets"]:
            wanted = f"{target['direction']} {target['limit']:.4g} {target['unit']}"
            found = f"{target['value']:.4g} {target['unit']}"
            rows.append((f"`{name}`", target["name"], wanted, found, "yes" if target["met"] else "**no**"))
    return table(("benchmark", "what", "target", "measured", "met"), rows)


def _gates(documents: Documents) -> str:
    """One sentence: how much differed, in logits and in tokens; every document is correct."""
    gates = [gate for document in documents.values() for gate in document["gates"]]
    exact = [gate for gate in gates if gate["limit"] == 0]
    largest = max((gate["value"] / gate["limit"] for gate in gates if gate["limit"] > 0), default=0.0)
    return (
        f"All {len(gates)} comparisons passed: {len(exact)} of tokens, without a difference, the others with at most "
        f"{100 * largest:.2g} % of what is allowed."
    )


def _shape(shape: Mapping[str, Any]) -> str:
    layers = f"{len(shape['pattern'])} layers `{shape['pattern']}`"
    return f"{layers}, hidden size {shape['hidden_size']}, vocabulary {shape['vocab_size']}"


def _decode(document: Mapping[str, Any]) -> str:
    results = document["results"]
    rows: list[Sequence[str]] = []
    for title, cell in (
        ("decode, `LLM.generate`, tokens/s", lambda r: spread_cell(r["decode_tokens_per_s"]["ours"])),
        ("decode, transformers, tokens/s", lambda r: spread_cell(r["decode_tokens_per_s"]["peer"])),
        ("**decode, times transformers**", lambda r: spread_cell(r["decode_ratio"])),
        ("prefill, ours, tokens/s", lambda r: spread_cell(r["prefill_tokens_per_s"]["ours"])),
        ("prefill, transformers, tokens/s", lambda r: spread_cell(r["prefill_tokens_per_s"]["peer"])),
        ("**prefill, times transformers**", lambda r: spread_cell(r["prefill_ratio"])),
        ("read bandwidth measured, GB/s", lambda r: spread_cell(r["read_bandwidth_gb_per_s"])),
        ("share of bandwidth, ours", lambda r: spread_cell(r["bandwidth_share"]["ours"], 100, "%")),
        ("Python per step, µs: median (95th percentile)", lambda r: _overhead(r["python_overhead_us"])),
    ):
        rows.append((title, *(cell(result) for result in results.values())))
    names = [f"{name}, {document['settings']['new_tokens'][name]} new tokens" for name in results]
    prefill = document["settings"]["prefill_tokens"]
    return table((f"(prefill: {prefill} tokens)", *names), rows)


def _overhead(overhead: Mapping[str, float]) -> str:
    return f"{overhead['median']:.0f} ({overhead['p95']:.0f})"


def _serving(results: Mapping[str, Any]) -> str:
    rows = [(name, spread_cell(spread)) for name, spread in results["tokens_per_second"].items()]
    return table(("", "tokens/s"), [*rows, ("**batched, times dense**", spread_cell(results["ratio"]))])


def _latencies(latencies: Mapping[str, Mapping[str, float]]) -> str:
    names = ("first_token_p50", "first_token_p99", "between_tokens_p50", "between_tokens_p99")
    rows = [(load, *(f"{values[name]:.3g}" for name in names)) for load, values in latencies.items()]
    heads = ("first token, ms: p50", "p99", "between tokens, ms: p50", "p99")
    return table(("load", *heads), rows)


def _transformers_host(results: Mapping[str, Any]) -> str:
    columns = list(results)
    names = list(next(iter(results.values()))["token_ms"])
    rows = [(f"`{name}`", *(spread_cell(results[column]["token_ms"][name]) for column in columns)) for name in names]
    article = ("all caches built anew", *(f"{results[column]['article_cache_ms']:.3g}" for column in columns))
    return table(("ms a token", *columns), [*rows, article])


def main() -> int:
    """Print the page of the results file; 2 when the file cannot be rendered."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.render", description=__doc__)
    parser.add_argument("results", type=Path, help="what python -m benchmarks printed")
    try:
        documents = json.loads(parser.parse_args().results.read_text(encoding="utf-8"))["benchmarks"]
        kernels = json.loads(KERNELS.read_text(encoding="utf-8")) if KERNELS.exists() else None
        verify = json.loads(VERIFY.read_text(encoding="utf-8")) if VERIFY.exists() else None
        sizes = json.loads(EXPORT_SIZES.read_text(encoding="utf-8")) if EXPORT_SIZES.exists() else None
        sys.stdout.write(page(documents, kernels, verify, sizes))
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
