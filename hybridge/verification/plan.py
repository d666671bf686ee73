"""The prompts and rows of a verification, chosen to cross every chunk and sliding window where that is possible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridge.artifact.config import RuntimeConfig
from hybridge.verification.layouts import layout_steps
from hybridge.verification.lengths import WINDOW, default_lengths, edges_of
from hybridge.verification.long_windows import LongWindowRow, long_window_rows
from hybridge.verification.options import VerifyOptions


@dataclass(frozen=True)
class Plan:
    """``lengths``: tokens of the prompts; ``long_rows``: rows with filled caches, for windows that no prompt crosses.

    not_crossed: chunks and windows that a longer row would cross; notes: on windows longer than the artifact's rows.
    """

    lengths: tuple[int, ...]
    long_rows: tuple[LongWindowRow, ...]
    not_crossed: tuple[str, ...]
    notes: tuple[str, ...]


def plan_of(artifact: Path, config: RuntimeConfig, options: VerifyOptions) -> Plan:
    """The plan for ``artifact``; prompts of the user's lengths where ``options`` has some."""
    edges, room = edges_of(artifact, config), config.max_seq_len
    lengths = options.prompt_lengths or default_lengths(edges, room - options.decode_steps)
    long_rows = long_window_rows(edges, config, options.seed, max(lengths), layout_steps(config).cache_bytes)
    if config.state_scales:
        # The reference continues no filled caches in further steps.
        long_rows = ()
    crossed = {row.edge for row in long_rows} | {edge for edge in edges if edge.crossed_by(max(lengths))}
    missed = tuple(str(edge) for edge in edges if edge.crossed_by(room) and edge not in crossed)
    out_of_reach = [edge for edge in edges if edge.name == WINDOW and not edge.crossed_by(room)]
    notes = tuple(f"no row crosses {edge}: the artifact holds {room} tokens" for edge in out_of_reach)
    return Plan(lengths, long_rows, missed, notes)
