"""The picture of the prefix cache benchmark: what was hit, and the time to the first token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_WAYS = (("without", "without a cache"), ("lru", "plain LRU"), ("value", "value per byte"))


def plot_hits(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw hit rates and 95th percentiles of ``rows`` (Compared.to_json) into ``path``."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    labels = [f"{row['trace']}\n{row['states']} states" for row in rows]
    places = range(len(rows))
    # Fixed names inside and no date: the same numbers give the same file.
    with rc_context({"svg.hashsalt": "prefix_cache"}):
        figure = Figure(figsize=(9, 0.55 * len(rows) + 1.4), layout="constrained")
        hits, latency = figure.subplots(1, 2, sharey=True)
        for shift, (way, label) in zip((-0.27, 0.0, 0.27), _WAYS, strict=True):
            at = [place + shift for place in places]
            hits.barh(at, [100 * row["ways"][way]["hit_rate"] for row in rows], 0.25, label=label)
            latency.barh(at, [1e3 * row["ways"][way]["ttft_p95_s"] for row in rows], 0.25, label=label)
        best = [100 * row["optimum"] for row in rows]
        hits.plot(best, list(places), "k|", markersize=18, label="best possible")
        hits.set(xlabel="prompt tokens from the cache, %", yticks=list(places), yticklabels=labels)
        hits.invert_yaxis()
        latency.set(xlabel="95% have their first token within, ms", xscale="log")
        hits.legend(fontsize="small")
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
