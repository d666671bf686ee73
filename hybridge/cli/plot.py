"""A chart of a benchmark report. Needs matplotlib (the extra "plot")."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridge.artifact.errors import OutputError
from hybridge.requirements import require

if TYPE_CHECKING:
    from hybridge.runtime.benchmark import BenchmarkReport

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Check that the chart can be written to ``path``, before anything is measured.

    OutputError: the format or the folder is wrong. HybridgeError: matplotlib is not installed.
    """
    require("matplotlib")
    if path.suffix.lower() not in FORMATS:
        raise OutputError(f"--plot: expected a file that ends in {', '.join(FORMATS)}, found {path}")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"--plot: expected the folder {path.absolute().parent}, found none: create it first")


def plot_report(report: BenchmarkReport, path: Path) -> None:
    """Draw prefill rates over prompt length and the times of a decode step (p50, p95, p99) into ``path``."""
    from matplotlib.figure import Figure

    panels = [(draw, results) for draw, results in ((_prefill, report.prefill), (_decode, report.decode)) if results]
    figure = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    figure.suptitle(f"{report.model_type}, {report.dtype} artifact, {report.engine}")
    for index, (draw, results) in enumerate(panels, 1):
        draw(figure.add_subplot(1, len(panels), index), results)
    figure.savefig(path, dpi=150)


def _prefill(axes: Any, results: Any) -> None:
    bars = axes.bar([r.name for r in results], [r.tokens_per_second for r in results], color="#3b6ea5")
    axes.bar_label(bars, fmt="{:.0f}")
    axes.set(title="prompt processing", ylabel="tokens/s")


def _decode(axes: Any, results: Any) -> None:
    width = 0.25
    for offset, (percentile, color) in enumerate((("p50", "#3b6ea5"), ("p95", "#d98b2b"), ("p99", "#b23a48"))):
        heights = [1000 * getattr(r.time_per_token, percentile) for r in results]
        bars = axes.bar([i + (offset - 1) * width for i in range(len(results))], heights, width, color=color)
        bars.set_label(percentile)
        axes.bar_label(bars, fmt="{:.2f}", fontsize="small")
    names = [f"{r.name}\n{r.tokens_per_second:.0f} tokens/s" for r in results]
    axes.set_xticks(range(len(results)), names)
    axes.set(title="token generation", ylabel="ms per step")
    axes.legend()
