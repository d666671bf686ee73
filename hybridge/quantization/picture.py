"""A table and a picture of the bits and the sensitivity of each group of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hybridge.artifact.errors import HybridgeError
from hybridge.quantization.mix import GroupReport
from hybridge.requirements import require

TABLE_FILE, PICTURE_FILE = "hybridge_sensitivity.txt", "hybridge_sensitivity.png"


def table_text(groups: Sequence[GroupReport]) -> str:
    """The table: a line for each group, in the order of the model."""
    width = max(len(group.name) for group in groups)
    lines = [f"{'matrices':{width}} {'weights':>12} {'KL divergence':>14} {'bits':>7}  scheme"]
    for group in groups:
        scheme = group.scheme or "unchanged"
        lines.append(f"{group.name:{width}} {group.weights:12} {group.divergence:14.7f} {group.bits:7.3f}  {scheme}")
    return "\n".join(lines) + "\n"


def write_sensitivities(groups: Sequence[GroupReport], folder: Path) -> tuple[str, ...]:
    """Write the table, and the picture if matplotlib is installed; returns notes for the user."""
    (folder / TABLE_FILE).write_text(table_text(groups), encoding="utf-8")
    try:
        require("matplotlib")
    except HybridgeError as error:
        return (f"{TABLE_FILE} has no picture: {error}",)
    _draw(groups, folder / PICTURE_FILE)
    return ()


def _draw(groups: Sequence[GroupReport], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.22 * len(groups) + 1.2), layout="constrained")
    bits, divergences = figure.subplots(1, 2, sharey=True)
    positions = range(len(groups))
    bits.barh(positions, [group.bits for group in groups])
    bits.set(xlabel="bits per weight", yticks=list(positions), yticklabels=[group.name for group in groups])
    bits.invert_yaxis()
    divergences.barh(positions, [group.divergence for group in groups], color="tab:orange")
    divergences.set(xlabel="KL divergence of the group alone in 4 bits, nats", xscale="log")
    figure.savefig(path, dpi=120)
