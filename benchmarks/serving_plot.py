"""The picture of the serving benchmark: latencies over the load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_PARTS = (("first_token", "time to first token, ms"), ("between_tokens", "time between tokens, ms"))


def plot_latencies(latencies: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw milliseconds (by load, then by name) into ``path``; its ending chooses the format."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    loads = sorted(latencies, key=float)
    # Fixed names inside and no date: the same numbers give the same file.
    with rc_context({"svg.hashsalt": "serving"}):
        figure = Figure(figsize=(7, 3.2), layout="constrained")
        for axes, (name, label) in zip(figure.subplots(1, 2), _PARTS, strict=True):
            for quantile, style in (("p50", "-o"), ("p99", "--o")):
                values = [latencies[load][f"{name}_{quantile}"] for load in loads]
                axes.plot([float(load) for load in loads], values, style, label=quantile)
            axes.set(xlabel="load, of the batched rate", ylabel=label, ylim=(0, None))
            axes.legend()
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
