"""The pictures of docs/pictures that show measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PLOTTED = ("prefix_cache", "serving", "serving_torch")
"""Benchmarks with a picture."""
_CACHES = (("without", "no cache"), ("lru", "LRU"), ("value", "this cache"))
_LATENCIES = (("first_token", "time to first token, ms"), ("between_tokens", "time between tokens, ms"))


@contextmanager
def picture(path: Path, size: tuple[float, float], hardware: str) -> Iterator[Any]:
    """A matplotlib figure of ``size`` inches that is saved as ``path``, with ``hardware`` written below it."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Fixed identifiers and no date: the same numbers give the same file.
    with rc_context({"svg.hashsalt": "hybridge", "font.size": 9}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.supxlabel(hardware, fontsize=8, color="dimgrey", x=0.99, ha="right")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def plot_hits(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Hit rates and 95th percentiles of time to first token of ``rows`` (Compared.to_json), one row a trace."""
    labels = [f"{row['trace']}\n{row['states']} states" for row in rows]
    places = range(len(rows))
    with picture(
        path, (9, 0.55 * len(rows) + 1.8), "modelled times: hybrid of 8 B parameters, H200-class GPU"
    ) as figure:
        hits, latency = figure.subplots(1, 2, sharey=True)
        for shift, (way, label) in zip((-0.27, 0.0, 0.27), _CACHES, strict=True):
            at = [place + shift for place in places]
            hits.barh(at, [100 * row["ways"][way]["hit_rate"] for row in rows], 0.25, label=label)
            latency.barh(at, [1e3 * row["ways"][way]["ttft_p95_s"] for row in rows], 0.25)
        hits.plot([100 * row["optimum"] for row in rows], list(places), "k|", markersize=18, label="offline optimum")
        hits.set(xlabel="prompt tokens served from the cache, %", yticks=list(places), yticklabels=labels)
        hits.invert_yaxis()
        latency.set(xlabel="95th percentile of time to first token, ms", xlim=(0, None))
        figure.legend(loc="outside upper center", ncols=4)


def plot_latencies(latencies: Mapping[str, Mapping[str, float]], path: Path, hardware: str) -> None:
    """Milliseconds of ``latencies`` (by load, then by name) over the load; ``hardware`` names the machine."""
    loads = sorted(latencies, key=float)
    with picture(path, (7, 3.4), hardware) as figure:
        for axes, (name, label) in zip(figure.subplots(1, 2), _LATENCIES, strict=True):
            for quantile, style in (("p50", "-o"), ("p99", "--o")):
                values = [latencies[load][f"{name}_{quantile}"] for load in loads]
                axes.plot([float(load) for load in loads], values, style, label=quantile)
            axes.set(xlabel="arrival rate / batched throughput", ylabel=label, ylim=(0, None))
            axes.legend()


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Draw the results of the JSON document of a benchmark in PLOTTED."""
    name, results = document["benchmark"], document["results"]
    if name == "prefix_cache":
        first = document["settings"]["seeds"][0]
        plot_hits([row for row in results["cost_model"] if row["seed"] == first], path)
    else:
        plot_latencies(results["latency_ms"], path, _hardware(results))


def _hardware(results: Mapping[str, Any]) -> str:
    """The caption that names the machine; a benchmark of a GPU names its device."""
    if "device" not in results:
        return "CPU"
    return f"12 layers, 2.65 B parameters, bfloat16, {results['device']}"
