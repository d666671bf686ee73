"""The picture of speculation on a GPU: ``python -m benchmarks.speculation_plot RESULTS.json PICTURE.svg``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plot_speculation(results: Mapping[str, Any], path: Path) -> None:
    """Draw gain, accepted share and chosen candidates of ``results``, by the chance of a candidate to be right."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    ways = {chance: parts["adaptive"] for chance, parts in sorted(results["acceptance"].items(), key=_chance)}
    chances = [float(chance) for chance in ways]
    # Fixed names inside and no date: the same numbers give the same file.
    with rc_context({"svg.hashsalt": "speculation"}):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        gain, accepted, chosen = figure.subplots(1, 3)
        gain.plot(chances, [way["ratio"]["median"] for way in ways.values()], "-o")
        gain.axhline(1, color="grey", linewidth=0.8)
        gain.set(ylabel="tokens per second, of plain decoding", ylim=(0, None))
        accepted.plot(chances, [100 * way["acceptance"] for way in ways.values()], "-o")
        accepted.set(ylabel="candidates accepted, %", ylim=(0, 100))
        bottoms = [0.0] * len(chances)
        for count in sorted({int(k) for way in ways.values() for k in way["rows_by_candidates"]}):
            shares = [_share(way["rows_by_candidates"], count) for way in ways.values()]
            chosen.bar(chances, shares, 0.1, bottoms, label=f"k = {count}")
            bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
        chosen.set(ylabel="steps by candidates chosen, %", ylim=(0, 100))
        chosen.legend(fontsize="small")
        for axes in (gain, accepted, chosen):
            axes.set(xlabel="chance of a candidate to be right", xticks=chances)
        figure.suptitle(
            f"{results['state_bytes_per_candidate'] / 2**20:.1f} MiB of states a candidate", fontsize="small"
        )
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _chance(item: tuple[str, Any]) -> float:
    return float(item[0])


def _share(rows: Mapping[str, int], count: int) -> float:
    return 100 * rows.get(str(count), 0) / sum(rows.values())


def main() -> int:
    """Draw the results in the first file into the second."""
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    plot_speculation(document["results"], Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
